// Reading ahead of a reader, with a volume in memory and no store: what comes into RAM, in how many reads, and by whom.
#include "store/readahead/read_ahead.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "store/load/testing/load_fixture.h"

namespace kvcachefs {
namespace read_ahead_test {

constexpr uint32_t kReader = 7;
constexpr uint64_t kChunk = 64 * kKiB;

class ReadAheadTest : public LoadFixture {
 protected:
  ReadAheadTest() {
    accesses.set_ahead_bytes(32 * kMiB, pool.limit_bytes() / 2);
    accesses.set_kick([this] { ahead.kick(); });
  }
  ~ReadAheadTest() override {
    ahead.stop();
    ahead.finish();
  }
  // A list of chunks is probed: its reader is expected to read all of them.
  void probe(const std::vector<ObjectId>& ids) {
    for (ObjectId id : ids) {
      accesses.probed(kReader, kRootId, name_of(id), id, /*directory=*/false, index.objects.at(id).body.size_bytes, clock.monotonic_ns());
      clock.advance_ns(10'000);
    }
    clock.advance_ns(5'000'000);  // no other probe comes
  }
  static std::string name_of(ObjectId id) { return "body-" + std::to_string(id.value); }
  bool is_here(ObjectId id) {
    const ObjectPtr body = tree.find(id);
    return body && is_right_in_ram(body);
  }
  size_t count_here(const std::vector<ObjectId>& ids) {
    return static_cast<size_t>(std::count_if(ids.begin(), ids.end(), [&](ObjectId id) { return is_here(id); }));
  }
  std::vector<ObjectId> chunks(size_t count, PlaceKind kind = PlaceKind::kPacked) {
    return put_bodies(kind, std::vector<uint64_t>(count, kChunk));
  }

  UnverifiedBodies unverified{{index, tree, reader, quarantine}, {}};
  FileMover mover{{pool, files, policy, clock, counters, false, [](uint64_t) { return false; }}};
  BackingFiles backing{{*volume, extents, tree, files, policy, accesses, unverified, counters, clock, false}};
  RequestClock requests{clock};
  ReadAhead ahead{{accesses, tree, loader, extents, pool, files, policy, cache, mover, backing, counters, requests, false}};
};

TEST_F(ReadAheadTest, WhatAReaderIsExpectedToReadComesInLargeReads) {
  const auto ids = chunks(16);
  probe(ids);
  EXPECT_TRUE(ahead.step());
  EXPECT_EQ(count_here(ids), ids.size());
  EXPECT_LE(reads.size(), 4u);
  EXPECT_GE(accesses.totals().read_bytes, ids.size() * kChunk);
  const size_t before = reads.size();
  while (ahead.step()) {
  }
  EXPECT_EQ(reads.size(), before) << "nothing is read twice";
}

TEST_F(ReadAheadTest, ABodyThatIsReadMeanwhileDoesNotWaitForTheQueue) {
  const auto ids = chunks(8);
  probe(ids);
  Answer answer;
  const ObjectPtr body = object(ids[5]);
  ahead.note_demand(body->id);
  load(body, answer);
  EXPECT_TRUE(answer.is_good());
  EXPECT_EQ(reads.size(), 1u);
  while (ahead.step()) {
  }
  EXPECT_EQ(count_here(ids), ids.size());
}

TEST_F(ReadAheadTest, AFailedReadEndsItsPlanAndNothingElse) {
  const auto ids = chunks(8);
  const uint64_t bad = index.objects.at(ids[3]).body.place.offset;
  on_read = [&](const VolumeCall& call) { return Fault{.sys_errno = call.offset <= bad && bad < call.offset + call.length ? EIO : 0}; };
  probe(ids);
  while (ahead.step()) {
  }
  EXPECT_FALSE(is_here(ids[3]));
  EXPECT_EQ(count_here(ids), ids.size() - 1);
  on_read = nullptr;
  Answer answer;
  load(object(ids[3]), answer);
  EXPECT_TRUE(answer.is_good());
}

TEST_F(ReadAheadTest, WithoutMemoryNothingIsTakenAndItGoesOnLater) {
  const auto ids = chunks(8);
  Reservation all = pool.try_reserve(pool.limit_bytes() - kSealingBytes - kChunk / 2);
  probe(ids);
  while (ahead.step()) {
  }
  EXPECT_EQ(count_here(ids), 0u);
  EXPECT_TRUE(reads.empty());
  all = Reservation();
  probe(ids);
  while (ahead.step()) {
  }
  EXPECT_EQ(count_here(ids), ids.size());
}

TEST_F(ReadAheadTest, AThreadThatPollsDoesItInPiecesAndLeavesWhatIsLargeToTheOther) {
  const auto small = chunks(8);
  for (ObjectId id : small) {  // the pack is open: a helper cannot block
    Answer answer;
    if (id == small.front()) load(object(id), answer);
  }
  reads.clear();
  probe(small);
  int pieces = 0;
  while (ahead.help()) ++pieces;
  EXPECT_GT(pieces, 2);
  EXPECT_EQ(count_here(small), small.size());
  ahead.leave_off();

  const auto large = put_bodies(PlaceKind::kPacked, {kMiB, kMiB, kMiB, kMiB});
  probe(large);
  while (ahead.help()) {
  }
  EXPECT_EQ(count_here(large), 0u);
  ahead.leave_off();
  while (ahead.step()) {
  }
  EXPECT_EQ(count_here(large), large.size());
}

TEST_F(ReadAheadTest, ItsThreadIsWokenByTheTracker) {
  const auto ids = chunks(16);
  ahead.start();
  ahead.hold();
  probe(ids);
  ahead.release();
  ahead.resume();
  for (int i = 0; i < 60'000 && count_here(ids) < ids.size(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(count_here(ids), ids.size());
  ahead.stop();
}

}  // namespace read_ahead_test
}  // namespace kvcachefs

// Writes, sizes and holes as clients ask for them, of bodies and of raw files, over a volume in memory. No store.
#include "store/requests/write_requests.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>

#include "store/base/limits.h"
#include "store/load/testing/load_fixture.h"
#include "store/object/in_place_mark.h"

namespace kvcachefs {
namespace write_requests_test {

using Bytes = std::vector<std::byte>;

class WriteRequestsTest : public LoadFixture {
 protected:
  static constexpr uint64_t kRawAbove = 32 * kMiB;

  WriteRequestsTest() {
    EXPECT_TRUE(options.set("raw_above", "32M", {.backing_bytes = kGiB, .memory_bytes = kGiB}));
    resumer.waiters().set_rules({.has_room_without_reads = [](uint64_t) { return false; },
                                 .nothing_moves = [] { return false; },
                                 .no_use = [this] { return refusals.lasting(); }});
  }
  ~WriteRequestsTest() override {
    dirty.clear();
    space_waiters.stop();
    space_waiters.answer_all();
    ahead.finish();
  }

  ObjectPtr make() {
    Attributes attributes;
    attributes.mode = S_IFREG | 0644;
    return std::make_shared<Object>(ObjectId{next_id++}, attributes);
  }
  std::unique_ptr<Handle> open(const ObjectPtr& body) {
    auto handle = std::make_unique<Handle>();
    handle->object = body;
    const auto lock = body->lock();
    body->add_handle();  // until the end: the table keeps it
    handle->request = {.read = true, .write = true};
    return handle;
  }
  template <class T>
  struct Told {
    int count = 0;
    std::optional<Result<T>> result;
    bool is(const T& value) const { return count == 1 && *result && **result == value; }
    bool is_error(Code code) const { return count == 1 && !*result && result->error().code == code; }
  };
  void write(Handle& handle, uint64_t offset, const Bytes& bytes, Told<size_t>& told, WriteOf of = WriteOf::kCall) {
    Bytes callers = bytes;  // gone when the call returns
    requests.write(&handle, offset, callers, [&told](Result<size_t> result) {
      ++told.count;
      told.result = std::move(result);
    }, of);
    std::fill(callers.begin(), callers.end(), std::byte{0xee});
  }
  void write_now(Handle& handle, uint64_t offset, const Bytes& bytes) {
    Told<size_t> told;
    write(handle, offset, bytes, told);
    EXPECT_TRUE(told.is(bytes.size()));
  }
  Answer resize(const ObjectPtr& body, uint64_t size_bytes, Resize how = Resize::kExactly) {
    Answer answer;
    requests.resize(body, size_bytes, how, into(answer));
    return answer;
  }
  Answer allocate(Handle& handle, AllocateMode mode, uint64_t offset, uint64_t length) {
    Answer answer;
    requests.allocate(&handle, mode, offset, length, into(answer));
    return answer;
  }
  // The bytes of a body, all of which must be in RAM, or of a raw file; what the latter's backing file lacks is zeros.
  Bytes bytes_in(const ObjectPtr& body) {
    auto lock = body->lock();
    Bytes all;
    if (const FilePtr raw = body->raw) {
      all.resize(body->size_bytes);
      lock.unlock();
      EXPECT_TRUE(raw->read(all, 0));
      return all;
    }
    const ReadPlan plan = body->plan_read(0, body->size_bytes);
    EXPECT_FALSE(plan.lacks_units);
    for (const iovec& piece : plan.reply.pieces) {
      const auto* begin = static_cast<const std::byte*>(piece.iov_base);
      all.insert(all.end(), begin, begin + piece.iov_len);
    }
    return all;
  }
  static Bytes changed(Bytes whole, uint64_t offset, const Bytes& part) {
    whole.resize(std::max<size_t>(whole.size(), offset + part.size()));
    std::copy(part.begin(), part.end(), whole.begin() + static_cast<ptrdiff_t>(offset));
    return whole;
  }
  // A round of the keeper, in which so much of the volume comes back.
  void make_room(uint64_t bytes) {
    if (bytes > 0) space.configure(space.limit_bytes() + bytes, 0);
    if (const auto round = space_waiters.begin_round()) space_waiters.end_round(*round, bytes > 0);
  }
  ObjectPtr make_raw() {
    const ObjectPtr body = make();
    EXPECT_TRUE(resize(body, kRawAbove + kMiB).is_good());
    const auto lock = body->lock();
    EXPECT_TRUE(body->raw);
    return body;
  }

  int rounds_asked = 0;
  Status may_change;  // what the store says of each object
  RawSpace raw_space{space, false};
  BodyChanges changes{{clock, space, records, dirty, discards, options}};
  WaitingBytes waiting{volume,
                       {[this] { return space.room_bytes(); }, [this](uint64_t bytes) { return space.try_reserve(bytes); },
                        [this](uint64_t bytes) { space.release(bytes); }},
                       "WAITING"};
  UnverifiedBodies unverified{{index, tree, reader, quarantine}, {}};
  FileMover mover{{pool, files, policy, clock, counters, false, [](uint64_t) { return false; }}};
  BackingFiles backing{{*volume, extents, tree, files, policy, accesses, unverified, counters, clock, false}};
  RequestClock request_clock{clock};
  ReadAhead ahead{{accesses, tree, loader, extents, pool, files, policy, cache, mover, backing, counters, request_clock, false}};
  VolumeRefusals refusals{clock, space};
  InPlaceChanges in_place{{changes, space, dirty, false}};
  SpaceWaiters space_waiters{space, counters.errors_no_space, clock, [this] { ++rounds_asked; }};
  WriteRequests requests{{*volume, extents, space, raw_space, space_waiters, discards, changes, dirty, cache, policy, waiting, loader, ahead,
                          in_place, refusals, opener, resumer, counters, options,
                          [this](const Object&) { return may_change; }}};
};

// --- bodies ---

TEST_F(WriteRequestsTest, ANewBodyIsTakenInAnyOrderAndQueued) {
  const ObjectPtr body = make();
  const auto handle = open(body);
  const Bytes tail = bytes_of(kUnitBytes, 1), head = bytes_of(kUnitBytes + 7, 2);
  write_now(*handle, kUnitBytes + 7, tail);
  write_now(*handle, 0, head);
  EXPECT_EQ(bytes_in(body), changed(head, kUnitBytes + 7, tail));
  EXPECT_EQ(counters.write_received_bytes, 2 * kUnitBytes + 7);
  const auto lock = body->lock();
  EXPECT_TRUE(handle->unflushed);
  EXPECT_EQ(body->unflushed_handles, 1u);
  EXPECT_TRUE(body->content_dirty());
  EXPECT_TRUE(body->in_dirty_queue);
  EXPECT_GE(body->reserved_bytes, body->size_bytes);
}

TEST_F(WriteRequestsTest, APartOfAUnitOnTheVolumeIsReadFirst) {
  const ObjectId id = put_body(2 * kUnitBytes);
  const ObjectPtr body = object(id);
  const auto handle = open(body);
  const Bytes old = bytes_of(2 * kUnitBytes, id.value), part = bytes_of(100, 77);
  write_now(*handle, kUnitBytes - 50, part);
  EXPECT_EQ(bytes_in(body), changed(old, kUnitBytes - 50, part));
  const auto lock = body->lock();
  EXPECT_TRUE(body->wanted.empty());
}

TEST_F(WriteRequestsTest, AWriteWhoseOldBytesCannotBeReadFailsAndTheBodySaysSo) {
  const ObjectPtr body = object(put_body(kUnitBytes));
  const auto handle = open(body);
  on_read = [](const VolumeCall&) { return Fault{.sys_errno = EIO}; };
  Told<size_t> told;
  write(*handle, 10, bytes_of(20, 1), told);
  EXPECT_TRUE(told.is_error(Code::kIo));
  const auto lock = body->lock();
  EXPECT_TRUE(body->lacks_a_write());
  EXPECT_TRUE(body->wanted.empty());
}

TEST_F(WriteRequestsTest, WithoutMemoryAWriteWaitsWithItsOwnBytes) {
  const ObjectPtr body = make();
  const auto handle = open(body);
  Reservation all = pool.try_reserve(pool.limit_bytes() - kSealingBytes);
  ASSERT_GT(all.bytes(), 0u);
  const Bytes bytes = bytes_of(kUnitBytes, 5);
  Told<size_t> told;
  write(*handle, 0, bytes, told);
  EXPECT_EQ(told.count, 0);
  EXPECT_EQ(waiting.memory_bytes(), kUnitBytes);
  all = Reservation();
  while (resumer.resume()) {
  }
  EXPECT_TRUE(told.is(bytes.size()));
  EXPECT_EQ(bytes_in(body), bytes);
  EXPECT_EQ(waiting.memory_bytes(), 0u);
}

TEST_F(WriteRequestsTest, AWriteThatWaitsIsToldThatTheVolumeTakesNothing) {
  const ObjectPtr body = make();
  const auto handle = open(body);
  Reservation all = pool.try_reserve(pool.limit_bytes() - kSealingBytes);
  Told<size_t> told;
  write(*handle, 0, bytes_of(kUnitBytes, 5), told);
  refusals.failed({Code::kIo, EIO, "the device is gone"});
  clock.advance_ns(120'000'000'000);
  refusals.failed({Code::kIo, EIO, "the device is gone"});
  ASSERT_TRUE(refusals.lasting());
  while (resumer.resume()) {
  }
  EXPECT_TRUE(told.is_error(Code::kIo));
  const auto lock = body->lock();
  EXPECT_TRUE(body->lacks_a_write());
}

// What cuts a unit waits for memory as a write does, and what is behind it in the line is told as well.
TEST_F(WriteRequestsTest, ATruncationThatWaitsIsToldThatTheVolumeTakesNothing) {
  const ObjectPtr body = make();
  const auto handle = open(body);
  write_now(*handle, 0, bytes_of(2 * kUnitBytes, 5));
  Reservation all = pool.try_reserve(pool.limit_bytes() - kSealingBytes - pool.held_bytes());
  Answer cut;
  Told<size_t> told;
  requests.resize(body, kUnitBytes + 1, Resize::kExactly, into(cut));
  write(*handle, 2 * kUnitBytes, bytes_of(kUnitBytes, 6), told);
  EXPECT_FALSE(resumer.resume());
  refusals.failed({Code::kIo, EIO, "the device is gone"});
  clock.advance_ns(120'000'000'000);
  refusals.failed({Code::kIo, EIO, "the device is gone"});
  EXPECT_TRUE(resumer.resume());
  EXPECT_TRUE(cut.is_error(Code::kIo));
  EXPECT_TRUE(told.is_error(Code::kIo));
  const auto lock = body->lock();
  EXPECT_EQ(body->size_bytes, 2 * kUnitBytes);
}

TEST_F(WriteRequestsTest, AWriteLargeForTheMemoryGoesInPieces) {
  pool.set_limit_bytes(4 * kMiB);
  const ObjectPtr body = make();
  const auto handle = open(body);
  const Bytes bytes = bytes_of(2 * kMiB + 3, 5);
  ASSERT_GT(bytes.size(), cache.piece_bytes());
  write_now(*handle, 0, bytes);
  EXPECT_EQ(bytes_in(body), bytes);
}

TEST_F(WriteRequestsTest, WithoutSpaceAWriteWaitsForARound) {
  space.configure(2 * kMiB, 0);
  const ObjectPtr first = make(), second = make();
  const auto first_handle = open(first), handle = open(second);
  write_now(*first_handle, 0, bytes_of(3 * kMiB / 2, 1));
  const Bytes bytes = bytes_of(kMiB, 2);
  Told<size_t> told;
  write(*handle, 0, bytes, told);
  EXPECT_EQ(told.count, 0);
  EXPECT_EQ(rounds_asked, 1);
  make_room(kMiB);
  EXPECT_TRUE(told.is(bytes.size()));
  EXPECT_EQ(bytes_in(second), bytes);
}

TEST_F(WriteRequestsTest, AWriteThatFindsNoSpaceFailsAndTheTruncationThatFollowsIsTheKernels) {
  space.configure(2 * kMiB, 0);
  const ObjectPtr first = make(), body = make();
  const auto first_handle = open(first), handle = open(body);
  write_now(*first_handle, 0, bytes_of(3 * kMiB / 2, 1));
  write_now(*handle, 0, bytes_of(kUnitBytes, 2));
  Told<size_t> told;
  write(*handle, kUnitBytes, bytes_of(kMiB, 3), told);
  for (int round = 0; round < 3; ++round) make_room(0);
  EXPECT_TRUE(told.is_error(Code::kNoSpace));
  EXPECT_GE(counters.errors_no_space, 1u);
  EXPECT_EQ(WriteRequests::kind_of_truncation(nullptr), Resize::kExactly);
  const Resize how = WriteRequests::kind_of_truncation(handle.get());
  EXPECT_EQ(how, Resize::kAfterFailedWrite);
  EXPECT_EQ(WriteRequests::kind_of_truncation(handle.get()), Resize::kExactly) << "only the first";
  EXPECT_TRUE(resize(body, kUnitBytes - 10, how).is_good());
  {
    const auto lock = body->lock();
    EXPECT_TRUE(body->lacks_a_write()) << "what was refused is still missing";
  }
  EXPECT_TRUE(resize(body, 0).is_good());
  const auto lock = body->lock();
  EXPECT_FALSE(body->lacks_a_write());
}

TEST_F(WriteRequestsTest, OffsetsBeyondWhatAFileCanBeAreRefused) {
  const ObjectPtr body = make();
  const auto handle = open(body);
  Told<size_t> told, past, none;
  write(*handle, kMaxFileBytes, bytes_of(1, 1), told);
  EXPECT_TRUE(told.is_error(Code::kTooBig));
  write(*handle, kMaxSealedBytes, bytes_of(1, 1), past);
  EXPECT_TRUE(past.is_error(Code::kTooBig));
  write(*handle, 7, {}, none);
  EXPECT_TRUE(none.is(0));
  EXPECT_TRUE(resize(body, kMaxFileBytes + 1).is_error(Code::kTooBig));
}

// --- sizes and holes ---

TEST_F(WriteRequestsTest, WhatIsCutOffReadsAsZerosWhenTheBodyGrowsAgain) {
  const ObjectPtr body = make();
  const auto handle = open(body);
  const Bytes bytes = bytes_of(kUnitBytes + 100, 3);
  write_now(*handle, 0, bytes);
  EXPECT_TRUE(resize(body, 1000).is_good());
  EXPECT_TRUE(resize(body, 2 * kUnitBytes).is_good());
  Bytes expected(bytes.begin(), bytes.begin() + 1000);
  expected.resize(2 * kUnitBytes);
  EXPECT_EQ(bytes_in(body), expected);
  EXPECT_TRUE(resize(body, 10, Resize::kAtLeast).is_good());
  EXPECT_EQ(body->size_bytes, 2 * kUnitBytes);
}

TEST_F(WriteRequestsTest, ATruncationInsideAUnitThatAReplyHoldsWaitsForMemoryToCloneIt) {
  const ObjectPtr body = make();
  const auto handle = open(body);
  write_now(*handle, 0, bytes_of(kUnitBytes, 3));
  ReadPlan reply;
  {
    const auto lock = body->lock();
    reply = body->plan_read(0, kUnitBytes);
  }
  Reservation all = pool.try_reserve(pool.limit_bytes() - kSealingBytes - kUnitBytes);
  Answer answer;
  requests.resize(body, 100, Resize::kExactly, into(answer));
  EXPECT_EQ(answer.count, 0);
  all = Reservation();
  while (resumer.resume()) {
  }
  EXPECT_TRUE(answer.is_good());
  EXPECT_EQ(bytes_in(body).size(), 100u);
  ASSERT_EQ(reply.reply.pieces.size(), 1u);
  EXPECT_EQ(std::memcmp(reply.reply.pieces[0].iov_base, bytes_of(kUnitBytes, 3).data(), kUnitBytes), 0) << "the reader's bytes stay";
}

TEST_F(WriteRequestsTest, RangesAreZeroedAndRoomIsPromised) {
  const ObjectId id = put_body(3 * kUnitBytes);
  const ObjectPtr body = object(id);
  const auto handle = open(body);
  Bytes expected = bytes_of(3 * kUnitBytes, id.value);
  EXPECT_TRUE(allocate(*handle, AllocateMode::kPunchHole, 100, 2 * kUnitBytes).is_good());
  std::fill(expected.begin() + 100, expected.begin() + 100 + 2 * static_cast<ptrdiff_t>(kUnitBytes), std::byte{});
  EXPECT_TRUE(allocate(*handle, AllocateMode::kZeroRange, 3 * kUnitBytes - 10, 20).is_good());
  std::fill(expected.end() - 10, expected.end(), std::byte{});
  expected.resize(3 * kUnitBytes + 10);
  const Answer loaded = [&] {
    Answer answer;
    load(body, answer);
    return answer;
  }();
  EXPECT_TRUE(loaded.is_good());
  EXPECT_EQ(bytes_in(body), expected);
  EXPECT_TRUE(allocate(*handle, AllocateMode::kKeepSize, 0, 8 * kMiB).is_good());
  EXPECT_EQ(body->size_bytes, expected.size());
  EXPECT_GE(body->reserved_bytes, 8 * kMiB);
  EXPECT_TRUE(allocate(*handle, AllocateMode::kExtend, 0, 0).is_error(Code::kInvalid));
  EXPECT_TRUE(allocate(*handle, AllocateMode::kKeepSize, 0, 2 * kGiB).is_error(Code::kNoSpace)) << "it can never fit";
}

// --- raw files ---

TEST_F(WriteRequestsTest, AnEmptyFileSizedBeyondTheOptionIsOneToOneWithABackingFile) {
  const ObjectPtr body = make_raw();
  const auto handle = open(body);
  const Bytes bytes = bytes_of(5000, 3);
  write_now(*handle, kMiB, bytes);
  EXPECT_EQ(body->size_bytes, kRawAbove + kMiB);
  const Bytes all = bytes_in(body);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), all.begin() + kMiB));
  EXPECT_EQ(counters.write_volume_bytes, bytes.size());
  EXPECT_EQ(pool.held_bytes(), 0u);
  EXPECT_TRUE(resize(body, kMiB + 100).is_good());
  EXPECT_EQ(bytes_in(body).size(), kMiB + 100);
  EXPECT_TRUE(allocate(*handle, AllocateMode::kPunchHole, kMiB, 50).is_good());
  EXPECT_EQ(bytes_in(body)[kMiB + 49], std::byte{});
  EXPECT_EQ(bytes_in(body)[kMiB + 50], bytes[50]);
  EXPECT_TRUE(allocate(*handle, AllocateMode::kExtend, 0, 2 * kMiB).is_good());
  EXPECT_EQ(body->size_bytes, 2 * kMiB);
  const ObjectPtr written = make();
  write_now(*open(written), 0, bytes);
  EXPECT_TRUE(resize(written, kRawAbove + 1).is_good());
  EXPECT_FALSE(written->raw) << "only an empty one";
}

TEST_F(WriteRequestsTest, AFailedWriteOfARawFileIsTold) {
  const ObjectPtr body = make_raw();
  const auto handle = open(body);
  on_write = [](const VolumeCall&) { return Fault{.sys_errno = EIO}; };
  Told<size_t> told;
  write(*handle, 0, bytes_of(100, 1), told);
  EXPECT_TRUE(told.is_error(Code::kIo));
  EXPECT_EQ(counters.errors_volume_write, 1u);
  {
    const auto lock = body->lock();
    EXPECT_TRUE(body->lacks_a_write());
    EXPECT_TRUE(handle->kernel_cuts);
  }
  on_write = nullptr;
  write_now(*handle, 0, bytes_of(100, 1));
  const auto lock = body->lock();
  EXPECT_FALSE(body->lacks_a_write()) << "what was missing is there";
}

TEST_F(WriteRequestsTest, AWriteThatEndsInARawFileThatWasEmptiedMeanwhileIsNotToBeSynced) {
  const ObjectPtr body = make_raw();
  const auto handle = open(body);
  ExtentId extent;
  on_write = [&](const VolumeCall&) {  // as an open with O_TRUNC, and the keeper after it
    {
      const auto lock = body->lock();
      extent = std::exchange(body->base.place, {}).extent;
      body->raw.reset();
      body->raw_unjournaled = false;
      body->size_bytes = 0;
    }
    EXPECT_TRUE(extents.remove(extent, PlaceKind::kRaw));
    return Fault{};
  };
  Told<size_t> told;
  write(*handle, 0, bytes_of(100, 1), told);
  EXPECT_TRUE(told.is(100));
  on_write = nullptr;
  on_sync = [](const VolumeCall&) { return Fault{.sys_errno = EIO}; };
  EXPECT_TRUE(extents.sync({extent}));
  EXPECT_TRUE(extents.told_of_raw({extent})) << "nothing of it is wanted any more";
}

TEST_F(WriteRequestsTest, WritesOfRawFilesBeyondTheirBudgetWaitForTheirTurn) {
  const ObjectPtr body = make_raw();
  const auto handle = open(body);
  const Bytes large = bytes_of(32 * kMiB, 1), small = bytes_of(10, 2);
  Told<size_t> second;
  bool begun = false;
  on_write = [&](const VolumeCall&) {
    if (std::exchange(begun, true)) return Fault{};
    write(*handle, 5, small, second);  // while the first takes all that may be under way
    EXPECT_EQ(second.count, 0);
    EXPECT_EQ(requests.raw_waiting(), 1u);
    return Fault{};
  };
  write_now(*handle, 0, large);
  EXPECT_TRUE(second.is(small.size()));
  EXPECT_EQ(requests.raw_waiting(), 0u);
  Bytes begin = bytes_in(body);
  begin.resize(kMiB);
  EXPECT_EQ(begin, changed({large.begin(), large.begin() + kMiB}, 5, small));
}

TEST_F(WriteRequestsTest, AWriteOfARawFileThatWaitsForRoomHasNoTurnMeanwhile) {
  const ObjectPtr body = make_raw();
  const auto handle = open(body);
  const Bytes first = bytes_of(kBlockBytes, 1), patch = bytes_of(100, 2), large = bytes_of(kMiB, 3);
  write_now(*handle, 0, first);
  space.configure(space.limit_bytes() - space.room_bytes() + kMiB / 2, 0);
  std::vector<Told<size_t>> told(32);  // all that may be under way
  for (size_t i = 0; i < told.size(); ++i) write(*handle, (1 + i) * kMiB, large, told[i]);
  EXPECT_TRUE(std::ranges::all_of(told, [](const auto& each) { return each.count == 0; }));
  EXPECT_EQ(waiting.memory_bytes(), told.size() * kMiB);
  write_now(*handle, 10, patch);  // needs no room
  make_room(100 * kMiB);
  EXPECT_TRUE(std::ranges::all_of(told, [&](const auto& each) { return each.is(large.size()); }));
  EXPECT_EQ(waiting.memory_bytes(), 0u);
  Bytes expected(kMiB);
  expected = changed(expected, 0, changed(first, 10, patch));
  for (size_t i = 0; i < told.size(); ++i) expected.insert(expected.end(), large.begin(), large.end());
  EXPECT_EQ(bytes_in(body), expected);
}

TEST_F(WriteRequestsTest, AWriteOfARawFileThatFindsNoRoomFailsAndOnlyBytesThatTheKernelHadTakenAreMissing) {
  for (const WriteOf of : {WriteOf::kCall, WriteOf::kPages}) {
    const ObjectPtr body = make_raw();
    const auto handle = open(body);
    space.configure(space.limit_bytes() - space.room_bytes() + kMiB / 2, 0);
    Told<size_t> told;
    write(*handle, 0, bytes_of(kMiB, 3), told, of);
    EXPECT_EQ(told.count, 0);
    for (int round = 0; round < 3; ++round) make_room(0);
    EXPECT_TRUE(told.is_error(Code::kNoSpace));
    EXPECT_EQ(waiting.memory_bytes(), 0u);
    const auto lock = body->lock();
    EXPECT_EQ(body->lacks_a_write(), of == WriteOf::kPages);
    EXPECT_TRUE(body->sealable()) << "its record does not depend on them";
    EXPECT_TRUE(handle->kernel_cuts);
    space.configure(kGiB, 0);
    space.hope();  // that there may be room: the next call waits for a round again
  }
}

TEST_F(WriteRequestsTest, AWriteThatWaitsGoesOnInTheRawFileThatTheBodyBecame) {
  const ObjectPtr body = make();
  const auto handle = open(body);
  Reservation all = pool.try_reserve(pool.limit_bytes() - kSealingBytes);
  const Bytes bytes = bytes_of(3000, 5);
  Told<size_t> told;
  write(*handle, 1000, bytes, told);
  EXPECT_EQ(told.count, 0);
  EXPECT_TRUE(resize(body, kRawAbove + kMiB).is_good());
  EXPECT_TRUE(body->raw);
  while (resumer.resume()) {
  }
  EXPECT_TRUE(told.is(bytes.size()));
  const Bytes whole = bytes_in(body);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), whole.begin() + 1000));
}

// --- what changes where it is ---

TEST_F(WriteRequestsTest, AnAppendMarksTheFileAsChangedInPartAndTheMarkStaysWithIt) {
  const ObjectPtr body = make();
  write_now(*open(body), 0, bytes_of(5000, 1));
  EXPECT_FALSE(body->in_place);
  const auto append = open(body);
  append->request.append = true;
  {
    const Tree::Read read = tree.read();
    const auto lock = body->lock();
    append->weight_of_changes = InPlaceChanges::weight_of(read, *body, append->request);
  }
  write_now(*append, 5000, bytes_of(10, 2));
  EXPECT_TRUE(body->in_place);
  {
    const auto lock = body->lock();
    EXPECT_EQ(in_place_mark_of(body->attributes), InPlace::kPartly);
    in_place.judge(*append);
    EXPECT_EQ(body->rewriters, 0u);
  }
  EXPECT_TRUE(body->changed_in_part);
}

TEST_F(WriteRequestsTest, AChunkThatIsStoredAgainAsAWholeIsNotChangedInPart) {
  const ObjectPtr body = make();
  const Bytes bytes = bytes_of(5000, 1);
  write_now(*open(body), 0, bytes);
  for (int time = 0; time < 3; ++time) {
    const auto handle = open(body);
    {
      const Tree::Read read = tree.read();
      const auto lock = body->lock();
      handle->weight_of_changes = InPlaceChanges::weight_of(read, *body, handle->request);
    }
    write_now(*handle, 0, bytes);
    const auto lock = body->lock();
    in_place.judge(*handle);
  }
  EXPECT_TRUE(body->in_place);
  EXPECT_FALSE(body->changed_in_part);
  const auto lock = body->lock();
  EXPECT_EQ(in_place_mark_of(body->attributes), InPlace::kWhole);
}

TEST_F(WriteRequestsTest, WhatIsPatchedWhileItIsFilledSaysSoWithItsAttributes) {
  const ObjectPtr body = make();
  const auto handle = open(body);
  body->write_handles = 1;
  const auto judged = [&] {
    const auto lock = body->lock();
    in_place.judge(*handle);
    return in_place_mark_of(body->attributes);
  };
  write_now(*handle, 0, bytes_of(5000, 1));
  EXPECT_EQ(judged(), InPlace::kNo);
  write_now(*handle, 0, bytes_of(10, 2));
  EXPECT_EQ(judged(), InPlace::kPatched);
  EXPECT_TRUE(body->patched);
  write_now(*handle, 10, bytes_of(4990, 3));
  EXPECT_EQ(judged(), InPlace::kNo) << "all of it was stored twice";
  EXPECT_FALSE(body->patched);
}

TEST_F(WriteRequestsTest, WhatIsPatchedSaysSoBeforeItIsClosed) {
  const ObjectPtr body = make();
  const auto handle = open(body);
  const auto mark = [&] {
    const auto lock = body->lock();
    return in_place_mark_of(body->attributes);
  };
  write_now(*handle, 0, bytes_of(5000, 1));
  EXPECT_EQ(mark(), InPlace::kNo);
  write_now(*handle, 0, bytes_of(10, 2));
  EXPECT_EQ(mark(), InPlace::kPatched) << "the daemon may die while it is open";
}

// On a volume that was full just then.
TEST_F(WriteRequestsTest, AMarkForWhichThereWasNoRoomIsPutWhenTheFileIsClosed) {
  const ObjectPtr body = make();
  const auto handle = open(body);
  write_now(*handle, 0, bytes_of(5000, 1));
  const uint64_t rest = space.free_bytes();
  ASSERT_TRUE(space.try_reserve(rest));
  in_place.note_locked(handle.get());
  const auto lock = body->lock();
  EXPECT_EQ(in_place_mark_of(body->attributes), InPlace::kNo);
  space.release(rest);
  in_place.judge(*handle);
  EXPECT_EQ(in_place_mark_of(body->attributes), InPlace::kPartly);
}

// ... and by a reader, where it was the last writer who found none.
TEST_F(WriteRequestsTest, TheMarkOfWhatIsPatchedIsPutWhenAReaderClosesIt) {
  const ObjectPtr body = make();
  const auto handle = open(body);
  write_now(*handle, 0, bytes_of(5000, 1));
  const auto lock = body->lock();
  body->patched = true;  // and for its mark there was no room
  Handle only_reads;
  only_reads.object = body;
  in_place.judge(only_reads);
  EXPECT_EQ(in_place_mark_of(body->attributes), InPlace::kPatched);
}

TEST_F(WriteRequestsTest, PagesOfAMappingAreNotJudged) {
  const ObjectPtr body = make();
  const auto handle = open(body);
  body->write_handles = 1;
  write_now(*handle, 0, bytes_of(5000, 1));
  in_place.note_page_written(handle.get());
  write_now(*handle, 0, bytes_of(10, 2));
  const auto lock = body->lock();
  in_place.judge(*handle);
  EXPECT_FALSE(body->patched);
  EXPECT_EQ(in_place_mark_of(body->attributes), InPlace::kNo);
}

TEST_F(WriteRequestsTest, ABodyThatIsNotToBeChangedIsNot) {
  const ObjectPtr body = make();
  const auto handle = open(body);
  const Bytes bytes = bytes_of(5000, 1);
  write_now(*handle, 0, bytes);
  may_change = fail(Code::kReadOnly, "of a peer");
  Told<size_t> told, nothing;
  write(*handle, 0, bytes_of(10, 2), told);
  EXPECT_TRUE(told.is_error(Code::kReadOnly));
  EXPECT_TRUE(allocate(*handle, AllocateMode::kPunchHole, 0, 100).is_error(Code::kReadOnly));
  write(*handle, 0, {}, nothing);
  EXPECT_TRUE(nothing.is(0)) << "it changes nothing";
  EXPECT_EQ(bytes_in(body), bytes);
}

TEST_F(WriteRequestsTest, OfAVolumeThatIsGoneAWriteWithoutRoomSaysSo) {
  const ObjectPtr body = make();
  const auto handle = open(body);
  refusals.set_gone(Error{Code::kIo, 0, "no such device"});
  Told<size_t> told;
  write(*handle, space.limit_bytes(), bytes_of(10, 2), told);
  EXPECT_TRUE(told.is_error(Code::kIo));
}

TEST_F(WriteRequestsTest, ALockedFileIsNoChunk) {
  const ObjectPtr body = make();
  const auto handle = open(body);
  write_now(*handle, 0, bytes_of(5000, 1));
  EXPECT_TRUE(in_place.closes_quietly(handle.get()));
  in_place.note_locked(handle.get());
  EXPECT_TRUE(body->in_place);
  EXPECT_TRUE(body->changed_in_part);
  EXPECT_FALSE(in_place.closes_quietly(handle.get()));
}

// --- many at once ---

TEST_F(WriteRequestsTest, WritersOfOneBodyAndItsSizeDoNotMix) {
  const ObjectPtr body = make();
  constexpr int kThreads = 3, kRounds = 30;
  std::atomic<int> answered{0};
  std::vector<std::thread> threads;
  for (int each = 0; each < kThreads; ++each)
    threads.emplace_back([&, each] {
      const auto handle = open(body);
      const Bytes mine(kUnitBytes / 2, static_cast<std::byte>(each + 1));
      for (int round = 0; round < kRounds; ++round)
        requests.write(handle.get(), static_cast<uint64_t>(each) * mine.size(), mine, [&](Result<size_t> result) {
          EXPECT_TRUE(result);
          ++answered;
        });
    });
  threads.emplace_back([&] {
    for (int round = 0; round < kRounds; ++round)
      requests.resize(body, kThreads * kUnitBytes / 2 + static_cast<uint64_t>(round), Resize::kAtLeast, [&](Status status) {
        EXPECT_TRUE(status);
        ++answered;
      });
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered, (kThreads + 1) * kRounds);
  const Bytes all = bytes_in(body);
  for (int each = 0; each < kThreads; ++each)
    for (size_t at = 0; at < kUnitBytes / 2; ++at)
      ASSERT_EQ(all[static_cast<size_t>(each) * kUnitBytes / 2 + at], static_cast<std::byte>(each + 1));
}

}  // namespace write_requests_test
}  // namespace kvcachefs

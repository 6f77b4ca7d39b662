// What is queued to be read ahead: who wants it reads it at once, and what nobody wants any more costs nothing. One thread, a
// clock that stands still, reads that are held until they are let go: the same every time.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/base/clock.h"
#include "store/base/units.h"
#include "store/store.h"
#include "store/volume/fault_volume.h"
#include "store/volume/test_directory.h"
#include "tests/model/await.h"
#include "tests/model/holding_volume.h"

namespace kvcachefs::testing {
namespace prefetch_queue_test {

constexpr uint64_t kUnderWay = 16 * kMiB;  // what the volume is given at a time
constexpr const char* kChains[] = {"alpha", "beta", "gamma", "delta"};

bool is_background_read(const IoRequest& request) { return request.kind == IoRequest::Kind::kRead && !request.urgent; }

struct PendingRead {
  bool answered = false;
  std::optional<Result<ReadReply>> reply;
};

class PrefetchQueue : public ::testing::Test {
 protected:
  ~PrefetchQueue() override {
    if (store_) close();
  }

  // Each chain of so many bodies, none of them in RAM, and nothing known of readers.
  void make(uint64_t chunks, uint64_t chunk_bytes, uint64_t memory_bytes) {
    chunks_ = chunks;
    chunk_bytes_ = chunk_bytes;
    ASSERT_FALSE(directory_.path().empty());
    options_.background = false;
    options_.node = "test";
    options_.index_directory = directory_.path() + "/index";
    options_.memory_bytes = memory_bytes;
    options_.pack_below_bytes = 8 * kMiB;
    mount();
    for (const char* chain : kChains) {
      for (uint64_t chunk = 0; chunk < chunks; ++chunk) put(name(chain, chunk), content(chain, chunk));
      EXPECT_TRUE(wait<void>([&](auto done) { store_->drain(true, std::move(done)); }));
    }
    close();
    mount();
  }
  void mount() {
    auto store = open_store(volume_, options_, clock_, "test");
    ASSERT_TRUE(store) << store.error().message;
    store_ = std::move(*store);
  }
  void close() {
    volume_->let_go();
    EXPECT_TRUE(store_->close());
    store_.reset();
  }
  void pump() {
    for (int quiet = 0; quiet < 3;) quiet = store_->pump() ? 0 : quiet + 1;
  }
  // As a thread of fs/ in its pauses.
  void help() {
    while (store_->help()) {
    }
  }
  void pass_time(int64_t ns) {
    clock_.advance_ns(ns);
    pump();
  }

  static std::string name(const std::string& chain, uint64_t chunk) { return fmt::format("{}@{:06x}.kv", chain, chunk); }
  std::string content(const std::string& chain, uint64_t chunk) const {
    return std::string(chunk_bytes_, static_cast<char>(chain[0] + static_cast<char>(chunk % 64)));
  }
  static Caller caller_of(const std::string& chain) {
    return {.uid = 0, .gid = 0, .thread_id = static_cast<uint32_t>(chain[0])};
  }
  template <class T, class Call>
  Result<T> wait(Call call) {
    return await<T>(*store_, call, [] {});
  }
  void put(const std::string& name, const std::string& content) {
    auto made = store_->create(kRootId, "temporary", 0644, {.read = false, .write = true}, caller_of(name));
    ASSERT_TRUE(made);
    EXPECT_TRUE(wait<size_t>([&](auto done) {
      store_->write(made->second, 0, std::as_bytes(std::span(content)), std::move(done));
    }));
    EXPECT_TRUE(wait<void>([&](auto done) { store_->flush(made->second, std::move(done)); }));
    store_->release(made->second);
    EXPECT_TRUE(wait<void>([&](auto done) {
      store_->rename(kRootId, "temporary", kRootId, name, RenameMode::kReplace, caller_of(name), std::move(done));
    }));
  }
  // As an engine does before it reads.
  void probe(const std::string& chain) {
    for (uint64_t chunk = 0; chunk < chunks_; ++chunk) EXPECT_TRUE(store_->lookup(kRootId, name(chain, chunk), caller_of(chain)));
  }
  // All of it is read ahead, as far as the volume takes it: its reads of that kind are held.
  void probe_all() {
    volume_->hold(is_background_read);
    for (const char* chain : kChains) probe(chain);
    pass_time(3'000'000);
  }
  uint64_t held_bytes() {
    uint64_t bytes = 0;
    volume_->wait_until_held([&](const std::vector<IoRequest>& held) {
      for (const IoRequest& request : held)
        for (const auto& piece : request.pieces) bytes += piece.size();
      return true;
    });
    return bytes;
  }
  Handle* open(const std::string& chain, uint64_t chunk) {
    auto found = store_->lookup(kRootId, name(chain, chunk), caller_of(chain));
    EXPECT_TRUE(found);
    auto opened = store_->open(found->id, {}, caller_of(chain));
    EXPECT_TRUE(opened) << opened.error().message;
    return opened.value_or(nullptr);
  }
  std::shared_ptr<PendingRead> start_read(Handle* handle, uint64_t offset, uint64_t length) {
    auto pending = std::make_shared<PendingRead>();
    store_->read(handle, offset, length, [pending](Result<ReadReply> reply) {
      pending->reply = std::move(reply);
      pending->answered = true;
    });
    return pending;
  }
  // Reads all of it, and keeps nothing. False if the answer does not come.
  bool read(const std::string& chain, uint64_t chunk) {
    Handle* handle = open(chain, chunk);
    auto pending = start_read(handle, 0, chunk_bytes_);
    if (!pending->answered) pump();
    store_->release(handle);
    if (!pending->answered) return false;
    EXPECT_TRUE(*pending->reply);
    std::string bytes;
    for (const iovec& piece : (*pending->reply)->pieces) bytes.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    EXPECT_TRUE(bytes == content(chain, chunk)) << name(chain, chunk);
    return true;
  }
  // Every byte that was read ahead was used or left RAM, once nothing is in RAM; and nothing is.
  void expect_all_accounted() {
    pump();
    store_->drop_caches();
    const StoreStatus status = store_->status();
    EXPECT_EQ(status.prefetch_read_bytes, status.prefetch_used_bytes + status.prefetch_wasted_bytes);
    EXPECT_EQ(status.memory_used_bytes, 0u);
  }

  test::TestDirectory directory_;  // for the index
  uint64_t chunks_ = 0, chunk_bytes_ = 0;
  ManualClock clock_{1'700'000'000'000'000'000};
  StoreOptions options_;
  std::shared_ptr<HoldingVolume> volume_ = std::make_shared<HoldingVolume>(make_sim_volume());
  std::unique_ptr<Store> store_;
};

TEST_F(PrefetchQueue, TheVolumeIsGivenSoMuchAtATimeAndMemoryIsTakenForNoMore) {
  make(8, kMiB, 256 * kMiB);
  probe_all();
  EXPECT_EQ(held_bytes(), kUnderWay);
  EXPECT_EQ(store_->status().memory_used_bytes, kUnderWay);
  volume_->let_go();
  pump();
  EXPECT_EQ(store_->status().prefetch_read_bytes, 32 * kMiB);
  for (const char* chain : kChains)
    for (uint64_t chunk = 0; chunk < chunks_; ++chunk) EXPECT_TRUE(read(chain, chunk));
  EXPECT_EQ(store_->status().prefetch_used_bytes, 32 * kMiB);
  EXPECT_EQ(store_->status().read_bytes_from_volume, 32 * kMiB) << "something was read twice";
  expect_all_accounted();
}

TEST_F(PrefetchQueue, WhoReadsABodyThatIsQueuedDoesNotWaitForTheQueue) {
  make(8, kMiB, 256 * kMiB);
  probe_all();
  ASSERT_EQ(held_bytes(), kUnderWay);
  for (const char* chain : kChains) EXPECT_TRUE(read(chain, 7)) << chain << ": behind all that is queued";
  EXPECT_EQ(held_bytes(), kUnderWay);
  volume_->let_go();
  pump();
  EXPECT_EQ(store_->status().read_bytes_from_volume, 32 * kMiB) << "something was read twice";
  expect_all_accounted();
}

TEST_F(PrefetchQueue, WhatFollowsABodyThatWasQueuedComesWithIt) {
  make(128, 64 * kKiB, 256 * kMiB);
  probe_all();
  ASSERT_GT(held_bytes(), kUnderWay - kMiB);  // no room for a whole read
  ASSERT_TRUE(read("delta", 100));
  pump();
  const StoreStatus before = store_->status();
  EXPECT_EQ(before.prefetch_read_bytes, 15 * 64 * kKiB);
  for (uint64_t chunk = 101; chunk < 116; ++chunk) EXPECT_TRUE(read("delta", chunk));
  EXPECT_EQ(store_->status().prefetch_used_bytes, 15 * 64 * kKiB);
  EXPECT_EQ(store_->status().read_bytes_from_volume, before.read_bytes_from_volume) << "it was not in RAM";
  volume_->let_go();
  expect_all_accounted();
}

TEST_F(PrefetchQueue, WhatIsQueuedAndNotWantedAnyMoreIsNotRead) {
  make(8, kMiB, 256 * kMiB);
  probe_all();
  ASSERT_EQ(held_bytes(), kUnderWay);
  pass_time(6'000'000'000);  // nobody came
  volume_->let_go();
  pump();
  // What was under way counts, and is used by who comes after all.
  EXPECT_EQ(store_->status().read_bytes_from_volume, kUnderWay);
  EXPECT_EQ(store_->status().prefetch_read_bytes, kUnderWay);
  ASSERT_TRUE(read("alpha", 0));
  EXPECT_EQ(store_->status().read_bytes_from_volume, kUnderWay);
  EXPECT_EQ(store_->status().prefetch_used_bytes, kMiB);
  pass_time(6'000'000'000);
  expect_all_accounted();
}

TEST_F(PrefetchQueue, WhatWasGivenUpCanBeReadAheadAgain) {
  make(8, kMiB, 256 * kMiB);
  probe_all();
  pass_time(6'000'000'000);
  for (const char* chain : kChains) probe(chain);
  pass_time(3'000'000);
  volume_->let_go();
  pump();
  EXPECT_EQ(store_->status().prefetch_read_bytes, 32 * kMiB);
  EXPECT_EQ(store_->status().read_bytes_from_volume, 32 * kMiB);
  expect_all_accounted();
}

TEST_F(PrefetchQueue, OfALargeBodyAlsoNoMoreIsUnderWayAndItsReaderDoesNotWaitForTheRest) {
  make(2, 24 * kMiB, 512 * kMiB);
  volume_->hold(is_background_read);
  probe("alpha");
  pass_time(3'000'000);
  EXPECT_EQ(held_bytes(), kUnderWay);
  Handle* handle = open("alpha", 0);
  auto pending = start_read(handle, 23 * kMiB, kMiB);
  EXPECT_TRUE(pending->answered);
  volume_->let_go();
  pump();
  EXPECT_EQ(store_->status().read_bytes_from_volume, 48 * kMiB) << "something was read twice, or not at all";
  EXPECT_EQ(store_->status().prefetch_read_bytes, 47 * kMiB);
  store_->release(handle);
  pending.reset();
  expect_all_accounted();
}

TEST_F(PrefetchQueue, ALargeBodyThatIsGivenUpHalfWayCountsWithWhatWasRead) {
  make(2, 24 * kMiB, 512 * kMiB);
  volume_->hold(is_background_read);
  probe("alpha");
  pass_time(3'000'000);
  ASSERT_EQ(held_bytes(), kUnderWay);
  pass_time(6'000'000'000);
  volume_->let_go();
  pump();
  EXPECT_EQ(store_->status().read_bytes_from_volume, kUnderWay);
  EXPECT_EQ(store_->status().prefetch_read_bytes, kUnderWay);
  expect_all_accounted();
}

TEST_F(PrefetchQueue, WhatIsRemovedWhileItIsQueuedHoldsNothingUp) {
  make(8, kMiB, 256 * kMiB);
  probe_all();
  for (uint64_t chunk = 3; chunk < 8; ++chunk)
    EXPECT_TRUE(wait<void>([&](auto done) {
      store_->unlink(kRootId, name("gamma", chunk), caller_of("gamma"), std::move(done));
    }));
  volume_->let_go();
  pump();
  for (const char* chain : {"alpha", "beta", "delta"})
    for (uint64_t chunk = 0; chunk < 8; ++chunk) EXPECT_TRUE(read(chain, chunk));
  EXPECT_GE(store_->status().prefetch_used_bytes, 24 * kMiB);
  pass_time(6'000'000'000);
  expect_all_accounted();
}

// A body that is passed through once it is whole: who maps it does not have it read page by page because it was queued.
TEST_F(PrefetchQueue, AnOpenByWhoMapsWaitsForABodyThatIsQueued) {
  make(2, 5 * kMiB, 512 * kMiB);
  if (Status status = store_->expect_passthrough(); !status) GTEST_SKIP() << status.error().message;
  Handle* mapped = open("alpha", 0);
  store_->note_mapped_read(mapped);
  store_->release(mapped);
  pass_time(40'000'000'000);
  store_->drop_caches();
  probe_all();
  ASSERT_EQ(held_bytes(), kUnderWay);
  Handle* reader = open("delta", 1);
  volume_->hold([](const IoRequest& request) { return request.kind == IoRequest::Kind::kRead; });
  bool came = false;
  store_->await_loads(reader, [&] { came = true; });
  EXPECT_FALSE(came);
  volume_->let_go();
  pump();
  EXPECT_TRUE(came);
  EXPECT_TRUE(store_->backing_file(store_->object_of(reader)).in_memory);
  store_->release(reader);
}

// Also where more of it lies at the end of the queue of what goes than is looked at for a single body.
TEST_F(PrefetchQueue, WhatIsExpectedStaysInRamWhileAnythingElseCanGo) {
  make(400, 64 * kKiB, 64 * kMiB);
  const auto read_all = [&](const char* chain) {
    for (uint64_t chunk = 0; chunk < chunks_; ++chunk) ASSERT_TRUE(read(chain, chunk)) << chain << chunk;
  };
  read_all("alpha");
  pass_time(3'000'000'000);  // its reader is gone
  probe("alpha");
  read_all("beta");
  read_all("delta");  // does not fit beside the others
  read_all("alpha");
  EXPECT_EQ(store_->status().read_bytes_from_volume, 1200 * 64 * kKiB) << "what was expected had left RAM";
}

// The volume is slow once, and fast again: what was queued meanwhile does not count as slow.
TEST_F(PrefetchQueue, HowLongABodyWasQueuedDoesNotWidenTheWindows) {
  make(200, 256 * kKiB, 256 * kMiB);
  volume_->hold(is_background_read);
  for (const char* chain : {"beta", "gamma", "delta"}) probe(chain);
  pass_time(3'000'000);
  ASSERT_GT(held_bytes(), kUnderWay - kMiB);  // no room for a whole read
  clock_.advance_ns(1'000'000'000);
  volume_->let_go();
  volume_->hold(is_background_read);
  pump();
  ASSERT_GT(held_bytes(), 4 * kMiB) << "what was queued";
  clock_.advance_ns(1'000'000);
  volume_->let_go();
  pump();
  const uint64_t before = store_->status().prefetch_read_bytes;
  uint64_t chunk = 0;
  for (; chunk < 60; ++chunk) {
    pass_time(4'000'000);
    ASSERT_TRUE(read("alpha", chunk));
  }
  pump();
  EXPECT_GE(store_->status().prefetch_read_bytes - before, chunk * chunk_bytes_ + 4 * kMiB);
  EXPECT_LE(store_->status().prefetch_read_bytes - before, chunk * chunk_bytes_ + 20 * kMiB);
}

TEST_F(PrefetchQueue, AStoreThatIsClosedWithAFullQueueCloses) {
  make(8, kMiB, 256 * kMiB);
  probe_all();
  ASSERT_EQ(held_bytes(), kUnderWay);
  close();
  mount();
  for (const char* chain : kChains) EXPECT_TRUE(read(chain, 7));
}

// --- somebody helps ---

TEST_F(PrefetchQueue, WhoHelpsReadsAheadSmallBodies) {
  make(64, 64 * kKiB, 256 * kMiB);
  EXPECT_TRUE(read("alpha", 0));  // its extent is open now
  probe("alpha");
  clock_.advance_ns(3'000'000);
  const uint64_t before = store_->status().read_bytes_from_volume;
  help();
  const StoreStatus status = store_->status();
  EXPECT_EQ(status.prefetch_read_bytes, 63 * 64 * kKiB);
  EXPECT_EQ(status.read_bytes_from_volume - before, 63 * 64 * kKiB);
  store_->leave_off();
  for (uint64_t chunk = 0; chunk < chunks_; ++chunk) EXPECT_TRUE(read("alpha", chunk));
  EXPECT_EQ(store_->status().read_bytes_from_volume - before, 63 * 64 * kKiB) << "something was read twice";
  expect_all_accounted();
}

TEST_F(PrefetchQueue, WhatArrivesIsTakenInByWhoHelpsAndByNobodyElse) {
  make(33, 64 * kKiB, 256 * kMiB);
  EXPECT_TRUE(read("alpha", 0));
  probe("alpha");
  clock_.advance_ns(3'000'000);
  volume_->hold(is_background_read);
  help();
  ASSERT_GT(held_bytes(), 0u);
  volume_->let_go();  // on this thread
  EXPECT_EQ(store_->status().prefetch_read_bytes, 0u);
  EXPECT_TRUE(store_->help());
  EXPECT_EQ(store_->status().prefetch_read_bytes, 64 * kKiB) << "one body at a time";
  Handle* handle = open("alpha", 2);
  auto pending = start_read(handle, 0, chunk_bytes_);
  EXPECT_FALSE(pending->answered) << "it has arrived, and was not taken in";
  EXPECT_TRUE(store_->help());
  EXPECT_TRUE(pending->answered);
  store_->release(handle);
  store_->leave_off();
  pump();  // the rest
  EXPECT_EQ(store_->status().prefetch_read_bytes, 32 * 64 * kKiB);
  pending.reset();
  expect_all_accounted();
}

// A list of names goes out when no more of it comes, which nobody tells.
TEST_F(PrefetchQueue, WhoHelpsKeepsTheDeadlinesOfPlans) {
  make(40, 64 * kKiB, 256 * kMiB);  // whole reads of 1 MiB go at once
  EXPECT_TRUE(read("beta", 0));     // all lie in one extent, which is open now
  help();
  const uint64_t before = store_->status().prefetch_read_bytes;
  probe("alpha");
  help();
  EXPECT_LT(store_->status().prefetch_read_bytes - before, 40 * 64 * kKiB);
  clock_.advance_ns(3'000'000);
  EXPECT_TRUE(store_->help());
  help();
  EXPECT_EQ(store_->status().prefetch_read_bytes - before, 40 * 64 * kKiB);
  store_->leave_off();
  expect_all_accounted();
}

TEST_F(PrefetchQueue, LargeBodiesAndFilesThatAreNotOpenAreNotForWhoHelps) {
  make(8, kMiB, 256 * kMiB);
  EXPECT_TRUE(read("alpha", 0));
  probe("alpha");
  clock_.advance_ns(3'000'000);
  volume_->hold(is_background_read);
  help();
  EXPECT_EQ(held_bytes(), 0u);
  pump();
  EXPECT_EQ(held_bytes(), 7 * kMiB);
  volume_->let_go();
  EXPECT_EQ(store_->status().prefetch_read_bytes, 7 * kMiB) << "nobody else takes in what is large";
  store_->leave_off();
  expect_all_accounted();
}

}  // namespace prefetch_queue_test
}  // namespace kvcachefs::testing

// A node evicts what clients of another were told of a moment ago: there it is seen, opened and read until their lease is over. Whatever anybody
// does to the name meanwhile counts at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "store/base/units.h"
#include "store/testing/test_store.h"

namespace kvcachefs {
namespace store_peer_leases_test {

using testing::TestStore;

constexpr size_t kChunk = 32 * kKiB;
constexpr int kStored = 550;
constexpr int kLeaseSeconds = 20;  // and one that the kernel may go by what it was told

StoreOptions options_of(const char* name, uint64_t lease_ms) {
  StoreOptions options = testing::node_options(name);
  options.capacity_bytes = 64 * kMiB;
  options.keep_free_bytes = 1;
  options.lease_ms = lease_ms;
  options.policy = "lru";
  return options;
}

class StorePeerLeases : public ::testing::Test {
 protected:
  explicit StorePeerLeases(uint64_t lease_ms = kLeaseSeconds * 1000) : b(options_of("other", lease_ms), a) {}
  void SetUp() override {
    a.mkdir("d");
    for (int number = 0; number < kStored; ++number) ASSERT_TRUE(put(a, number, payload_of(number)));
    publish();
  }
  void pass(int seconds) { clock_.advance_ns(seconds * 1'000'000'000LL); }
  void publish() { testing::publish(a, &b); }
  static std::string name_of(int number) { return fmt::format("d/{:032x}.bin", static_cast<uint64_t>(number + 1) * 0x9E3779B97F4A7C15); }
  static std::string payload_of(int number) { return TestStore::payload(number, kChunk); }
  bool put(TestStore& store, int number, const std::string& content) {
    const auto thread = static_cast<uint32_t>(number + 1);  // what one thread writes would be taken for a chain
    clock_.advance_ns(10'000'000);
    return store.write_file("tmp", content, thread) && store.rename("tmp", name_of(number), thread);
  }
  // Some of what is oldest goes. The other node has not read that when this returns: nothing is done on it.
  void evict(bool stays_full = false) {
    ASSERT_TRUE(a->set_option("capacity", "16M"));
    for (int second = 0; second < 60 && a->status().eviction_objects < 30; ++second) {
      pass(1);
      a.settle();
    }
    ASSERT_TRUE(stays_full || a->set_option("capacity", "64M"));
    a.drain();
    for (int number = 0; number < kStored; ++number)
      if (!a.exists(name_of(number))) gone_.push_back(number);
    ASSERT_GE(gone_.size(), 30u);
    ASSERT_LE(gone_.size(), 300u);
  }
  // ACKS are written and read once a second or so.
  void until_dead_bytes(uint64_t bytes) {
    for (int i = 0; i < 5000 && a->status().reclaimable_bytes > bytes; ++i) {
      if (i < 400) clock_.advance_ns(100'000'000);  // 40 s, then as the machine's: the node is not silent
      b.settle();
      a.settle();
      if (i > 100) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_EQ(a->status().reclaimable_bytes, bytes);
  }
  bool is_whole(TestStore& store, int number) { return store.read_file(name_of(number)) == payload_of(number); }

  ManualClock clock_{1'800'000'000'000'000'000};
  const std::jthread passes_{[this](const std::stop_token& stop) {  // as the machine's: calls wait for claims
    for (; !stop.stop_requested(); std::this_thread::sleep_for(std::chrono::milliseconds(1))) clock_.advance_ns(1'000'000);
  }};
  TestStore a{options_of("test", 0), clock_};
  TestStore b;
  std::vector<int> gone_;
};

TEST_F(StorePeerLeases, WhatWasProbedIsReadUntilItsLeaseIsOver) {
  ASSERT_NO_FATAL_FAILURE(evict());
  ASSERT_TRUE(b.exists(name_of(gone_[0])));
  ASSERT_TRUE(b.exists(name_of(gone_[1])));
  b.refresh();
  EXPECT_FALSE(b.exists(name_of(gone_[2]))) << "nobody was told of it";
  EXPECT_TRUE(is_whole(b, gone_[0]));
  EXPECT_FALSE(a.exists(name_of(gone_[0])));
  pass(kLeaseSeconds - 5);
  until_dead_bytes(2 * kChunk);
  ASSERT_FALSE(HasFailure()) << "all but these came back";
  pass(7);
  b.settle();
  EXPECT_FALSE(b.exists(name_of(gone_[1]))) << "not used again";
  pass(kLeaseSeconds);
  b.settle();
  EXPECT_FALSE(b.exists(name_of(gone_[0])));
  until_dead_bytes(0);
  EXPECT_EQ(a.contents(), b.contents());
}

TEST_F(StorePeerLeases, WhoUsesItOnHasItForAMinuteAtMost) {
  ASSERT_NO_FATAL_FAILURE(evict());
  ASSERT_TRUE(b.exists(name_of(gone_[0])));
  b.refresh();
  int seconds = 0;
  for (; seconds < 100 && b.exists(name_of(gone_[0])); seconds += 10) {
    pass(10);
    b.settle();
  }
  EXPECT_EQ(seconds, 60);
  until_dead_bytes(0);
}

TEST_F(StorePeerLeases, WhatIsOpenAtItsEndIsReadOn) {
  ASSERT_NO_FATAL_FAILURE(evict());
  Handle* reader = b.open(name_of(gone_[0]), {.read = true});
  ASSERT_NE(reader, nullptr);
  b.refresh();
  pass(2 * kLeaseSeconds);
  b.settle();
  EXPECT_FALSE(b.exists(name_of(gone_[0])));
  until_dead_bytes(kChunk);
  EXPECT_TRUE(b.read(reader) == payload_of(gone_[0]));
  EXPECT_TRUE(b.close(reader));
  until_dead_bytes(0);
}

TEST_F(StorePeerLeases, WhatWasListedIsStillListedAndRead) {
  ASSERT_NO_FATAL_FAILURE(evict(/*stays_full=*/true));
  const auto directory = b->lookup(kRootId, "d", {});
  ASSERT_TRUE(directory);
  const auto names = [&] {
    std::set<std::string> found;
    for (uint64_t after = 0;;) {
      const auto page = b->list(directory->id, after, 7);
      EXPECT_TRUE(page);
      if (!page || page->empty()) return found;
      for (const DirectoryItem& item : *page) EXPECT_TRUE(found.insert(item.name).second) << item.name << " is listed twice";
      EXPECT_GT(page->back().cookie, after);
      after = page->back().cookie;
    }
  };
  ASSERT_EQ(names().size(), static_cast<size_t>(kStored));
  b.refresh();
  const auto left = names();
  const size_t kept = left.size() - (static_cast<size_t>(kStored) - gone_.size());
  // A 16th of the capacity, of as many as there are: the rest is hidden at once.
  EXPECT_EQ(kept, std::min<size_t>(gone_.size(), 16 * kMiB / 16 / kChunk));
  size_t read = 0;
  for (const int number : gone_) {
    const bool listed = left.contains(name_of(number).substr(2));
    EXPECT_EQ(listed, b.exists(name_of(number)));
    if (listed) read += is_whole(b, number) ? 1 : 0;
  }
  EXPECT_EQ(read, kept);
  pass(2 * kLeaseSeconds + 3);
  b.settle();
  EXPECT_EQ(names().size(), static_cast<size_t>(kStored) - gone_.size());
  until_dead_bytes(0);
}

TEST_F(StorePeerLeases, AnUnlinkHidesAtOnce) {
  const int number = 7;
  ASSERT_TRUE(b.exists(name_of(number)));
  ASSERT_TRUE(a.unlink(name_of(number)));
  a.drain();
  b.refresh();
  EXPECT_FALSE(b.exists(name_of(number)));
}

TEST_F(StorePeerLeases, WhatIsStoredAnewIsSeenAtOnceAndWhenThatIsRemovedNothingComesBack) {
  ASSERT_NO_FATAL_FAILURE(evict());
  ASSERT_TRUE(b.exists(name_of(gone_[0])));
  b.refresh();
  ASSERT_TRUE(is_whole(b, gone_[0]));
  ASSERT_TRUE(put(a, gone_[0], TestStore::payload(7777, kChunk)));
  a.drain();
  b.refresh();
  EXPECT_TRUE(b.read_file(name_of(gone_[0])) == TestStore::payload(7777, kChunk));
  ASSERT_TRUE(a.unlink(name_of(gone_[0])));
  a.drain();
  b.refresh();
  EXPECT_FALSE(b.exists(name_of(gone_[0])));
  until_dead_bytes(0);
}

TEST_F(StorePeerLeases, WhatAThirdNodeStoresOrRemovesCountsAtOnceToo) {
  TestStore c{options_of("third", 0), a};
  for (TestStore* store : {&c, &a, &b, &c}) store->refresh();
  ASSERT_NO_FATAL_FAILURE(evict());
  ASSERT_TRUE(b.exists(name_of(gone_[0])));
  ASSERT_TRUE(b.exists(name_of(gone_[1])));
  ASSERT_TRUE(c.unlink(name_of(gone_[1])));  // it has not read either that it went
  c.drain();
  b.refresh();
  EXPECT_TRUE(b.exists(name_of(gone_[0])));
  EXPECT_FALSE(b.exists(name_of(gone_[1])));
  for (TestStore* store : {&a, &c}) store->refresh();
  pass(2);
  for (TestStore* store : {&b, &a, &c}) store->refresh();
  ASSERT_TRUE(put(c, gone_[0], TestStore::payload(7777, kChunk)));
  c.drain();
  b.refresh();
  EXPECT_TRUE(b.read_file(name_of(gone_[0])) == TestStore::payload(7777, kChunk));
  ASSERT_TRUE(c.unlink(name_of(gone_[0])));
  c.drain();
  b.refresh();
  EXPECT_FALSE(b.exists(name_of(gone_[0])));
}

TEST_F(StorePeerLeases, WhoRemovesItHereTakesNothingFromOthers) {
  ASSERT_NO_FATAL_FAILURE(evict());
  ASSERT_TRUE(b.exists(name_of(gone_[0])));
  b.refresh();
  ASSERT_TRUE(b.unlink(name_of(gone_[0])));
  EXPECT_FALSE(b.exists(name_of(gone_[0])));
  EXPECT_FALSE(b.unlink(name_of(gone_[0])));
  ASSERT_TRUE(put(a, gone_[0], TestStore::payload(7777, kChunk)));  // before it can have heard of that
  publish();
  EXPECT_TRUE(a.read_file(name_of(gone_[0])) == TestStore::payload(7777, kChunk));
  EXPECT_EQ(a.contents(), b.contents());
  until_dead_bytes(0);
}

// The removal waits to be journaled when this node reads that its object went.
TEST_F(StorePeerLeases, WhatWasRemovedHereAMomentBeforeDoesNotComeBack) {
  ASSERT_NO_FATAL_FAILURE(evict());
  ASSERT_TRUE(b.exists(name_of(gone_[0])));
  ASSERT_TRUE(b.unlink(name_of(gone_[0])));
  EXPECT_FALSE(b.exists(name_of(gone_[0])));
  publish();
  EXPECT_FALSE(b.exists(name_of(gone_[0])));
  pass(1);
  publish();
  EXPECT_FALSE(b.exists(name_of(gone_[0])));
}

TEST_F(StorePeerLeases, WhoReplacesItHereIsSeenByAll) {
  ASSERT_NO_FATAL_FAILURE(evict());
  for (const int at : {0, 1, 2}) ASSERT_TRUE(b.exists(name_of(gone_[static_cast<size_t>(at)])));
  b.refresh();
  ASSERT_TRUE(put(b, gone_[0], TestStore::payload(7777, kChunk)));
  Handle* writer = b.open_for_rewrite(name_of(gone_[1]), 7);
  ASSERT_NE(writer, nullptr);
  b.pwrite(writer, 0, TestStore::payload(8888, 5000));
  ASSERT_TRUE(b.close(writer));
  const auto directory = b->lookup(kRootId, "d", {});
  const auto made = b->create(directory->id, name_of(gone_[2]).substr(2), 0644, {.read = true, .write = true}, {.thread_id = 9});
  EXPECT_TRUE(!made && made.error().code == Code::kExists) << "as it was told";
  for (int round = 0; round < 2; ++round) {
    for (TestStore* store : {&b, &a}) {
      EXPECT_TRUE(store->read_file(name_of(gone_[0])) == TestStore::payload(7777, kChunk));
      EXPECT_TRUE(store->read_file(name_of(gone_[1])) == TestStore::payload(8888, 5000));
      publish();
    }
    pass(2 * kLeaseSeconds + 3);
    b.settle();
  }
  EXPECT_EQ(a.contents(), b.contents());
  until_dead_bytes(0);
}

TEST_F(StorePeerLeases, ADirectoryWithSuchANameIsNotEmptyHereUntilItIsRemovedThere) {
  ASSERT_NO_FATAL_FAILURE(evict());
  ASSERT_TRUE(b.exists(name_of(gone_[0])));
  for (int number = 0; number < kStored; ++number) {
    if (a.exists(name_of(number))) {
      ASSERT_TRUE(a.unlink(name_of(number)));
    }
  }
  a.drain();
  b.refresh();
  EXPECT_TRUE(b.exists(name_of(gone_[0])));
  EXPECT_FALSE(b.rmdir("d"));
  ASSERT_TRUE(a.rmdir("d"));
  publish();
  EXPECT_FALSE(b.exists("d"));
  EXPECT_FALSE(b.exists(name_of(gone_[0])));
  a.mkdir("d");
  publish();
  EXPECT_TRUE(b.exists("d"));
  EXPECT_FALSE(b.exists(name_of(gone_[0]))) << "it went with its directory";
  EXPECT_TRUE(b.rmdir("d"));
  pass(2 * kLeaseSeconds + 3);
  until_dead_bytes(0);
}

TEST_F(StorePeerLeases, AProbeOfASidecarStandsForItsBody) {
  ASSERT_NO_FATAL_FAILURE(evict());
  ASSERT_TRUE(put(b, 0, "x"));
  ASSERT_TRUE(b.write_file(name_of(gone_[1]) + ".metadata", "y"));
  const auto directory = b->lookup(kRootId, "d", {});
  ASSERT_TRUE(b->lookup(directory->id, name_of(gone_[1]).substr(2) + ".metadata", {}));
  b.refresh();
  EXPECT_TRUE(is_whole(b, gone_[1]));
}

TEST_F(StorePeerLeases, ANodeThatEndsKeepsNothingBack) {
  ASSERT_NO_FATAL_FAILURE(evict());
  ASSERT_TRUE(b.exists(name_of(gone_[0])));
  b.refresh();
  EXPECT_TRUE(is_whole(b, gone_[0]));
  b.unmount();
  for (int i = 0; i < 200 && a->status().reclaimable_bytes > 0; ++i) {
    clock_.advance_ns(100'000'000);
    a.settle();
  }
  EXPECT_EQ(a->status().reclaimable_bytes, 0u);
  b.mount();
  publish();
  EXPECT_FALSE(b.exists(name_of(gone_[0])));
}

TEST_F(StorePeerLeases, ANodeThatDiesKeepsNothingBack) {
  ASSERT_NO_FATAL_FAILURE(evict());
  ASSERT_TRUE(b.exists(name_of(gone_[0])));
  b.refresh();
  b.crash();
  publish();
  EXPECT_FALSE(b.exists(name_of(gone_[0]))) << "who was told of it is gone, too";
  until_dead_bytes(0);
}

TEST_F(StorePeerLeases, ItsOwnNodeMayEndMeanwhile) {
  ASSERT_NO_FATAL_FAILURE(evict());
  ASSERT_TRUE(b.exists(name_of(gone_[0])));
  b.refresh();
  a.remount();
  b.refresh();
  EXPECT_TRUE(is_whole(b, gone_[0]));
  pass(2 * kLeaseSeconds + 3);
  publish();
  EXPECT_EQ(a.contents(), b.contents());
}

class StoreWithoutPeerLeases : public StorePeerLeases {
 protected:
  StoreWithoutPeerLeases() : StorePeerLeases(0) {}
};

TEST_F(StoreWithoutPeerLeases, WhatGoesIsGoneAtOnce) {
  ASSERT_NO_FATAL_FAILURE(evict());
  for (const int number : gone_) EXPECT_TRUE(b.exists(name_of(number)));
  b.refresh();
  for (const int number : gone_) EXPECT_FALSE(b.exists(name_of(number)));
  ASSERT_TRUE(b->set_option("lease_ms", "5000"));
  EXPECT_EQ(a.contents(), b.contents());
  until_dead_bytes(0);
}

}  // namespace store_peer_leases_test
}  // namespace kvcachefs

// A daemon does what is due for a node whose own daemon is gone: driven here by a node on its own thread, with shorter times.
#include "store/gc/caretaker.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "store/base/thread.h"
#include "store/base/units.h"
#include "store/gc/node_wanted.h"
#include "store/journal/removed_nodes.h"
#include "store/testing/test_store.h"

namespace kvcachefs {
namespace caretaker_test {

using testing::TestStore;

constexpr uint64_t kCapacity = 48 * kMiB;

StoreOptions options(const char* node, uint64_t adopt_after_s = 1) {
  StoreOptions options = testing::node_options(node);
  options.capacity_bytes = kCapacity;
  options.keep_free_bytes = 1;
  options.lease_ms = 0;
  options.adopt_after_s = adopt_after_s;
  return options;
}

Caretaker::Times quick() {
  Caretaker::Times times;
  times.look_ms = 50;
  times.step_ms = 100;
  times.uses_ms = 3'000;
  times.settled_ms = 1'000;
  times.short_lately_ms = 2'000;
  times.idle_ms = 3'000;
  times.give_back_ms = 5'000;
  times.again_ms = 200;
  times.in_vain_ms = 500;
  times.leaves_ms = 600'000;
  return times;
}

class CaretakerTest : public ::testing::Test {
 protected:
  void publish() { testing::publish(b, a.get()); }
  void kill_a() {
    a->die();
    a.reset();
  }
  // Node b goes on until the condition holds, or for so long.
  bool pump_until(const std::function<bool()>& holds, int most_s = 240) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(most_s);
    while (!holds()) {
      if (std::chrono::steady_clock::now() > until) return false;
      if (!b->pump()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }
  StoreStatus::Peer peer_a() {
    const StoreStatus status = b->status();
    for (const StoreStatus::Peer& peer : status.peers)
      if (peer.node == "a") return peer;
    return {};
  }
  uint64_t bytes_of_a() {
    const auto volume = open_posix_volume(b.root(), {});
    const auto there = volume ? measure_tree(**volume, "nodes/a") : std::unexpected(volume.error());
    EXPECT_TRUE(there);
    return there ? there->bytes : 0;
  }

  TestStore b{options("b")};
  std::unique_ptr<TestStore> a = std::make_unique<TestStore>(options("a"), b);
};

// Daemons of several builds share a volume.
TEST(Caretaker, TheOrderInWhichNodesTryIsTheSameInEachBuild) { EXPECT_EQ(rank_of("a", "b"), 14271779286921882934u); }

TEST_F(CaretakerTest, WhatOthersRemovedOfANodeThatIsGoneComesBack) {
  ASSERT_TRUE(a->write_file("kept", TestStore::payload(1, kMiB)));
  ASSERT_TRUE(a->write_file("removed", TestStore::payload(2, 8 * kMiB)));
  publish();
  kill_a();
  ASSERT_TRUE(b.unlink("removed"));
  publish();
  EXPECT_TRUE(peer_a().is_unanswered);
  const uint64_t before = bytes_of_a();
  Caretaker caretaker(*b.operator->(), system_clock(), quick());
  caretaker.start();
  EXPECT_TRUE(pump_until([&] { return caretaker.status().returned_bytes >= 7 * kMiB; }));
  caretaker.stop();
  EXPECT_EQ(caretaker.status().turns, 1u);
  EXPECT_EQ(caretaker.status().problem, "");
  EXPECT_EQ(caretaker.status().evicted_bytes, 0u) << "there is room for all";
  b.refresh();
  EXPECT_FALSE(peer_a().is_unanswered);
  EXPECT_LE(bytes_of_a() + 7 * kMiB, before);
  EXPECT_EQ(b.read_file("kept"), TestStore::payload(1, kMiB));
  EXPECT_FALSE(b.exists("removed"));
  a = std::make_unique<TestStore>(options("a"), b);
  publish();
  EXPECT_EQ(a->contents(), b.contents());
}

// The process is at its limit: the daemon goes on, tells why, and tries again.
TEST_F(CaretakerTest, WithoutThreadsForItANodeWaits) {
  ASSERT_TRUE(a->write_file("removed", TestStore::payload(2, 8 * kMiB)));
  publish();
  kill_a();
  ASSERT_TRUE(b.unlink("removed"));
  publish();
  Caretaker caretaker(*b.operator->(), system_clock(), quick());
  constexpr int64_t kFew = 3;  // its own, and of the volume
  let_start_threads(kFew);
  caretaker.start();
  EXPECT_TRUE(pump_until([&] { return !caretaker.status().problem.empty(); }));
  EXPECT_TRUE(caretaker.status().problem.contains("thread kvc-")) << caretaker.status().problem;
  EXPECT_EQ(caretaker.status().turns, 0u);
  let_start_threads(INT64_MAX);
  EXPECT_TRUE(pump_until([&] { return caretaker.status().returned_bytes >= 7 * kMiB; }));
  EXPECT_EQ(caretaker.status().problem, "");
}

TEST_F(CaretakerTest, NothingIsDoneForOneThatNothingNeeds) {
  ASSERT_TRUE(a->write_file("kept", TestStore::payload(1, kMiB)));
  publish();
  kill_a();
  Caretaker caretaker(*b.operator->(), system_clock(), quick());
  caretaker.start();
  EXPECT_FALSE(pump_until([&] { return caretaker.status().turns > 0; }, 4));
  caretaker.stop();
}

// Nothing is needed of the node, and it gets no turn.
TEST_F(CaretakerTest, WhatANodeThatIsGoneHeldForItselfComesBack) {
  const std::string reserve = b.root() + "/nodes/a/RESERVE", indexes = b.root() + "/nodes/a/index-peers";
  ASSERT_TRUE(a->write_file("kept", TestStore::payload(1, kMiB)));
  publish();
  const uint64_t held = testing::file_bytes(reserve);
  EXPECT_GT(held, 0u);
  EXPECT_TRUE(std::filesystem::exists(indexes + "/test"));
  {
    Caretaker caretaker(*b.operator->(), system_clock(), quick());
    caretaker.start();
    EXPECT_FALSE(pump_until([&] { return caretaker.status().returned_bytes > 0; }, 4)) << "it runs";
    EXPECT_EQ(testing::file_bytes(reserve), held);
    kill_a();
    EXPECT_TRUE(pump_until([&] { return caretaker.status().returned_bytes >= held; }));
    EXPECT_EQ(caretaker.status().turns, 0u);
    EXPECT_EQ(caretaker.status().problem, "");
  }
  EXPECT_FALSE(std::filesystem::exists(reserve));
  EXPECT_FALSE(std::filesystem::exists(indexes));
  EXPECT_GT(testing::file_bytes(b.root() + "/nodes/test/RESERVE"), 0u) << "that of one which runs";
  EXPECT_EQ(b.read_file("kept"), TestStore::payload(1, kMiB));
  a = std::make_unique<TestStore>(options("a"), b);
  publish();
  EXPECT_EQ(a->contents(), b.contents());
  EXPECT_EQ(testing::file_bytes(reserve), held) << "it has its own again";
}

TEST_F(CaretakerTest, NothingIsDoneForOneThatRuns) {
  ASSERT_TRUE(a->write_file("removed", TestStore::payload(1, kMiB)));
  publish();
  ASSERT_TRUE(b.unlink("removed"));  // a stands still, and answers nothing
  b.drain();
  Caretaker caretaker(*b.operator->(), system_clock(), quick());
  caretaker.start();
  EXPECT_FALSE(pump_until([&] { return caretaker.status().turns > 0; }, 6));
  EXPECT_EQ(caretaker.status().problem, "") << "that is no fault";
  caretaker.stop();
  a->refresh();
  EXPECT_FALSE(a->exists("removed"));
}

TEST_F(CaretakerTest, WhereItIsSwitchedOffNobodyIsTended) {
  ASSERT_TRUE(b->set_option("adopt_after", "0"));
  ASSERT_TRUE(a->write_file("removed", TestStore::payload(1, kMiB)));
  publish();
  kill_a();
  ASSERT_TRUE(b.unlink("removed"));
  publish();
  Caretaker caretaker(*b.operator->(), system_clock(), quick());
  caretaker.start();
  EXPECT_FALSE(pump_until([&] { return caretaker.status().turns > 0; }, 4));
  ASSERT_TRUE(b->set_option("adopt_after", "1"));
  EXPECT_TRUE(pump_until([&] { return caretaker.status().turns > 0; }));
  caretaker.stop();
}

// The volume is full of data of a node that is gone, older than anything that b stores: that data is evicted, not what b has just stored.
TEST_F(CaretakerTest, WhatANodeThatIsGoneHasMakesRoomForOthers) {
  constexpr uint64_t kChunk = kMiB;
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(a->write_file("old" + std::to_string(i), TestStore::payload(i, kChunk))) << i;
  publish();
  kill_a();
  Caretaker caretaker(*b.operator->(), system_clock(), quick());
  caretaker.start();
  int next = 0;
  // More than half of the capacity, which b alone could not keep beside a's data.
  EXPECT_TRUE(pump_until([&] {
    const std::string name = "new" + std::to_string(next);
    if (b.try_write_file(name, TestStore::payload(1000 + next, kChunk))) ++next;
    else static_cast<void>(b.unlink(name));  // it may have been made, and then its bytes were refused
    EXPECT_LE(testing::tree_bytes(b.root()), kCapacity);  // b's knowledge of a is older than its own sum
    return caretaker.status().evicted_objects >= 15 || (next > 400 && caretaker.status().turns > 3);
  }));
  caretaker.stop();
  EXPECT_GE(caretaker.status().evicted_objects, 15u);
  b.refresh();
  int left = 0, kept = 0;
  for (int i = 0; i < 30; ++i) {
    if (!b.exists("old" + std::to_string(i))) continue;
    EXPECT_EQ(b.read_file("old" + std::to_string(i)), TestStore::payload(i, kChunk));
    ++left;
  }
  for (int i = 0; i < next; ++i) kept += b.exists("new" + std::to_string(i)) ? 1 : 0;
  EXPECT_LE(left, 15);
  EXPECT_GE(kept, 18) << "of " << next;
}

// The daemon of the node asks it to leave, and it leaves within a second or two.
TEST_F(CaretakerTest, ItLeavesWhenTheNodeBegins) {
  ASSERT_TRUE(a->write_file("removed", TestStore::payload(1, kMiB)));
  ASSERT_TRUE(a->write_file("kept", TestStore::payload(2, kMiB)));
  publish();
  kill_a();
  ASSERT_TRUE(b.unlink("removed"));
  publish();
  Caretaker::Times times = quick();
  times.settled_ms = 600'000;  // it would stay
  times.idle_ms = 600'000;
  Caretaker caretaker(*b.operator->(), system_clock(), times);
  caretaker.start();
  ASSERT_TRUE(pump_until([&] { return caretaker.status().tends == "a"; }));
  const auto refused = open_store_at(b.root(), options("a"), system_clock(), "test");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kBusy);
  EXPECT_NE(refused.error().message.find(kTendedHolder), std::string::npos) << refused.error().message;
  {
    const auto wanted = want_node(b.root(), "a");
    ASSERT_TRUE(wanted) << wanted.error().message;
    EXPECT_TRUE(pump_until([&] { return caretaker.status().tends.empty(); }));
    a = std::make_unique<TestStore>(options("a"), b);
  }
  publish();
  EXPECT_EQ(a->contents(), b.contents());
  EXPECT_TRUE(a->exists("kept"));
  caretaker.stop();
}

TEST_F(CaretakerTest, ANodeWithoutFilesLeavesAndItsDirectoriesStay) {
  a->mkdir("of a");
  a->mkdir("of a/below");
  a->mkdir("removed");
  ASSERT_TRUE(a->write_file("of a/file", TestStore::payload(1, kMiB)));
  publish();
  kill_a();
  ASSERT_TRUE(b.rmdir("removed"));
  publish();
  Caretaker::Times times = quick();
  times.leaves_ms = 1'000;
  Caretaker caretaker(*b.operator->(), system_clock(), times);
  caretaker.start();
  EXPECT_TRUE(pump_until([&] { return caretaker.status().turns > 0 && caretaker.status().tends.empty(); }));  // the removal is answered
  EXPECT_FALSE(pump_until([&] { return caretaker.status().taken_out > 0; }, 4)) << "it has a file";
  ASSERT_TRUE(b.unlink("of a/file"));
  EXPECT_TRUE(pump_until([&] { return caretaker.status().taken_out > 0; }));
  caretaker.stop();
  b.refresh();
  EXPECT_FALSE(std::filesystem::exists(b.root() + "/nodes/a"));
  EXPECT_TRUE(b->status().peers.empty());
  const std::map<std::string, std::string> left{{"of a", "/"}, {"of a/below", "/"}};
  EXPECT_EQ(b.contents(), left);
  b.remount();
  EXPECT_EQ(b.contents(), left);
  a = std::make_unique<TestStore>(options("a"), b);
  publish();
  ASSERT_TRUE(a->write_file("of a/again", TestStore::payload(2, 1000)));
  publish();
  EXPECT_EQ(a->contents(), b.contents());
}

// Names that it removed of a node that does not answer, and is not gone either, would be seen again.
TEST_F(CaretakerTest, ANodeWithoutFilesStaysWhereOthersHaveNotAnsweredIt) {
  auto c = std::make_unique<TestStore>(options("c"), b);
  ASSERT_TRUE(c->write_file("removed", TestStore::payload(1, kMiB)));
  c->drain();
  publish();
  ASSERT_TRUE(a->unlink("removed"));
  publish();
  kill_a();
  EXPECT_FALSE(b.exists("removed"));
  Caretaker::Times times = quick();
  times.leaves_ms = 1'000;
  Caretaker caretaker(*b.operator->(), system_clock(), times);
  caretaker.start();
  EXPECT_FALSE(pump_until([&] { return caretaker.status().taken_out > 0; }, 20));
  caretaker.stop();
  EXPECT_FALSE(b.exists("removed"));
}

// A caretaker that dies leaves the node as its own daemon would have.
TEST_F(CaretakerTest, ItsOwnEndEndsTheTurn) {
  ASSERT_TRUE(a->write_file("removed", TestStore::payload(1, kMiB)));
  publish();
  kill_a();
  ASSERT_TRUE(b.unlink("removed"));
  publish();
  Caretaker::Times times = quick();
  times.settled_ms = times.idle_ms = 600'000;
  {
    Caretaker caretaker(*b.operator->(), system_clock(), times);
    caretaker.start();
    ASSERT_TRUE(pump_until([&] { return caretaker.status().tends == "a"; }));
  }
  a = std::make_unique<TestStore>(options("a"), b);
  publish();
  EXPECT_EQ(a->contents(), b.contents());
}

}  // namespace caretaker_test
}  // namespace kvcachefs

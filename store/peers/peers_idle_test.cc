// What nodes without clients ask of a network volume: each such call goes to a server that all nodes share.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/base/units.h"
#include "store/journal/memory_volume.h"
#include "store/peers/peers.h"
#include "store/peers/testing/peer_node.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {
namespace peers_idle_test {

constexpr int64_t kSecondNs = Peers::kSecondNs;
constexpr int64_t kMsNs = 1'000'000;
constexpr uint64_t kCapacity = 64 * kMiB;

class Claimer final : public ClaimUser {
 public:
  explicit Claimer(ManualClock& clock) : clock_(clock) {}
  OwnFigures figures(bool) override {
    clock_.advance_ns(takes_ns);
    OwnFigures own;
    own.capacity_bytes = kCapacity;
    own.physical_bytes = own.used_bytes = own.used_soon_bytes = used_bytes;
    return own;
  }
  uint64_t lower_claim(uint64_t bytes) override { return std::max(bytes, used_bytes); }
  void sink_claim(uint64_t) override {}
  void raise_claim(uint64_t) override {}
  void hold_until(int64_t) override {}
  void follow(const ClaimPlan&, bool) override {}
  uint64_t used_bytes = kMiB;
  int64_t takes_ns = 0;  // to tell the figures

 private:
  ManualClock& clock_;
};

class PeersIdleTest : public ::testing::Test {
 protected:
  struct Asked {
    int head_reads = 0, head_writes = 0, listings = 0;
  };
  struct Daemon {
    std::unique_ptr<PeerNode> node;
    std::unique_ptr<Claimer> claimer;
    int64_t due_ns = 0;
    bool is_asked = false;  // by a client, in each round
  };

  PeersIdleTest() { memory_->set_network(true); }

  Daemon& start(const std::string& name, uint64_t used_bytes = kMiB) {
    Daemon& daemon = daemons_[name];
    daemon.node = std::make_unique<PeerNode>(PeerNode::Where{memory_, volume_, clock_, scratch_.path()}, name, 1);
    daemon.claimer = std::make_unique<Claimer>(clock_);
    daemon.claimer->used_bytes = used_bytes;
    daemon.node->claim_user = daemon.claimer.get();
    daemon.node->peers().begin_claim();
    daemon.due_ns = clock_.monotonic_ns();
    return daemon;
  }
  // Runs each round when it is due, as the threads of the daemons do.
  Asked run(int seconds) {
    asked_ = {};
    const int64_t end_ns = clock_.monotonic_ns() + seconds * kSecondNs;
    while (true) {
      Daemon& next = std::ranges::min_element(daemons_, {}, [](const auto& each) { return each.second.due_ns; })->second;
      if (next.due_ns >= end_ns) break;
      clock_.advance_ns(std::max<int64_t>(0, next.due_ns - clock_.monotonic_ns()));
      next.node->requests += next.is_asked ? 1 : 0;
      const int64_t due_ns = next.node->peers().round(), now_ns = clock_.monotonic_ns();
      next.due_ns = now_ns + std::clamp(due_ns - now_ns, kMsNs, kSecondNs);
    }
    clock_.advance_ns(std::max<int64_t>(0, end_ns - clock_.monotonic_ns()));
    return asked_;
  }
  PeerStatus::State state(Daemon& daemon, const std::string& peer) { return daemon.node->status_of(peer).value().state; }

  ManualClock clock_{1000 * kSecondNs};
  Asked asked_;
  std::shared_ptr<MemoryVolume> memory_ = std::make_shared<MemoryVolume>();
  std::shared_ptr<Volume> volume_ = make_fault_volume(memory_, [this](const VolumeCall& call) -> Fault {
    using Kind = VolumeCall::Kind;
    const bool head = call.path.ends_with("/HEAD");
    asked_.head_reads += head && call.kind == Kind::kRead ? 1 : 0;
    asked_.head_writes += head && call.kind == Kind::kWrite ? 1 : 0;
    asked_.listings += call.path == "nodes" && call.kind == Kind::kList ? 1 : 0;
    return {};
  });
  index_test::ScratchDirectory scratch_{index_test::ScratchDirectory::kInMemory};
  std::map<std::string, Daemon> daemons_;
};

TEST_F(PeersIdleTest, OthersAreLookedAtSeldomWhileNobodyAsks) {
  Daemon &a = start("a"), &b = start("b");
  a.is_asked = b.is_asked = true;
  run(10);
  const Asked busy = run(20);
  EXPECT_GE(busy.head_reads, 36) << "both nodes each second";
  EXPECT_GE(busy.listings, 36);
  a.is_asked = b.is_asked = false;
  run(8);
  const Asked idle = run(20);
  EXPECT_LE(idle.head_reads, 22);
  EXPECT_LE(idle.listings, 22);
  EXPECT_GE(idle.head_writes, 18) << "others may have clients";
  EXPECT_EQ(state(a, "b"), PeerStatus::State::kLive);
  b.is_asked = true;
  run(2);
  const Asked half = run(20);
  EXPECT_GE(half.head_reads, 27) << "of one node each second again";
  EXPECT_LE(half.head_reads, 33);
}

TEST_F(PeersIdleTest, HeadMovesEveryTwoSecondsAfterAMinuteInWhichNobodyAsked) {
  Daemon &a = start("a"), &b = start("b");
  run(70);
  for (int i = 0; i < 5; ++i) {
    const Asked quiet = run(20);
    EXPECT_LE(quiet.head_writes, 22);
    EXPECT_GE(quiet.head_writes, 18);
    EXPECT_LE(quiet.head_reads, 24);
    EXPECT_LE(quiet.listings, 12);
    EXPECT_EQ(state(a, "b"), PeerStatus::State::kLive);
    EXPECT_EQ(state(b, "a"), PeerStatus::State::kLive);
    EXPECT_LE(a.node->status_of("b")->stands_ms, 3000);
  }
  b.node->make_file("new");
  a.is_asked = true;
  run(2);
  EXPECT_TRUE(a.node->paths().contains("/new"));
}

// Someone who takes over looks for three seconds whether it moves.
TEST_F(PeersIdleTest, TheHeadOfANodeThatIsAloneMovesEveryTwoSeconds) {
  start("a").claimer->takes_ns = kMsNs;
  run(10);
  const Asked alone = run(60);
  EXPECT_GE(alone.head_writes, 28);
  EXPECT_LE(alone.head_writes, 32);
}

TEST_F(PeersIdleTest, AHeadThatStandsIsLookedAtEachSecond) {
  Daemon& a = start("a");
  start("b");
  run(20);
  daemons_.erase("b");
  run(4);
  EXPECT_GE(run(20).head_reads, 18);
  EXPECT_EQ(state(a, "b"), PeerStatus::State::kSilent);
}

TEST_F(PeersIdleTest, WhereRoomIsShortOthersAreLookedAtEachSecond) {
  start("a", kCapacity / 2);
  start("b", kCapacity / 2 - kCapacity / 16);
  run(70);
  const Asked asked = run(20);
  EXPECT_GE(asked.head_reads, 36);
  EXPECT_GE(asked.head_writes, 18) << "they may wait for what it gives up";
}

TEST_F(PeersIdleTest, ANodeThatComesIsFoundInFourSeconds) {
  Daemon& a = start("a");
  start("b");
  run(70);
  Daemon& c = start("c");
  c.node->make_file("of-c");
  run(5);
  EXPECT_TRUE(a.node->status_of("c"));
  run(3);
  EXPECT_TRUE(a.node->paths().contains("/of-c"));
  EXPECT_EQ(state(a, "c"), PeerStatus::State::kLive);
}

}  // namespace peers_idle_test
}  // namespace kvcachefs

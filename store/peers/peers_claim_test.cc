// When Peers tells its node's claim. For the size of the claim see claim_holder_test.
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "store/journal/memory_volume.h"
#include "store/peers/peers.h"
#include "store/peers/testing/peer_node.h"

namespace kvcachefs {
namespace peers_claim_test {

constexpr int64_t kOneSecondNs = Peers::kSecondNs;

class IdleUser final : public ClaimUser {
 public:
  OwnFigures figures(bool) override {
    ++looked;
    OwnFigures own;
    own.capacity_bytes = 64 << 20;
    own.physical_bytes = own.used_bytes = own.used_soon_bytes = 1 << 20;
    return own;
  }
  uint64_t lower_claim(uint64_t bytes) override { return std::max<uint64_t>(bytes, 1 << 20); }
  void sink_claim(uint64_t) override {}
  void raise_claim(uint64_t) override {}
  void hold_until(int64_t) override {}
  void follow(const ClaimPlan&, bool) override {}
  std::atomic<int> looked{0};
};

class PeersClaimTest : public ::testing::Test {
 protected:
  std::shared_ptr<MemoryVolume> memory_ = std::make_shared<MemoryVolume>();
  ManualClock clock_{1000 * kOneSecondNs};
  index_test::ScratchDirectory scratch_{index_test::ScratchDirectory::kInMemory};
  IdleUser user_;
};

TEST_F(PeersClaimTest, WhereRoundsTakeLongAnotherThreadTellsTheClaim) {
  PeerNode a({memory_, memory_, clock_, scratch_.path()}, "a", 1);
  a.peers().step_claim_if_late();
  a.die();
  a.claim_user = &user_;
  a.peers().begin_claim();
  a.round();
  const int looked = user_.looked;
  clock_.advance_ns(kOneSecondNs);
  a.peers().step_claim_if_late();
  EXPECT_EQ(user_.looked, looked) << "not yet";
  clock_.advance_ns(3 * kOneSecondNs);
  a.peers().step_claim_if_late();
  EXPECT_EQ(user_.looked, looked + 1);
  a.peers().step_claim_if_late();
  EXPECT_EQ(user_.looked, looked + 1);
  clock_.advance_ns(kOneSecondNs);
  a.round();
  EXPECT_GT(user_.looked, looked + 1) << "the rounds go on";
}

TEST_F(PeersClaimTest, BothThreadsAtOnce) {
  memory_->set_network(true);
  PeerNode a({memory_, memory_, clock_, scratch_.path()}, "a", 1), b({memory_, memory_, clock_, scratch_.path()}, "b", 1);
  a.claim_user = &user_;
  a.peers().begin_claim();
  b.round();
  // How often it is looked depends on how the threads come to run: 4 to 58 of 1000.
  for (int repeats = 0; repeats < 100 && user_.looked <= 10; ++repeats) {
    std::thread other([&] {
      for (int at = 0; at < 500; ++at) {
        clock_.advance_ns(4 * kOneSecondNs);
        a.peers().step_claim_if_late();
        a.peers().want_room();
      }
    });
    for (int at = 0; at < 500; ++at) a.peers().round();
    other.join();
  }
  EXPECT_GT(user_.looked, 10);
  a.peers().end_claim();
}

}  // namespace peers_claim_test
}  // namespace kvcachefs

// Random histories of nodes that share a capacity (testing/claim_sim.h): they come, write, are killed or stopped at any point, come
// again under the same or another name, or are taken out. The bytes on the volume never pass the capacity, and living nodes get room again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "store/base/sanitized.h"
#include "store/peers/testing/claim_sim.h"

namespace kvcachefs {
namespace claim_sim_test {

using testing::kSimCapacity;
using testing::kSimChunk;
using testing::kSimSecondNs;
using testing::SimDisk;
using testing::SimNode;
constexpr int64_t kStepNs = kSimSecondNs / 20;

class ClaimSim : public ::testing::Test {
 protected:
  void begin(unsigned seed, bool network) {
    nodes_.clear();
    graves_.clear();
    disk_ = std::make_shared<SimDisk>();
    disk_->set_network(network);
    random_.seed(seed);
    slack_ = 0;
    stops_ = dies_ = nullptr;
    names_ = 0;
  }
  uint32_t any(uint32_t below) { return static_cast<uint32_t>(random_() % below); }
  SimNode& start(const std::string& name, uint32_t epoch = 1, const SimNode* before = nullptr) {
    nodes_.push_back(std::make_unique<SimNode>(SimNode::World{disk_, clock_, [this](SimNode& at) { between(at); }}, name, epoch, before));
    SimNode& node = *nodes_.back();
    node.begin();
    return node;
  }
  SimNode& start_new() { return start(fmt::format("n{}", ++names_)); }

  // Another node may do anything between two calls of one.
  void between(SimNode& at) {
    check();
    if (stops_ == &at && any(40) == 0) stop(at, kSimSecondNs * (1 + any(70)));
    if (depth_ >= 3 || any(3) != 0) return;
    SimNode& other = *nodes_[any(static_cast<uint32_t>(nodes_.size()))];
    if (&other == &at || other.busy) return;
    ++depth_;
    if (any(2) == 0 && std::ranges::find(writers_, &other) != writers_.end()) write(other, static_cast<int>(any(8)));
    other.step(any(2) == 0);
    --depth_;
    if (dies_ != nullptr && any(200) == 0) std::exchange(dies_, nullptr)->kill();
  }
  // Like SIGSTOP and SIGCONT, at any point. It then writes its accepted data; others may have given that space away where they cannot know of it.
  void stop(SimNode& at, int64_t for_ns) {
    stops_ = nullptr;
    at.paused = true;
    const int64_t until_ns = clock_.monotonic_ns() + for_ns;
    while (clock_.monotonic_ns() < until_ns) step();
    for (const auto& node : nodes_)  // those in a call of which this one went on stand still as well
      if (disk_->features().network && node->busy) slack_ += node->accepted_bytes();
    at.paused = false;
    check();
  }
  void write(SimNode& node, int chunks) {
    for (; chunks > 0 && node.write(); --chunks) check();
  }
  void step() {
    clock_.advance_ns(kStepNs);
    for (SimNode* writer : std::vector(writers_)) write(*writer, most_at_once_);
    for (size_t at = 0; at < nodes_.size(); ++at) nodes_[at]->step(any(16) == 0);
    check();
  }
  void run(int seconds) {
    for (int at = 0; at < seconds * 20 && !HasFatalFailure(); ++at) step();
  }
  void check() {
    uint64_t physical = 0;
    for (const auto& node : nodes_) physical += node->physical();
    most_ = std::max(most_, physical);
    if (HasFatalFailure()) return;
    ASSERT_LE(physical, kSimCapacity + slack_);
  }
  std::vector<SimNode*> living() const {
    std::vector<SimNode*> all;
    for (const auto& node : nodes_)
      if (!node->killed()) all.push_back(node.get());
    return all;
  }
  // Its directory goes, as by gc.
  void take_out(SimNode& node) {
    auto& files = disk_->files();
    const std::string below = "nodes/" + node.name + "/";
    std::erase_if(files, [&](const auto& each) { return each.first.starts_with(below); });
    disk_->parts.erase(node.name);
    for (const DirectoryEntry& epoch : disk_->list("nodes/" + node.name).value_or(std::vector<DirectoryEntry>()))
      EXPECT_TRUE(disk_->remove_directory(below + epoch.name));
    EXPECT_TRUE(disk_->remove_directory("nodes/" + node.name));
    bury(node);
  }
  void bury(SimNode& node) {
    const auto dead = std::ranges::find_if(nodes_, [&](const auto& each) { return each.get() == &node; });
    graves_.push_back(std::move(*dead));
    nodes_.erase(dead);
  }
  void history(unsigned seed, bool network);

  std::shared_ptr<SimDisk> disk_;
  ManualClock clock_{1000 * kSimSecondNs};
  std::mt19937 random_;
  std::vector<std::unique_ptr<SimNode>> nodes_, graves_;
  std::vector<SimNode*> writers_;
  SimNode *stops_ = nullptr, *dies_ = nullptr;
  int depth_ = 0, most_at_once_ = 4, names_ = 0;
  uint64_t most_ = 0, slack_ = 0;
};

void ClaimSim::history(unsigned seed, bool network) {
  SCOPED_TRACE(fmt::format("seed {}{}", seed, network ? ", on a network volume" : ""));
  begin(seed, network);
  for (uint32_t count = 2 + seed % 3; count > 0; --count) {
    start_new();
    writers_ = {nodes_[0].get()};
    run(static_cast<int>(any(4)));
  }
  for (uint32_t life = 2; life < 7 && !HasFatalFailure(); ++life) {
    writers_.clear();
    for (SimNode* node : living())
      if (any(3) != 0) writers_.push_back(node);
    most_at_once_ = 1 + static_cast<int>(any(12));
    run(5 + static_cast<int>(any(10)));
    SimNode& victim = *living()[any(static_cast<uint32_t>(living().size()))];
    switch (any(3)) {
      case 0: {
        stops_ = &victim;
        run(8);
        stops_ = nullptr;
        break;
      }
      case 1: {  // it comes again under its name
        dies_ = &victim;
        run(4);
        dies_ = nullptr;
        victim.kill();
        run(static_cast<int>(any(10)));
        std::erase(writers_, &victim);
        const std::string name = victim.name;
        bury(victim);
        writers_.push_back(&start(name, life, graves_.back().get()));
        break;
      }
      case 2: {  // ... or under another one, and its part stays, or is taken out
        dies_ = &victim;
        run(4);
        dies_ = nullptr;
        victim.kill();
        std::erase(writers_, &victim);
        SimNode& successor = start_new();
        writers_.push_back(&successor);
        run(static_cast<int>(any(40)));
        if (any(3) != 0) take_out(victim);
        break;
      }
    }
  }
  if (HasFatalFailure()) return;
  // Whatever came before, living nodes get room as soon as it is known which nodes live.
  writers_ = living();
  most_at_once_ = 4;
  run(25);
  std::map<const SimNode*, uint64_t> most;  // for some are evicted just now
  uint64_t gone = 0, most_in_all = 0;
  for (int at = 0; at < 20 * 20 && !HasFatalFailure(); ++at) {
    step();
    gone = 0;
    uint64_t used = 0;
    for (const auto& node : nodes_) (node->killed() ? gone : used) += node->used();
    for (const SimNode* node : writers_) most[node] = std::max(most[node], node->used());
    most_in_all = std::max(most_in_all, gone + used);
  }
  if (HasFatalFailure()) return;
  std::string all;
  for (const auto& node : nodes_)
    all += fmt::format("{}{}: {} KiB used, {} claimed; ", node->name, node->killed() ? " (gone)" : "", node->used() / 1024, node->claim() / 1024);
  EXPECT_GT(most_in_all, kSimCapacity * 3 / 4) << all;
  for (const SimNode* node : writers_) EXPECT_GT(most[node], (kSimCapacity - gone) / 20) << node->name << " of " << all;
}

TEST_F(ClaimSim, TheCapacityIsNeverPassedAndWhoLivesGetsRoom) {
  const char* asked = std::getenv("KVCACHEFS_SEED");
  const unsigned first = asked != nullptr ? static_cast<unsigned>(std::atoi(asked)) : 1;
  const unsigned count = asked != nullptr ? 1 : static_cast<unsigned>(histories_here(std::getenv("KVCACHEFS_LONG") != nullptr ? 2000 : 60));
  for (unsigned seed = first; seed < first + count && !HasFailure(); ++seed) history(seed, /*network=*/false);
}

TEST_F(ClaimSim, OnANetworkVolumeAsWell) {
  const char* asked = std::getenv("KVCACHEFS_SEED");
  const unsigned first = asked != nullptr ? static_cast<unsigned>(std::atoi(asked)) : 1;
  const unsigned count = asked != nullptr ? 1 : static_cast<unsigned>(histories_here(std::getenv("KVCACHEFS_LONG") != nullptr ? 2000 : 60));
  for (unsigned seed = first; seed < first + count && !HasFailure(); ++seed) history(seed, /*network=*/true);
}

// A node has the whole volume and goes on writing as fast as it may.
TEST_F(ClaimSim, WhoComesToABusyNodeHasRoomInSeconds) {
  for (unsigned seed = 1; seed <= histories_here(19) && !HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    begin(seed, false);
    SimNode& busy = start_new();
    writers_ = {&busy};
    most_at_once_ = 40;
    run(20);
    ASSERT_GT(busy.used(), kSimCapacity * 3 / 4);
    for (int others = 0; others < 3; ++others) {
      SimNode& comes = start_new();
      int waited = 0;
      for (; waited < 20 * 20 && !comes.write(); ++waited) step();
      EXPECT_LE(waited, 20 * 7 / 2) << "twentieths of a second, by " << comes.name;
    }
  }
}

// ... also if one call lacks much at once, as far as that is its share. Calls that wait are refused after some ten seconds.
TEST_F(ClaimSim, OneCallThatLacksMuchGetsItBesideBusyNodes) {
  for (const bool network : {false, true}) {
    for (const size_t busy : {1u, 2u, 3u}) {
      for (unsigned seed = 1; seed <= histories_here(19) && !HasFailure(); ++seed) {
        SCOPED_TRACE(fmt::format("seed {}, {} busy{}", seed, busy, network ? ", on a network volume" : ""));
        begin(seed, network);
        most_at_once_ = 40;
        writers_.clear();
        while (writers_.size() < busy) writers_.push_back(&start_new());
        run(20);
        SimNode& comes = start_new();
        run(5);
        const uint64_t chunks = kSimCapacity * 4 / 5 / (busy + 1) / kSimChunk;
        int waited = 0;
        for (; waited < 20 * 60 && !comes.write_at_once(chunks); ++waited) step();
        EXPECT_LE(waited, 20 * 8) << "twentieths of a second";
      }
      writers_.clear();
    }
  }
}

// ... and beyond its share, as long as the other has anything to evict.
TEST_F(ClaimSim, OneCallThatLacksMoreThanItsShareGetsItToo) {
  for (const uint64_t tenths : {6u, 7u, 8u}) {
    for (unsigned seed = 1; seed <= histories_here(19) && !HasFailure(); ++seed) {
      SCOPED_TRACE(fmt::format("seed {}, {} tenths", seed, tenths));
      begin(seed, false);
      SimNode& busy = start_new();
      writers_ = {&busy};
      most_at_once_ = 40;
      run(20);
      SimNode& comes = start_new();
      run(5);
      int waited = 0;
      for (; waited < 20 * 60 && !comes.write_at_once(kSimCapacity * tenths / 10 / kSimChunk); ++waited) step();
      EXPECT_LE(waited, 20 * 10) << "twentieths of a second";
    }
  }
}

}  // namespace claim_sim_test
}  // namespace kvcachefs

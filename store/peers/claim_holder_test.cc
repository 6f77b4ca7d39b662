// Several nodes share a capacity, each with the real ClaimHolder, on one volume in memory: between any two calls of one of them the others go
// on, so all orders in which they write and read HEADs come up.
#include "store/peers/claim_holder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "store/base/units.h"
#include "store/journal/memory_volume.h"
#include "store/journal/test_records.h"
#include "store/peers/slot_writer.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {
namespace {

constexpr int64_t kSecondNs = ClaimHolder::kSecondNs, kMsNs = 1'000'000;
constexpr uint64_t kCapacity = 64 * kMiB, kChunk = 256 * kKiB, kOwnBytes = 512 * kKiB;

FileIdentity identity_of(const std::string& node, uint32_t epoch) {
  FileIdentity identity = test_identity(epoch);
  identity.node = node;
  return identity;
}

// A node that stores chunks, evicts the oldest where that is its part, and gives their space back a second later.
class SimNode final : public ClaimUser {
 public:
  struct World {
    std::shared_ptr<MemoryVolume> memory;
    ManualClock& clock;
    std::function<void(SimNode&)> between;  // two calls of this node
  };
  SimNode(World world, std::string called, uint32_t epoch, const SimNode* before = nullptr)
      : name(std::move(called)), world_(std::move(world)), identity_(identity_of(name, epoch)) {
    EXPECT_TRUE(world_.memory->make_directories(epoch_directory(name, epoch)));
    if (before != nullptr) {
      chunks_ = before->chunks_;
      dead_ = before->dead_;
    }
    volume_ = make_fault_volume(world_.memory, [this](const VolumeCall& call) -> Fault {
      if (!killed) world_.between(*this);
      return killed || call.path == blind_for ? Fault{EIO, -1, 0} : Fault{};
    });
    discovery_ = std::make_unique<Discovery>(volume_, identity_, world_.clock, std::map<std::string, uint32_t>{}, Discovery::Limits{});
    writer_ = std::make_unique<HeadWriter>(volume_, identity_);
    holder = std::make_unique<ClaimHolder>(
        ClaimHolder::Parts{*volume_, identity_, world_.clock, *this, [this](const OwnFigures& own, uint64_t claim_bytes, uint64_t wish_bytes) {
                             Head head;
                             head.physical_bytes = own.physical_bytes;
                             head.capacity_bytes = own.capacity_bytes;
                             head.claim_bytes = claim_bytes;
                             head.wish_bytes = wish_bytes;
                             head.bytes_by_age = own.evictable_by_age;
                             return writer_->write(head);
                           }});
  }

  // --- what its clients and its keeper do
  bool write() {
    if (killed || used() + kChunk > std::min(claim_, capacity)) {
      waits_ = wants_ = true;
      return false;
    }
    chunks_.push_back(now());
    written_ += kChunk;
    return true;
  }
  void give_back() {
    while (!dead_.empty() && now() - dead_.front() >= kSecondNs) dead_.pop_front();
  }
  // --- what its daemon does
  void begin() {
    busy = true;
    static_cast<void>(holder->begin());
    busy = false;
  }
  void step(bool look) {
    if (killed || busy) return;
    busy = true;
    give_back();
    if (look) discovery_->look();
    const bool due = !stepped_ns_ || now() - *stepped_ns_ >= kSecondNs;
    if (due || holder->due_ns(std::exchange(wants_, false)) <= now()) {
      if (due) stepped_ns_ = now();
      static_cast<void>(holder->step(discovery_->nodes(), false));
    }
    busy = false;
  }

  uint64_t used() const { return kOwnBytes + kChunk * (chunks_.size() + dead_.size()); }
  uint64_t claim() const { return claim_; }
  size_t chunks() const { return chunks_.size(); }
  uint64_t evicted() const { return evicted_; }

  OwnFigures figures(bool) override {
    OwnFigures own;
    own.capacity_bytes = capacity;
    own.physical_bytes = own.used_bytes = used();
    own.used_soon_bytes = kOwnBytes + kChunk * chunks_.size();
    own.written_per_s = std::exchange(written_, 0);
    own.waits = std::exchange(waits_, false);
    if (evicts)
      for (const int64_t since : chunks_) {
        const auto age_s = static_cast<uint64_t>((now() - since) / kSecondNs);
        own.evictable_by_age[std::min<size_t>(static_cast<size_t>(std::bit_width(age_s)), kAgeClasses - 1)] += kChunk;
      }
    return own;
  }
  uint64_t lower_claim(uint64_t bytes) override { return claim_ = std::max(bytes, used()); }
  void raise_claim(uint64_t bytes) override { claim_ = bytes; }
  void follow(const ClaimPlan& plan, bool) override {
    if (now() - shared_ns_ < kSecondNs * 9 / 10) return;
    shared_ns_ = now();
    for (uint64_t left = plan.evict_bytes; left >= kChunk && !chunks_.empty(); left -= kChunk) {
      chunks_.pop_front();
      dead_.push_back(now());
      evicted_ += kChunk;
    }
  }

  const std::string name;
  std::string blind_for;  // what it cannot read
  bool killed = false, busy = false, evicts = true;
  uint64_t capacity = kCapacity;
  std::unique_ptr<ClaimHolder> holder;

 private:
  int64_t now() const { return world_.clock.monotonic_ns(); }
  const World world_;
  const FileIdentity identity_;
  std::shared_ptr<Volume> volume_;
  std::unique_ptr<Discovery> discovery_;
  std::unique_ptr<HeadWriter> writer_;
  std::deque<int64_t> chunks_, dead_;  // since when
  uint64_t claim_ = 0, written_ = 0, evicted_ = 0;
  bool waits_ = false, wants_ = false;
  std::optional<int64_t> stepped_ns_;
  int64_t shared_ns_ = INT64_MIN / 2;
};

class ClaimHolderTest : public ::testing::Test {
 protected:
  SimNode& start(const std::string& name, uint32_t epoch = 1, const SimNode* before = nullptr) {
    nodes_.push_back(std::make_unique<SimNode>(SimNode::World{memory_, clock_, [this](SimNode& at) { between(at); }}, name, epoch, before));
    return *nodes_.back();
  }
  // Another node may do anything between two calls of one.
  void between(SimNode& at) {
    check();
    if (!mingles_ || depth_ >= 3 || random_() % 3 != 0) return;
    SimNode& other = *nodes_[random_() % nodes_.size()];
    if (&other == &at || other.busy) return;
    ++depth_;
    if (random_() % 2 == 0 && std::ranges::find(writers_, &other) != writers_.end()) write(other, static_cast<int>(random_() % 8));
    other.step(random_() % 2 == 0);
    --depth_;
    if (dies_ != nullptr && random_() % 200 == 0) std::exchange(dies_, nullptr)->killed = true;
  }
  void write(SimNode& node, int chunks) {
    for (; chunks > 0 && node.write(); --chunks) check();
  }
  void check() {
    uint64_t used = 0;
    for (const auto& node : nodes_) used += node->used();
    most_ = std::max(most_, used);
    if (HasFatalFailure()) return;
    ASSERT_LE(used, kCapacity + slack_);
  }
  // So long, in steps of 50 ms; `writers` store a chunk or more in each.
  void run(int seconds, std::vector<SimNode*> writers, int chunks = 4) {
    writers_ = writers;
    for (int step = 0; step < seconds * 20; ++step) {
      clock_.advance_ns(50 * kMsNs);
      for (SimNode* writer : writers) write(*writer, chunks);
      for (size_t at = 0; at < nodes_.size(); ++at) nodes_[at]->step(random_() % 16 == 0);
      if (HasFatalFailure()) return;
    }
  }

  std::shared_ptr<MemoryVolume> memory_ = std::make_shared<MemoryVolume>();
  ManualClock clock_{1000 * kSecondNs};
  std::minstd_rand random_{7};
  std::vector<std::unique_ptr<SimNode>> nodes_, graves_;
  std::vector<SimNode*> writers_;
  SimNode* dies_ = nullptr;
  bool mingles_ = false;
  int depth_ = 0;
  uint64_t most_ = 0, slack_ = 0;
};

TEST_F(ClaimHolderTest, ANodeThatIsAloneHasAllAndTellsSoOnce) {
  SimNode& a = start("a");
  a.begin();
  EXPECT_EQ(a.claim(), kWholeVolume);
  const Bytes told = *memory_->files().at("nodes/a/1/HEAD");
  run(20, {&a}, 1);
  EXPECT_EQ(*memory_->files().at("nodes/a/1/HEAD"), told);
  a.capacity /= 2;
  run(2, {});
  EXPECT_NE(*memory_->files().at("nodes/a/1/HEAD"), told) << "others are to know";
}

TEST_F(ClaimHolderTest, OneThatComesGetsItsPartOfWhatAnotherHadAlone) {
  SimNode& a = start("a");
  a.begin();
  run(10, {&a}, 1);
  SimNode& b = start("b");
  b.begin();
  EXPECT_FALSE(b.write()) << "the other does not know of it";
  run(10, {&b});
  EXPECT_NE(a.claim(), kWholeVolume);
  EXPECT_GT(b.chunks(), 0u);
}

// The other begins, from its first directory on, at some call of the one.
TEST_F(ClaimHolderTest, OfTwoThatStartAtOnceNotBothHaveAll) {
  int alone = 0;
  for (int at_call = 0; at_call < 16; ++at_call) {
    memory_ = std::make_shared<MemoryVolume>();
    std::unique_ptr<SimNode> other;
    int calls = 0;
    SimNode one({memory_, clock_,
                 [&](SimNode&) {
                   if (calls++ != at_call) return;
                   other = std::make_unique<SimNode>(SimNode::World{memory_, clock_, [](SimNode&) {}}, "b", 1);
                   other->begin();
                 }},
                "a", 1);
    one.begin();
    alone += other ? 0 : 1;
    EXPECT_FALSE(other && one.claim() == kWholeVolume && other->claim() == kWholeVolume) << "at call " << at_call;
  }
  EXPECT_LT(alone, 12) << "begin() makes more calls than that";
}

TEST_F(ClaimHolderTest, AWriterComesToUseWhatOthersDoNotAnyMore) {
  mingles_ = true;
  std::vector<SimNode*> all;
  for (const char* name : {"a", "b", "c"}) all.push_back(&start(name));
  for (SimNode* each : all) each->begin();
  run(60, all);
  for (SimNode* each : all) EXPECT_GT(each->used(), kCapacity / 10) << each->name;
  EXPECT_GT(most_, kCapacity * 3 / 4);
  run(120, {all[0]});
  EXPECT_GT(all[0]->used(), kCapacity * 7 / 10) << "b uses " << all[1]->used() << ", c " << all[2]->used();
  run(120, {all[2]});
  EXPECT_GT(all[2]->used(), kCapacity * 7 / 10);
}

TEST_F(ClaimHolderTest, WithoutEvictionNothingGoesAndNothingIsPassed) {
  SimNode &a = start("a"), &b = start("b");
  a.evicts = b.evicts = false;
  a.begin();
  b.begin();
  run(30, {&a});
  run(60, {&b});
  EXPECT_EQ(a.evicted() + b.evicted(), 0u);
  EXPECT_GT(a.used() + b.used(), kCapacity * 9 / 10);
}

TEST_F(ClaimHolderTest, WhatIsNotUsedIsLeftAtACleanEnd) {
  SimNode& a = start("a");
  a.begin();
  run(5, {&a}, 1);
  ASSERT_TRUE(a.holder->end());
  a.killed = true;
  SimNode& b = start("b");
  b.begin();
  run(30, {&b});
  EXPECT_GT(a.used() + b.used(), kCapacity * 3 / 4) << "but what it used";
}

TEST_F(ClaimHolderTest, NothingIsRaisedWhileAHeadCannotBeRead) {
  SimNode &a = start("a"), &b = start("b");
  a.begin();
  b.begin();
  run(10, {&a}, 1);
  b.blind_for = "nodes/a/1/HEAD";
  const uint64_t before = b.claim();
  run(20, {&b});
  EXPECT_LE(b.claim(), before);
  b.blind_for.clear();
  run(10, {&b});
  EXPECT_GT(b.claim(), before);
}

TEST_F(ClaimHolderTest, ANodeThatNeverToldIsMeasured) {
  memory_->put("nodes/old/1/extents/0/1.pack", Bytes(40 * kMiB));
  SimNode& a = start("a");
  a.begin();
  run(60, {&a});
  EXPECT_LE(a.used(), 24 * kMiB);
  EXPECT_GT(a.used(), 16 * kMiB);
}

// Nodes come, write, are killed in the middle of anything, and come again.
TEST_F(ClaimHolderTest, TheCapacityIsNeverPassedWhateverHappens) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    nodes_.clear();
    memory_ = std::make_shared<MemoryVolume>();
    random_.seed(seed);
    mingles_ = true;
    const size_t count = 2 + seed % 4;
    // What a node takes to exist at all it takes where another has everything: so much may be too much.
    slack_ = count * kOwnBytes;
    for (size_t at = 0; at < count; ++at) {
      start(std::string(1, static_cast<char>('a' + at))).begin();
      run(static_cast<int>(random_() % 4), {nodes_[0].get()});
    }
    for (uint32_t life = 2; life < 5; ++life) {
      std::vector<SimNode*> writers;
      for (const auto& node : nodes_)
        if (!node->killed && random_() % 3 != 0) writers.push_back(node.get());
      run(10, writers, 1 + static_cast<int>(random_() % 12));
      if (HasFatalFailure()) return;
      SimNode& victim = **std::ranges::find_if(nodes_, [](const auto& node) { return !node->killed; });
      dies_ = &victim;
      run(5, writers, 8);
      dies_ = nullptr;
      victim.killed = true;
      run(static_cast<int>(random_() % 10), writers, 8);
      SimNode& again = start(victim.name, life, &victim);
      const auto dead = std::ranges::find_if(nodes_, [&](const auto& node) { return node.get() == &victim; });
      std::swap(*dead, nodes_.back());
      graves_.push_back(std::move(nodes_.back()));
      nodes_.pop_back();
      again.begin();
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(most_, kCapacity / 2) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvcachefs

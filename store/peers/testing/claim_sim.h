// Several nodes that share a capacity, each with the real ClaimHolder, on one volume in memory. Between any two calls of one node the others
// may go on, so all orders in which they write and read HEADs come up. Nodes are also killed, or stopped for a while, at such points. One thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "store/base/units.h"
#include "store/journal/memory_volume.h"
#include "store/journal/test_records.h"
#include "store/peers/claim_holder.h"
#include "store/peers/slot_writer.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs::testing {

inline constexpr int64_t kSimSecondNs = 1'000'000'000;
inline constexpr uint64_t kSimCapacity = 64 * kMiB, kSimChunk = 256 * kKiB, kSimOwnBytes = 512 * kKiB;

class SimNode;

// On it a node has one file, of which only the size exists.
class SimDisk final : public MemoryVolume {
 public:
  std::map<std::string, const SimNode*> parts;  // by node name: its last life
  Result<FileInfo> info(const std::string& path) override;
};

// Stores chunks: they are accepted, and on the volume a moment later. Evicts its oldest chunks as its plan says, and gives their space back after
// a second.
class SimNode final : public ClaimUser {
 public:
  struct World {
    std::shared_ptr<SimDisk> disk;
    ManualClock& clock;
    std::function<void(SimNode&)> between;  // called between two calls of this node
  };
  SimNode(World world, std::string called, uint32_t epoch, const SimNode* before = nullptr) : name(std::move(called)), world_(std::move(world)) {
    FileIdentity identity = test_identity(epoch);
    identity.node = name;
    if (!world_.disk->features().network) lock_ = world_.disk->lock("nodes/" + name + "/LOCK").value_or(nullptr);
    EXPECT_TRUE(world_.disk->make_directories(epoch_directory(name, epoch)));
    world_.disk->put("nodes/" + name + "/bytes", {});
    world_.disk->parts[name] = this;
    if (before != nullptr) {
      chunks_ = before->chunks_;
      dead_ = before->dead_;
    }
    volume_ = make_fault_volume(world_.disk, [this](const VolumeCall& call) -> Fault {
      if (!killed_) world_.between(*this);
      return killed_ || (!blind_for.empty() && call.path.starts_with(blind_for)) ? Fault{EIO, -1, 0} : Fault{};
    });
    discovery_ = std::make_unique<Discovery>(volume_, identity, world_.clock, std::map<std::string, uint32_t>{}, Discovery::Limits{});
    writer_ = std::make_unique<HeadWriter>(volume_, identity);
    const auto tell = [this](const OwnFigures& own, uint64_t claim_bytes, uint64_t wish_bytes) {
      Head head;
      head.physical_bytes = own.physical_bytes;
      head.capacity_bytes = own.capacity_bytes;
      head.claim_bytes = claim_bytes;
      head.wish_bytes = wish_bytes;
      head.bytes_by_age = own.evictable_by_age;
      ++told;
      return writer_->write(head);
    };
    holder = std::make_unique<ClaimHolder>(ClaimHolder::Parts{
        .volume = *volume_, .own = identity, .clock = world_.clock, .user = *this, .tell = tell, .boot_ns = [this] { return now(); }});
  }

  // --- what its clients and its keeper do
  bool write() {
    const bool holds = now() <= until_ns_ && used() + kSimChunk <= std::min({claim_, sinks_to_, capacity});
    if (killed_ || paused || !holds) {
      waits_ = wants_ = true;
      return false;
    }
    accepted_.push_back(now());
    written_ += kSimChunk;
    wants_ |= less_bytes(claim_, used()) < low_bytes_;
    return true;
  }
  // One call that takes all of it or nothing, as a truncate or fallocate of a raw file does.
  bool write_at_once(uint64_t chunks) {
    for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
      const bool holds = now() <= until_ns_ && used() + kSimChunk * (chunks - chunk) <= std::min({claim_, sinks_to_, capacity});
      if (!holds) {
        waits_ = wants_ = true;
        lacking_ = less_bytes(used() + kSimChunk * (chunks - chunk), claim_);
        return false;
      }
      accepted_.push_back(now());
      written_ += kSimChunk;
    }
    lacking_ = 0;
    return true;
  }
  void settle() {
    if (killed_ || paused) return;
    for (; !accepted_.empty() && now() - accepted_.front() >= kSimSecondNs / 2; accepted_.pop_front()) chunks_.push_back(accepted_.front());
    for (; !dead_.empty() && now() - dead_.front() >= kSimSecondNs; dead_.pop_front()) wants_ |= sinks_to_ < claim_;
  }
  // --- what its daemon does
  void begin() {
    busy = true;
    static_cast<void>(holder->begin());
    busy = false;
  }
  void step(bool look) {
    if (killed_ || paused || busy) return;
    busy = true;
    settle();
    if (look) discovery_->look();
    const bool due = !stepped_ns_ || now() - *stepped_ns_ >= kSimSecondNs;
    if (due || holder->due_ns(std::exchange(wants_, false)) <= now()) {
      if (due) stepped_ns_ = now();
      static_cast<void>(holder->step(discovery_->nodes(), false));
    }
    busy = false;
  }
  // Accepted chunks are lost, and its lock is free.
  void kill() {
    killed_ = true;
    accepted_.clear();
    lock_.reset();
  }

  uint64_t physical() const { return kSimOwnBytes + kSimChunk * (chunks_.size() + dead_.size()); }
  uint64_t used() const { return physical() + accepted_bytes(); }
  uint64_t accepted_bytes() const { return kSimChunk * accepted_.size(); }
  uint64_t claim() const { return claim_; }
  size_t chunks() const { return chunks_.size() + accepted_.size(); }
  uint64_t evicted() const { return evicted_; }
  bool killed() const { return killed_; }
  void remove_all() { chunks_.clear(); }

  OwnFigures figures(bool) override {
    OwnFigures own;
    own.capacity_bytes = capacity;
    own.physical_bytes = physical();
    own.used_bytes = used();
    own.used_soon_bytes = kSimOwnBytes + kSimChunk * chunks();
    own.written_per_s = std::exchange(written_, 0);
    own.evicts = evicts;
    own.waits = std::exchange(waits_, false);
    own.lacking_bytes = std::exchange(lacking_, 0);
    if (evicts)
      for (const int64_t since : chunks_) {
        const auto age_s = static_cast<uint64_t>((now() - since) / kSimSecondNs);
        own.evictable_by_age[std::min<size_t>(static_cast<size_t>(std::bit_width(age_s)), kAgeClasses - 1)] += kSimChunk;
      }
    return own;
  }
  uint64_t lower_claim(uint64_t bytes) override { return claim_ = std::max(bytes, used()); }
  void sink_claim(uint64_t bytes) override { sinks_to_ = bytes; }
  void raise_claim(uint64_t bytes) override {
    claim_ = bytes;
    sinks_to_ = UINT64_MAX;
  }
  void hold_until(int64_t until_ns) override { until_ns_ = until_ns; }
  void follow(const ClaimPlan& plan, bool alone) override {
    low_bytes_ = plan.low_bytes;
    if (now() - shared_ns_ < kSimSecondNs * 9 / 10) return;
    shared_ns_ = now();
    uint64_t evict_bytes = plan.evict_bytes;
    if (alone) evict_bytes = evicts && used() > capacity - capacity / 20 ? capacity / 32 : 0;
    for (uint64_t left = evict_bytes; left >= kSimChunk && !chunks_.empty(); left -= kSimChunk) {
      chunks_.pop_front();
      dead_.push_back(now());
      evicted_ += kSimChunk;
    }
  }

  const std::string name;
  std::string blind_for;  // paths that begin with this cannot be read by it
  bool paused = false, busy = false, evicts = true;
  uint64_t capacity = kSimCapacity, told = 0;
  std::unique_ptr<ClaimHolder> holder;

 private:
  int64_t now() const { return world_.clock.monotonic_ns(); }
  const World world_;
  std::unique_ptr<VolumeLock> lock_;
  std::shared_ptr<Volume> volume_;
  std::unique_ptr<Discovery> discovery_;
  std::unique_ptr<HeadWriter> writer_;
  std::deque<int64_t> accepted_, chunks_, dead_;  // the time at which each was accepted, stored or evicted
  uint64_t claim_ = 0, sinks_to_ = UINT64_MAX, low_bytes_ = 0, written_ = 0, evicted_ = 0, lacking_ = 0;
  bool killed_ = false, waits_ = false, wants_ = false;
  std::optional<int64_t> stepped_ns_;
  int64_t shared_ns_ = INT64_MIN / 2, until_ns_ = INT64_MAX;
};

inline Result<FileInfo> SimDisk::info(const std::string& path) {
  KVC_ASSIGN(FileInfo info, MemoryVolume::info(path));
  for (const auto& [name, node] : parts)
    if (path == "nodes/" + name + "/bytes") info.allocated_bytes = node->physical();
  return info;
}

}  // namespace kvcachefs::testing

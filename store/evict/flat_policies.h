// Baselines that know nothing of prefixes: queues of units. They evict heads before tails, so use them only for comparison.
#pragma once

#include <array>
#include <deque>

#include "store/evict/key_index.h"
#include "store/evict/paged_vector.h"
#include "store/evict/policy.h"

namespace kvcachefs::evict {

// Keeps each unit in one queue, from newest to oldest.
class UnitQueues {
 public:
  static constexpr size_t kQueues = 2;
  struct Unit {
    UnitKey key;
    uint32_t newer = kNoSlot, older = kNoSlot;
    uint32_t used_16ms = 0;  // when it was last read or written
    uint8_t queue = 0;
    uint8_t reads = 0;
  };
  uint32_t find(UnitKey key) const { return index_.find(key, key_of()); }
  Unit& unit(uint32_t slot) { return units_[slot]; }
  const Unit& unit(uint32_t slot) const { return units_[slot]; }
  uint32_t add(UnitKey key, uint8_t queue);
  void remove(uint32_t slot);
  void move_to_front(uint32_t slot, uint8_t queue);
  uint32_t oldest(uint8_t queue) const { return oldest_[queue]; }
  size_t size(uint8_t queue) const { return size_[queue]; }
  size_t size() const { return size_[0] + size_[1]; }
  size_t memory_bytes() const { return units_.memory_bytes() + index_.memory_bytes(); }
  std::string check() const;

 private:
  struct KeyOf {
    const PagedVector<Unit>* units;
    UnitKey operator()(uint32_t slot) const { return (*units)[slot].key; }
  };
  KeyOf key_of() const { return {&units_}; }
  void link(uint32_t slot, uint8_t queue);
  void unlink(uint32_t slot);

  PagedVector<Unit> units_;
  KeyIndex index_;
  uint32_t free_ = kNoSlot;
  std::array<uint32_t, kQueues> newest_{kNoSlot, kNoSlot}, oldest_{kNoSlot, kNoSlot};
  std::array<size_t, kQueues> size_{};
};

class FlatPolicy : public Policy {
 public:
  bool holds(UnitKey unit) const override { return queues_.find(unit) != kNoSlot; }
  size_t units() const override { return queues_.size(); }
  bool read(UnitKey unit, TimeMs now) override;
  void publish(const Published& what, TimeMs now) override;
  void unlink(UnitKey unit) override;
  void relink(UnitKey, UnitKey) override {}
  void link_checked(bool) override {}
  Choice choose(const Ask& ask, std::vector<UnitKey>& out) override;
  void evicted(UnitKey unit) override;
  PolicyCounts counts() const override;
  std::string check() const override { return queues_.check(); }

 protected:
  static constexpr uint8_t kMostReads = 3;
  virtual uint8_t queue_of_new(UnitKey) { return 0; }
  virtual uint8_t queue_to_evict_from() const { return 0; }
  // Called for the oldest unit of its queue. Returns true if it was read since it was put there and so moves to the front or to the other
  // queue.
  virtual bool goes_on(uint32_t slot) = 0;
  virtual void on_evicted(const UnitQueues::Unit&) {}

  UnitQueues queues_;

 private:
  void advance(TimeMs now) { now_ms_ = std::max(now_ms_, now.value); }
  uint32_t tick() const { return static_cast<uint32_t>(now_ms_ / 16); }
  int64_t now_ms_ = 0;
  PolicyCounts counted_;
};

// First in, first out; a unit read since then gets another round.
class FifoReinsert final : public FlatPolicy {
 public:
  std::string_view name() const override { return "fifo-reinsert"; }

 private:
  bool goes_on(uint32_t slot) override;
};

// S3-FIFO: a small queue (a tenth) filters units read only once, a main queue goes round, and returning ghosts enter the main queue.
class S3Fifo final : public FlatPolicy {
 public:
  std::string_view name() const override { return "s3fifo"; }

 private:
  static constexpr uint8_t kSmall = 0, kMain = 1;
  uint8_t queue_of_new(UnitKey unit) override;
  uint8_t queue_to_evict_from() const override;
  bool goes_on(uint32_t slot) override;
  void on_evicted(const UnitQueues::Unit& unit) override;

  // Keys of units that left the small queue, as many as the main queue has units; a key that came back leaves a hole.
  struct GhostKeys {
    std::deque<UnitKey> ring;
    uint32_t first = 0;
    KeyIndex index;
    UnitKey operator()(uint32_t number) const { return ring[uint32_t{number - first}]; }
  } ghosts_;
};

}  // namespace kvcachefs::evict

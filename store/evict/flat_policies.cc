#include "store/evict/flat_policies.h"

#include <algorithm>
#include <array>

namespace kvcachefs::evict {

namespace {
constexpr size_t kMostUnits = 4096;  // examined in one call
}  // namespace

uint32_t UnitQueues::add(UnitKey key, uint8_t queue) {
  uint32_t slot = free_;
  if (slot != kNoSlot) {
    free_ = units_[slot].older;
  } else {
    slot = static_cast<uint32_t>(units_.size());
    units_.push_back({});
  }
  units_[slot] = Unit();
  units_[slot].key = key;
  index_.insert(key, slot, key_of());
  link(slot, queue);
  return slot;
}

void UnitQueues::remove(uint32_t slot) {
  unlink(slot);
  index_.erase(units_[slot].key, key_of());
  units_[slot] = Unit();
  units_[slot].older = free_;
  free_ = slot;
}

void UnitQueues::move_to_front(uint32_t slot, uint8_t queue) {
  unlink(slot);
  link(slot, queue);
}

void UnitQueues::link(uint32_t slot, uint8_t queue) {
  Unit& unit = units_[slot];
  unit.queue = queue;
  unit.newer = kNoSlot;
  unit.older = newest_[queue];
  if (unit.older != kNoSlot) units_[unit.older].newer = slot;
  newest_[queue] = slot;
  if (oldest_[queue] == kNoSlot) oldest_[queue] = slot;
  ++size_[queue];
}

void UnitQueues::unlink(uint32_t slot) {
  const Unit& unit = units_[slot];
  (unit.newer == kNoSlot ? newest_[unit.queue] : units_[unit.newer].older) = unit.older;
  (unit.older == kNoSlot ? oldest_[unit.queue] : units_[unit.older].newer) = unit.newer;
  --size_[unit.queue];
}

std::string UnitQueues::check() const {
  for (uint8_t queue = 0; queue < kQueues; ++queue) {
    size_t length = 0;
    uint32_t older = kNoSlot;
    for (uint32_t slot = oldest_[queue]; slot != kNoSlot && length <= size_[queue]; slot = units_[slot].newer) {
      if (units_[slot].older != older || units_[slot].queue != queue) return "a queue is not linked both ways";
      if (find(units_[slot].key) != slot) return "a unit is not found by its key";
      older = slot;
      ++length;
    }
    if (length != size_[queue] || newest_[queue] != older) return "a queue does not add up";
  }
  return {};
}

bool FlatPolicy::read(UnitKey unit, TimeMs now) {
  const uint32_t slot = queues_.find(unit);
  if (slot == kNoSlot) return false;
  advance(now);
  UnitQueues::Unit& found = queues_.unit(slot);
  found.used_16ms = tick();
  if (found.reads < kMostReads) ++found.reads;
  return true;
}

void FlatPolicy::publish(const Published& what, TimeMs now) {
  if (read(what.unit, now)) return;
  advance(now);
  const uint32_t slot = queues_.add(what.unit, queue_of_new(what.unit));
  queues_.unit(slot).used_16ms = tick();
}

void FlatPolicy::unlink(UnitKey unit) {
  if (const uint32_t slot = queues_.find(unit); slot != kNoSlot) queues_.remove(slot);
}

void FlatPolicy::evicted(UnitKey unit) {
  const uint32_t slot = queues_.find(unit);
  if (slot == kNoSlot) return;
  const UnitQueues::Unit gone = queues_.unit(slot);
  queues_.remove(slot);
  on_evicted(gone);
}

// Chooses one unit a call: the fate of each unit decides which comes next.
Choice FlatPolicy::choose(const Ask& ask, std::vector<UnitKey>& out) {
  advance(ask.now);
  Choice choice;
  if (ask.max_units == 0) return choice;
  // Each unit may go round as often as it was read, and once more for being held.
  size_t left = queues_.size() * (kMostReads + 2);
  choice.reason = left > kMostUnits ? Reason::kBusy : Reason::kNothing;
  std::array<size_t, UnitQueues::kQueues> held_in_a_row{};  // per queue, in a row
  const auto is_held = [&](uint8_t queue) { return held_in_a_row[queue] >= std::min(queues_.size(queue), kMostUnits / 2); };
  for (left = std::min(left, kMostUnits); left > 0; --left) {
    uint8_t queue = queue_to_evict_from();
    if (is_held(queue)) queue = static_cast<uint8_t>(1 - queue);
    if (is_held(queue)) break;
    const uint32_t slot = queues_.oldest(queue);
    if (slot == kNoSlot) break;
    const UnitQueues::Unit& unit = queues_.unit(slot);
    const int64_t age_ms = int64_t{uint32_t{tick() - unit.used_16ms}} * 16;
    const bool leased = ask.lease_ms > 0 && !ask.break_leases && age_ms < ask.lease_ms + 16;
    Hold hold = ask.held != nullptr && *ask.held ? (*ask.held)(unit.key) : Hold::kNone;
    if (hold == Hold::kLeased && ask.break_leases) hold = Hold::kNone;
    if (leased || hold != Hold::kNone) {
      ++(leased || hold == Hold::kLeased ? counted_.skipped_leased : counted_.skipped_held);
      queues_.move_to_front(slot, queue);
      ++held_in_a_row[queue];
      continue;
    }
    held_in_a_row[queue] = 0;
    if (!goes_on(slot)) {
      choice = {ask.break_leases ? Reason::kLeaseBroken : Reason::kRecency, age_ms};
      out.push_back(unit.key);
      return choice;
    }
  }
  return choice;
}

PolicyCounts FlatPolicy::counts() const {
  PolicyCounts counts = counted_;
  counts.units = queues_.size();
  counts.memory_bytes = queues_.memory_bytes();
  return counts;
}

bool FifoReinsert::goes_on(uint32_t slot) {
  UnitQueues::Unit& unit = queues_.unit(slot);
  if (unit.reads == 0) return false;
  unit.reads = 0;
  queues_.move_to_front(slot, 0);
  return true;
}

uint8_t S3Fifo::queue_of_new(UnitKey unit) {
  const uint32_t number = ghosts_.index.find(unit, ghosts_);
  if (number == kNoSlot) return kSmall;
  ghosts_.index.erase(unit, ghosts_);
  ghosts_.ring[uint32_t{number - ghosts_.first}] = {};
  return kMain;
}

uint8_t S3Fifo::queue_to_evict_from() const { return queues_.size(kSmall) * 10 >= queues_.size() ? kSmall : kMain; }

bool S3Fifo::goes_on(uint32_t slot) {
  UnitQueues::Unit& unit = queues_.unit(slot);
  if (unit.queue == kSmall) {
    if (unit.reads <= 1) return false;
    unit.reads = 0;
  } else {
    if (unit.reads == 0) return false;
    --unit.reads;
  }
  queues_.move_to_front(slot, kMain);
  return true;
}

void S3Fifo::on_evicted(const UnitQueues::Unit& unit) {
  if (unit.queue != kSmall) return;
  const size_t limit = queues_.size() - queues_.size() / 10 + 16;
  const uint32_t number = ghosts_.first + static_cast<uint32_t>(ghosts_.ring.size());
  if (number == kNoSlot) {  // the number that means "none"
    ghosts_.ring.push_back({});
    return on_evicted(unit);
  }
  ghosts_.ring.push_back(unit.key);
  ghosts_.index.insert(unit.key, number, ghosts_);
  while (ghosts_.ring.size() > limit) {
    if (ghosts_.ring.front().valid()) ghosts_.index.erase(ghosts_.ring.front(), ghosts_);
    ghosts_.ring.pop_front();
    ++ghosts_.first;
  }
}

}  // namespace kvcachefs::evict

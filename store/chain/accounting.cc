#include "store/chain/accounting.h"

namespace kvcachefs {

PrefetchState PrefetchAccounting::state(ObjectId id) const {
  auto found = entries_.find(id);
  return found == entries_.end() ? PrefetchState::kNone : found->second.state;
}

bool PrefetchAccounting::planned(ObjectId id) {
  if (!entries_.try_emplace(id, Entry{PrefetchState::kPlanned, 0}).second) return false;
  ++totals_.planned_objects;
  return true;
}

void PrefetchAccounting::wanted(ObjectId id) {
  auto found = entries_.find(id);
  if (found != entries_.end() && found->second.state == PrefetchState::kPlanned) {
    found->second.state = PrefetchState::kAwaited;
  }
}

bool PrefetchAccounting::loaded(ObjectId id, uint64_t bytes) {
  auto found = entries_.find(id);
  if (found == entries_.end()) return false;
  Entry& entry = found->second;
  if (entry.state != PrefetchState::kPlanned && entry.state != PrefetchState::kAwaited) return false;
  entry.bytes = bytes;
  totals_.read_bytes += bytes;
  if (entry.state == PrefetchState::kAwaited) {
    totals_.used_bytes += bytes;
    totals_.late_bytes += bytes;
    entry.state = PrefetchState::kUsed;
  } else {
    entry.state = PrefetchState::kLoaded;
  }
  return true;
}

void PrefetchAccounting::read(ObjectId id) {
  auto found = entries_.find(id);
  if (found == entries_.end()) return;
  if (found->second.state == PrefetchState::kPlanned) found->second.state = PrefetchState::kAwaited;
  if (found->second.state != PrefetchState::kLoaded) return;
  found->second.state = PrefetchState::kUsed;
  totals_.used_bytes += found->second.bytes;
}

void PrefetchAccounting::removed(ObjectId id) {
  auto found = entries_.find(id);
  if (found == entries_.end()) return;
  // Its load is queued or in flight, and will end on its own.
  if (found->second.state == PrefetchState::kPlanned || found->second.state == PrefetchState::kAwaited) return;
  if (found->second.state == PrefetchState::kLoaded) totals_.wasted_bytes += found->second.bytes;
  entries_.erase(found);
}

void PrefetchAccounting::cancelled(ObjectId id) {
  auto found = entries_.find(id);
  if (found == entries_.end()) return;
  if (found->second.state != PrefetchState::kPlanned && found->second.state != PrefetchState::kAwaited) return;
  ++totals_.cancelled_objects;
  entries_.erase(found);
}

void PrefetchAccounting::skipped(ObjectId id) {
  auto found = entries_.find(id);
  if (found == entries_.end()) return;
  if (found->second.state != PrefetchState::kPlanned && found->second.state != PrefetchState::kAwaited) return;
  ++totals_.skipped_objects;
  entries_.erase(found);
}

}  // namespace kvcachefs

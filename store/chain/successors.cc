#include "store/chain/successors.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace kvcachefs {
namespace {

constexpr uint8_t kCountMax = 250;
// Conflicts counted when a predecessor is replaced: the new one must be seen again before it is followed. Heads of prompts, which
// follow another prompt's tail at random, never reach that.
constexpr uint8_t kContested = 2;
// A link seen this often is followed even if the follower has more evidence for another predecessor.
constexpr uint8_t kFollowedAnyway = 3;

// True if a link with this count is worth a write to the index: at its first few sightings, then at every doubling.
bool worth_persisting(uint8_t count) { return (count & (count - 1)) == 0; }

}  // namespace

SuccessorsRecord to_record(ObjectId id, const SuccessorRow& row) {
  SuccessorsRecord record{id, row.predecessor, {}};
  for (const auto& link : row.successors) record.successors.emplace_back(link.id, std::max<uint32_t>(link.count, 1));
  if (row.sibling.valid()) record.successors.emplace_back(row.sibling, 0);
  return record;
}

SuccessorRow from_record(const SuccessorsRecord& record) {
  SuccessorRow row;
  row.predecessor = record.predecessor;
  for (const auto& [id, count] : record.successors) {
    if (count == 0) {
      row.sibling = id;
    } else if (row.successors.size() < SuccessorTable::kMaxSuccessors) {
      row.successors.push_back({id, count});
    }
  }
  return row;
}

SuccessorTable::SuccessorTable(size_t memory_bytes, Loader loader)
    : set_count_(std::clamp<size_t>(memory_bytes / sizeof(Set), 1, UINT32_MAX)), loader_(std::move(loader)) {
  // calloc: pages that no row has touched yet cost no memory.
  sets_ = static_cast<Set*>(std::calloc(set_count_, sizeof(Set)));
  if (sets_ == nullptr) throw std::bad_alloc();
}

SuccessorTable::~SuccessorTable() { std::free(sets_); }

SuccessorTable::Set& SuccessorTable::set_of(uint64_t id) {
  uint64_t h = id * 0x9e3779b97f4a7c15ULL;
  h = (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9ULL;
  return sets_[static_cast<size_t>(((h >> 32) * set_count_) >> 32)];  // set_count_ < 2^32
}

SuccessorTable::Row* SuccessorTable::find(uint64_t id) {
  Set& set = set_of(id);
  for (size_t way = 0; way < kWays; ++way) {
    if (set.ids[way] == id) return &set.rows[way];
  }
  return nullptr;
}

size_t SuccessorTable::victim(Set& set) {
  for (size_t way = 0; way < kWays; ++way) {
    if (set.ids[way] == 0) return way;
  }
  for (size_t step = 0; step < 2 * kWays; ++step) {
    const size_t way = hand_++ % kWays;
    if (!(set.rows[way].flags & kReferenced)) return way;
    set.rows[way].flags = static_cast<uint8_t>(set.rows[way].flags & ~kReferenced);
  }
  return hand_++ % kWays;
}

void SuccessorTable::spill(Set& set, size_t way) {
  if (set.ids[way] != 0 && (set.rows[way].flags & kDirty)) {
    if (spilled_.size() < kMaxSpilled) {
      spilled_[set.ids[way]] = unpack(set.rows[way]);
    } else {
      ++lost_rows_;
    }
  }
}

SuccessorTable::Row& SuccessorTable::fetch(uint64_t id) {
  if (Row* row = find(id)) {
    row->flags |= kReferenced;
    return *row;
  }
  std::optional<SuccessorRow> stored;
  uint8_t flags = kReferenced;
  if (auto waiting = spilled_.find(id); waiting != spilled_.end()) {
    stored = std::move(waiting->second);
    spilled_.erase(waiting);
    flags |= kDirty;  // its place in dirty_order_ stays
  } else if (loader_) {
    stored = loader_(ObjectId{id});
  }
  Set& set = set_of(id);
  const size_t way = victim(set);
  spill(set, way);
  rows_ += set.ids[way] == 0;
  set.ids[way] = id;
  set.rows[way] = Row{};
  if (stored) pack(*stored, set.rows[way]);
  set.rows[way].flags = flags;
  return set.rows[way];
}

SuccessorRow SuccessorTable::unpack(const Row& row) {
  SuccessorRow out;
  const size_t top = best(row);
  for (size_t pass = 0; pass < 2; ++pass) {
    for (size_t i = 0; i < kMaxSuccessors && row.successors[i] != 0; ++i) {
      if ((i == top) == (pass == 0)) out.successors.push_back({ObjectId{row.successors[i]}, row.counts[i]});
    }
  }
  if (row.agree >= row.conflict) out.predecessor = ObjectId{row.predecessor};
  out.sibling = ObjectId{row.sibling};
  return out;
}

void SuccessorTable::pack(const SuccessorRow& from, Row& to) {
  for (size_t i = 0; i < from.successors.size() && i < kMaxSuccessors; ++i) {
    to.successors[i] = from.successors[i].id.value;
    to.counts[i] = static_cast<uint8_t>(std::clamp<uint32_t>(from.successors[i].count, 1, kCountMax));
  }
  to.predecessor = from.predecessor.value;
  to.agree = from.predecessor.valid() ? 1 : 0;
  to.sibling = from.sibling.value;
}

void SuccessorTable::mark_dirty(uint64_t id, Row& row) {
  if (row.flags & kDirty) return;
  row.flags |= kDirty;
  dirty_order_.push_back(id);
  trim_dirty();
}

// If nothing drains, forget the oldest change rather than grow. (Ids of lost rows stay queued until here.)
void SuccessorTable::trim_dirty() {
  while (dirty_order_.size() > set_count_ * kWays + kMaxSpilled) {
    const uint64_t oldest = dirty_order_.front();
    dirty_order_.pop_front();
    if (Row* forgotten = find(oldest)) forgotten->flags = static_cast<uint8_t>(forgotten->flags & ~kDirty);
    spilled_.erase(oldest);
  }
}

// The highest count; the most recently seen (the first) wins ties.
size_t SuccessorTable::best(const Row& row) {
  size_t top = 0;
  for (size_t i = 1; i < kMaxSuccessors && row.successors[i] != 0; ++i) {
    if (row.counts[i] > row.counts[top]) top = i;
  }
  return top;
}

void SuccessorTable::note_successor(uint64_t before, uint64_t after) {
  Row& row = fetch(before);
  size_t at = 0;
  while (at < kMaxSuccessors && row.successors[at] != 0 && row.successors[at] != after) ++at;
  uint8_t count = 0;
  if (at < kMaxSuccessors && row.successors[at] == after) {
    count = row.counts[at];
  } else if (at == kMaxSuccessors) {  // full: the one seen longest ago goes
    at = kMaxSuccessors - 1;
  }
  // Older sightings count half: a conversation continues where it went last, but a continuation seen many times survives one
  // request that leaves it.
  if (at != 0 || count == 0 || best(row) != 0) {
    for (size_t i = 0; i < kMaxSuccessors; ++i) row.counts[i] = static_cast<uint8_t>((row.counts[i] + 1) / 2);
    count = static_cast<uint8_t>((count + 1) / 2);
  }
  const bool moved = at != 0 || row.successors[0] != after;
  for (; at > 0; --at) {
    row.successors[at] = row.successors[at - 1];
    row.counts[at] = row.counts[at - 1];
  }
  row.successors[0] = after;
  row.counts[0] = static_cast<uint8_t>(std::min<int>(count + 1, kCountMax));
  if (moved || row.successors[1] != 0 || row.counts[0] == kFollowedAnyway) ++changes_;
  if (moved || (row.counts[0] < kCountMax && worth_persisting(row.counts[0]))) mark_dirty(before, row);
}

bool SuccessorTable::still_leads_to(uint64_t before, uint64_t after) {
  const Row& row = fetch(before);
  return std::find(std::begin(row.successors), std::end(row.successors), after) != std::end(row.successors);
}

// Returns false if the evidence contradicts a well-founded predecessor.
bool SuccessorTable::note_predecessor(uint64_t before, uint64_t after) {
  const uint64_t known = fetch(after).predecessor;
  // A predecessor that was evicted and written again has another id: no reason to doubt the new one.
  const bool stale = known != 0 && known != before && !still_leads_to(known, after);
  Row& row = fetch(after);
  if (known == before && known != 0) {
    if (row.agree >= kCountMax) {
      row.agree /= 2;
      row.conflict /= 2;
    }
    if (++row.agree == row.conflict) ++changes_;
    return true;
  }
  if (known == 0 || stale) {
    ++changes_;
    row.predecessor = before;
    row.agree = 1;
    row.conflict = 0;
    mark_dirty(after, row);
    return true;
  }
  if (row.conflict < kCountMax) ++row.conflict;
  if (row.conflict <= row.agree) return false;
  ++changes_;
  row.predecessor = before;
  row.agree = 1;
  row.conflict = kContested;
  mark_dirty(after, row);
  return true;
}

void SuccessorTable::learn(ObjectId before, ObjectId after) {
  if (!before.valid() || !after.valid() || before == after) return;
  note_predecessor(before.value, after.value);
  note_successor(before.value, after.value);
}

void SuccessorTable::learn_if_unknown(ObjectId before, ObjectId after) {
  if (!before.valid() || !after.valid() || before == after) return;
  const uint64_t known = fetch(after.value).predecessor;
  if (known == 0 || known == before.value) learn(before, after);
}

ObjectId SuccessorTable::next(ObjectId id) {
  if (!id.valid()) return {};
  const Row row = fetch(id.value);  // a copy: the next fetch may evict it
  const size_t top = best(row);
  const uint64_t candidate = row.successors[top];
  if (candidate == 0) return {};
  uint32_t sum = 0;
  for (size_t i = 0; i < kMaxSuccessors; ++i) sum += row.counts[i];
  const bool likely = 2u * row.counts[top] >= sum;
  if (!likely) return {};
  const Row& follower = fetch(candidate);
  const bool founded = follower.predecessor == id.value && follower.agree >= follower.conflict;
  if (!founded && row.counts[top] < kFollowedAnyway) return {};
  return ObjectId{candidate};
}

void SuccessorTable::successors(ObjectId id, std::vector<ObjectId>& out) {
  out.clear();
  if (!id.valid()) return;
  for (const auto& link : unpack(fetch(id.value)).successors) out.push_back(link.id);
}

ObjectId SuccessorTable::predecessor(ObjectId id) {
  if (!id.valid()) return {};
  const Row& row = fetch(id.value);
  return row.agree >= row.conflict ? ObjectId{row.predecessor} : ObjectId{};
}

bool SuccessorTable::has_successor(ObjectId id) { return id.valid() && fetch(id.value).successors[0] != 0; }

void SuccessorTable::link_siblings(ObjectId a, ObjectId b) {
  if (!a.valid() || !b.valid() || a == b) return;
  if (fetch(b.value).sibling != 0) return;  // in a ring already
  const uint64_t after_a = fetch(a.value).sibling;
  Row& row_a = fetch(a.value);
  row_a.sibling = b.value;
  mark_dirty(a.value, row_a);
  Row& row_b = fetch(b.value);
  row_b.sibling = after_a == 0 ? a.value : after_a;
  mark_dirty(b.value, row_b);
}

void SuccessorTable::siblings(ObjectId id, size_t max, std::vector<ObjectId>& out) {
  out.clear();
  if (!id.valid()) return;
  uint64_t at = fetch(id.value).sibling;
  while (at != 0 && at != id.value && out.size() < max) {
    if (std::find(out.begin(), out.end(), ObjectId{at}) != out.end()) return;  // a damaged ring
    out.push_back(ObjectId{at});
    at = fetch(at).sibling;
  }
}

void SuccessorTable::drop_successor(uint64_t before, uint64_t after) {
  Row* row = &fetch(before);
  size_t kept = 0;
  for (size_t i = 0; i < kMaxSuccessors; ++i) {
    if (row->successors[i] == after) continue;
    row->successors[kept] = row->successors[i];
    row->counts[kept++] = row->counts[i];
  }
  if (kept == kMaxSuccessors) return;
  ++changes_;  // of several successors, another one may be likely now
  for (; kept < kMaxSuccessors; ++kept) {
    row->successors[kept] = 0;
    row->counts[kept] = 0;
  }
  mark_dirty(before, *row);
}

void SuccessorTable::erase(ObjectId id) {
  if (!id.valid()) return;
  const Row gone = fetch(id.value);
  if (gone.predecessor != 0) drop_successor(gone.predecessor, id.value);
  for (uint64_t successor : gone.successors) {
    Row* row = successor == 0 ? nullptr : find(successor);
    if (row == nullptr || row->predecessor != id.value) continue;
    row->predecessor = 0;
    row->agree = row->conflict = 0;
    mark_dirty(successor, *row);
  }
  std::vector<ObjectId> ring;
  siblings(id, 64, ring);
  if (!ring.empty() && fetch(ring.back().value).sibling == id.value) {
    Row& last = fetch(ring.back().value);
    last.sibling = ring.size() == 1 ? 0 : gone.sibling;
    mark_dirty(ring.back().value, last);
  }
  Set& set = set_of(id.value);
  for (size_t way = 0; way < kWays; ++way) {
    if (set.ids[way] != id.value) continue;
    --rows_;
    set.ids[way] = 0;
    set.rows[way] = Row{};
  }
  spilled_.erase(id.value);
}

std::optional<SuccessorRow> SuccessorTable::row(ObjectId id) {
  if (!id.valid()) return std::nullopt;
  SuccessorRow out = unpack(fetch(id.value));
  if (out == SuccessorRow{}) return std::nullopt;
  return out;
}

void SuccessorTable::drain_one(uint64_t id, std::vector<std::pair<ObjectId, SuccessorRow>>& out) {
  if (Row* row = find(id); row != nullptr) {
    if (!(row->flags & kDirty)) return;
    row->flags = static_cast<uint8_t>(row->flags & ~kDirty);
    out.emplace_back(ObjectId{id}, unpack(*row));
  } else if (auto waiting = spilled_.find(id); waiting != spilled_.end()) {
    out.emplace_back(ObjectId{id}, std::move(waiting->second));
    spilled_.erase(waiting);
  }
}

std::vector<std::pair<ObjectId, SuccessorRow>> SuccessorTable::drain_dirty(size_t max) {
  std::vector<std::pair<ObjectId, SuccessorRow>> out;
  while (out.size() < max && !dirty_order_.empty()) {
    const uint64_t id = dirty_order_.front();
    dirty_order_.pop_front();
    drain_one(id, out);
  }
  return out;
}

std::vector<std::pair<ObjectId, SuccessorRow>> SuccessorTable::drain_dirty_of(std::span<const ObjectId> ids) {
  std::vector<std::pair<ObjectId, SuccessorRow>> out;
  for (const ObjectId id : ids) drain_one(id.value, out);
  return out;
}

void SuccessorTable::keep_dirty(ObjectId id, const SuccessorRow& drained) {
  if (Row* row = find(id.value)) return mark_dirty(id.value, *row);
  if (spilled_.size() >= kMaxSpilled || !spilled_.try_emplace(id.value, drained).second) return;
  dirty_order_.push_back(id.value);
  trim_dirty();
}

}  // namespace kvcachefs

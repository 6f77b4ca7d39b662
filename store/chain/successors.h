// The successors of each object. A chunk's name hashes its whole prefix, so a chunk has one true predecessor and, where prompts
// branch, several successors. Both are learned from the order of probes, writes and reads, and are only hints: a lost row costs a
// demand read, never a wrong byte.
//
// RAM: 64 bytes an object in a fixed table (rows, 8 to a set); rows that do not fit are fetched again through the loader. Changed
// rows wait for the store to persist them (drain_dirty()).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/base/records.h"
#include "store/base/types.h"

namespace kvcachefs {

struct SuccessorRow {
  struct Link {
    ObjectId id;
    uint32_t count = 0;
    bool operator==(const Link&) const = default;
  };
  std::vector<Link> successors;  // most likely first, at most SuccessorTable::kMaxSuccessors
  ObjectId predecessor;          // invalid if unknown or contested
  ObjectId sibling;              // next in the ring of siblings (chunks of this position in other ranks)
  bool operator==(const SuccessorRow&) const = default;
};

// The persistent form. The record has no field for the sibling: it is stored as a last entry with the count 0.
SuccessorsRecord to_record(ObjectId id, const SuccessorRow& row);
SuccessorRow from_record(const SuccessorsRecord& record);

// Not thread-safe; most calls use the loader, which may block on the index (one lookup).
class SuccessorTable {
 public:
  static constexpr size_t kMaxSuccessors = 4;
  using Loader = std::function<std::optional<SuccessorRow>(ObjectId)>;

  // `memory_bytes`: the size of the full table (64 bytes a row), rounded down to whole sets of 8 rows.
  SuccessorTable(size_t memory_bytes, Loader loader);
  ~SuccessorTable();
  SuccessorTable(const SuccessorTable&) = delete;
  SuccessorTable& operator=(const SuccessorTable&) = delete;

  // `after` was seen right after `before`.
  void learn(ObjectId before, ObjectId after);
  // The same from a weak source (present names probed in some order): never contradicts known links.
  void learn_if_unknown(ObjectId before, ObjectId after);

  // The successor to follow. Invalid if there is none, or none is likely enough: at a branch whose continuations are equally
  // likely, or if other evidence contradicts the predecessor link.
  ObjectId next(ObjectId id);
  // All known successors, most likely first.
  void successors(ObjectId id, std::vector<ObjectId>& out);
  ObjectId predecessor(ObjectId id);
  bool has_successor(ObjectId id);

  // The chunks of the same position in other ranks, linked in a ring; returns at most `max`.
  void link_siblings(ObjectId a, ObjectId b);
  void siblings(ObjectId id, size_t max, std::vector<ObjectId>& out);

  // The object is deleted: erases its row, the link to it, and the predecessor links of its followers in RAM.
  void erase(ObjectId id);
  std::optional<SuccessorRow> row(ObjectId id);

  // Changed rows, oldest change first; at most `max`. They count as persisted from now on.
  std::vector<std::pair<ObjectId, SuccessorRow>> drain_dirty(size_t max);
  // The same for the changed rows of these objects.
  std::vector<std::pair<ObjectId, SuccessorRow>> drain_dirty_of(std::span<const ObjectId> ids);
  // A drained row could not be persisted: it counts as changed again.
  void keep_dirty(ObjectId id, const SuccessorRow& row);
  size_t dirty_count() const { return dirty_order_.size(); }
  size_t rows() const { return rows_; }  // in RAM

  // Grows whenever an object for which next() gave nothing may have a successor now.
  uint64_t changes() const { return changes_; }

  size_t memory_bytes() const { return set_count_ * sizeof(Set); }
  uint64_t lost_rows() const { return lost_rows_; }  // changed, evicted and not drained in time

 private:
  static constexpr size_t kWays = 8;
  static constexpr size_t kMaxSpilled = 65536;
  struct Row {
    uint64_t successors[kMaxSuccessors];  // most recently seen first
    uint64_t predecessor;
    uint64_t sibling;
    uint8_t counts[kMaxSuccessors];
    uint8_t agree;     // evidence for `predecessor`
    uint8_t conflict;  // evidence for another one
    uint8_t flags;
    uint8_t unused;
  };
  struct Set {
    uint64_t ids[kWays];
    Row rows[kWays];
  };
  static_assert(sizeof(Set) == 64 * kWays);
  static constexpr uint8_t kReferenced = 1;
  static constexpr uint8_t kDirty = 2;

  Set& set_of(uint64_t id);
  Row* find(uint64_t id);
  // Brings the row into RAM; the reference is valid until the next fetch().
  Row& fetch(uint64_t id);
  size_t victim(Set& set);
  void spill(Set& set, size_t way);
  void mark_dirty(uint64_t id, Row& row);
  void drain_one(uint64_t id, std::vector<std::pair<ObjectId, SuccessorRow>>& out);
  void trim_dirty();
  void note_successor(uint64_t before, uint64_t after);
  bool note_predecessor(uint64_t before, uint64_t after);
  bool still_leads_to(uint64_t before, uint64_t after);
  void drop_successor(uint64_t before, uint64_t after);
  static size_t best(const Row& row);
  static SuccessorRow unpack(const Row& row);
  static void pack(const SuccessorRow& from, Row& to);

  Set* sets_ = nullptr;
  size_t set_count_ = 0;
  size_t hand_ = 0;
  Loader loader_;
  std::deque<uint64_t> dirty_order_;  // all ids flagged kDirty in RAM or waiting in spilled_; other ids were already drained
  std::unordered_map<uint64_t, SuccessorRow> spilled_;  // changed rows that had to leave the table
  size_t rows_ = 0;
  uint64_t lost_rows_ = 0;
  uint64_t changes_ = 0;
};

}  // namespace kvcachefs

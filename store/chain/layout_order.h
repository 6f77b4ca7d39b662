// The order in which the finished bodies of one flush are laid out: the order in which they will be read back. Names announced by
// probes go in announced order; the others in order of creation, thread by thread. Threads that began together count as one (a
// pool of writers that works through one list).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/base/types.h"
#include "store/chain/announcements.h"
#include "store/chain/stream.h"

namespace kvcachefs {

// Tells which creates belong to one list being written. Call at each create, with the stem of the created name (usually a
// temporary one). Bounded, not thread-safe.
class WriteSequences {
 public:
  uint64_t on_create(uint64_t stem, uint64_t thread_id, int64_t now);

 private:
  struct Burst {
    BurstClock clock;
    uint64_t sequence = 0;
  };
  CohortTracker cohorts_;
  std::unordered_map<uint64_t, Burst> bursts_;  // by cohort
  uint64_t next_sequence_ = 1;
};

struct LayoutItem {
  ObjectId id;
  ChainKey name;           // the name it was published under
  uint64_t stem = 0;      // of that name
  uint64_t sequence = 0;  // from WriteSequences; 0 = unknown: a list of its own
  uint64_t arrival = 0;   // grows with every create on the mount
};

// The last object of each list in write order, across flushes. Bounded: lists are short-lived.
using WriteTails = std::unordered_map<uint64_t, ObjectId>;
inline constexpr size_t kMaxWriteTails = 4096;

struct LayoutOrder {
  std::vector<ObjectId> order;
  // (before, after) links known from write order alone, not from announcements.
  std::vector<std::pair<ObjectId, ObjectId>> write_links;
};

// Each item appears exactly once.
LayoutOrder layout_order(std::span<const LayoutItem> items, const Announcements& announcements, WriteTails& tails);

}  // namespace kvcachefs

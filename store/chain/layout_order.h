// In which order the finished bodies of one flush are laid out: as they will be read back. Names announced by probes
// go in announced order; the others in the order they were begun, thread by thread, where threads that began together
// count as one (a pool of writers working through one list).
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

// Tells which creates belong to one list that is being written: asked at each create, with the stem of the name it is
// created under (a temporary name, as a rule). Bounded, not thread-safe.
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
  ChainKey name;           // under which it was published
  uint64_t stem = 0;      // of that name
  uint64_t sequence = 0;  // of WriteSequences; 0 = not known: a list of its own
  uint64_t arrival = 0;   // rises with every create on the mount
};

// The last object of each list in write order, across flushes. Bounded: lists are short-lived.
using WriteTails = std::unordered_map<uint64_t, ObjectId>;
inline constexpr size_t kMaxWriteTails = 4096;

struct LayoutOrder {
  std::vector<ObjectId> order;
  // (before, after) that follow from write order alone: what the announcements do not say.
  std::vector<std::pair<ObjectId, ObjectId>> write_links;
};

// Every item comes out exactly once.
LayoutOrder layout_order(std::span<const LayoutItem> items, const Announcements& announcements, WriteTails& tails);

}  // namespace kvcachefs

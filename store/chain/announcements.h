// What probes of absent names announce: an engine asks for all blocks of a prompt in prefix order before it computes
// and writes the missing ones, often in no order at all. The announced order is the true one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/base/types.h"
#include "store/chain/stream.h"

namespace kvcachefs {

// Bounded (the oldest names are forgotten), not thread-safe.
class Announcements {
 public:
  explicit Announcements(size_t max_names = 131072, int64_t lifetime_ns = 3'600'000'000'000);

  // `key` was probed right after `previous` (invalid: it began a burst). An object that exists is given by its id.
  // The first announcement of a name that does not exist yet holds until nobody asked for it for its lifetime: the same
  // names are asked for again, in any order, when they are written, which may be minutes later.
  // False: it was announced before.
  bool note(ChainKey previous, ObjectId previous_id, ChainKey key, ObjectId id, int64_t now);
  // It was no announcement after all.
  void retract(ChainKey key);

  // `key` names `id` now. Appends the links (before, after) that this makes known.
  void resolve(ChainKey key, ObjectId id, std::vector<std::pair<ObjectId, ObjectId>>& links);

  // What was probed just before `key`; invalid if it began a burst or was not announced.
  ChainKey previous(ChainKey key) const;
  bool announced(ChainKey key) const { return names_.contains(key); }
  size_t size() const { return names_.size(); }

 private:
  struct Name {
    ChainKey previous;
    ChainKey next;
    ObjectId id;
    int64_t noted_at = 0;  // last
    uint64_t slot = 0;  // its number in the queue; another slot of the name is left over
  };
  struct Slot {
    ChainKey key;
    uint64_t number = 0;
  };
  Name& entry(ChainKey key, int64_t now);
  Name& renewed(ChainKey key, int64_t now);

  size_t max_names_;
  int64_t lifetime_ns_;
  std::unordered_map<ChainKey, Name> names_;
  std::deque<Slot> order_;  // as they came, for forgetting
  uint64_t last_slot_ = 0;
};

}  // namespace kvcachefs

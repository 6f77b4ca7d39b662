// Probes of absent names announce an order: an engine asks for all blocks of a prompt in prefix order before it computes and
// writes the missing ones, often in arbitrary order. The announced order is the true one.
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

  // `key` was probed right after `previous` (invalid: `key` began a burst). `previous_id`, `id`: of an object that exists. The
  // first announcement of a name that does not exist yet holds until no client asked for the name for a lifetime: the same names
  // are asked for again, in any order, when they are written, perhaps minutes later. Returns false if it was announced before.
  bool note(ChainKey previous, ObjectId previous_id, ChainKey key, ObjectId id, int64_t now);
  // The probe was no announcement after all.
  void retract(ChainKey key);

  // `key` now names `id`. Appends the links (before, after) that become known by that.
  void resolve(ChainKey key, ObjectId id, std::vector<std::pair<ObjectId, ObjectId>>& links);

  // The name probed just before `key`; invalid if `key` began a burst or was not announced.
  ChainKey previous(ChainKey key) const;
  bool announced(ChainKey key) const { return names_.contains(key); }
  size_t size() const { return names_.size(); }

 private:
  struct Name {
    ChainKey previous;
    ChainKey next;
    ObjectId id;
    int64_t noted_at = 0;  // the last time
    uint64_t slot = 0;  // its number in the queue; slots with another number are stale
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
  std::deque<Slot> order_;  // in order of arrival, for forgetting
  uint64_t last_slot_ = 0;
};

}  // namespace kvcachefs

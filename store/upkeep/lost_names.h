// Files of this node that no client sees: another node stored the same name later, before either had heard of the other, and that one counts
// (FORMAT.md, "Several nodes"). They go once that one is on the volume for good, so what two nodes computed at once takes its room once.
//
// The listener is called from any thread; one leaf mutex. All else by the thread of the rounds (PeerFollower). Bounded: what is stored beyond the
// bound, or before this node was mounted, goes by eviction. So does what could not go for two minutes: it is open, pinned, or no chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string_view>
#include <vector>

#include "store/api/counters.h"
#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/base/records.h"
#include "store/base/types.h"
#include "store/chain/access_listener.h"
#include "store/tree/tree.h"
#include "store/upkeep/evict_guard.h"
#include "store/upkeep/evictor.h"

namespace kvcachefs {

class LostNames final : public AccessListener {
 public:
  static constexpr int64_t kLookNs = 10'000'000'000;  // after it was stored, and again: by then what others stored at the moment was read
  static constexpr int kMostLooks = 12;
  static constexpr size_t kMost = 1 << 17;            // names that are looked at in kLookNs

  LostNames(Clock& clock, const Evictor& evictor, Counters& counters) : clock_(clock), evictor_(evictor), counters_(counters), guard_(clock) {}

  // --- told by AccessTracker
  void published(uint32_t, ObjectId parent, std::string_view name, ObjectId id, uint64_t) override;
  void probed(uint32_t, ObjectId, std::string_view, ObjectId, uint64_t) override {}
  void directory_named(ObjectId, std::string_view, ObjectId) override {}
  void opened(ObjectId, uint64_t) override {}
  void written(ObjectId, uint64_t) override {}
  void created(ObjectId, std::string_view, ObjectId) override {}
  void loaded_ahead(ObjectId) override {}
  void deleted(ObjectId) override {}

  // A batch of another node was read.
  void note_batch(uint32_t ordinal, const Batch& batch);
  // What is due. Takes the lock of the Tree, a few names at a time.
  void drop_due(Tree& tree);

 private:
  struct Stored {
    ObjectId parent, id;
    uint64_t cookie = 0;
    int64_t due_ns = 0;
    int looks = 0;
    ObjectId winner;             // invalid: not known to be lost
    uint64_t winner_syncs = 0;   // how often its node had synced when that was first seen
  };
  struct Synced {  // as far as was read
    uint64_t times = 0;
    bool all = false;  // nothing came behind the last one
  };
  std::vector<Stored> take_due();
  void put_back(std::vector<Stored> again);
  enum class Look : uint8_t { kSeen, kNotYet, kLost };  // kSeen: or it is gone; kNotYet: its name is not journaled
  Look look(const Tree::View& tree, Stored& stored) const;
  bool drop(Tree::Write& tree, const Stored& stored) const;
  Synced synced(ObjectId of_peer) const;
  bool is_for_good(const Stored& lost) const;

  Clock& clock_;
  const Evictor& evictor_;
  Counters& counters_;
  const EvictGuard guard_;
  std::map<uint32_t, Synced> synced_;  // by ordinal
  LeafMutex mutex_;                    // guards:
  std::deque<Stored> stored_;          // the first is due first
};

}  // namespace kvcachefs

// Files of this node that no client sees: another node stored the same name later, before either had heard of the other, and that one counts
// (FORMAT.md, "Several nodes"). They go once that one is on the volume for good, so what two nodes computed at once takes its room once.
//
// The listener is called from any thread; one leaf mutex. All else by the thread of the rounds (PeerFollower). Bounded: what was stored before
// the last kMost names, or before this node was mounted, goes by eviction. So does what could not go for two minutes: it is open, pinned, or no
// chunk.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
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
  static constexpr int64_t kLookNs = 5'000'000'000;  // after another's file of the name was read, and again
  static constexpr int kMostLooks = 24;
  static constexpr size_t kMost = 1 << 16;  // names of this node that are remembered, and such as are looked at

  LostNames(Clock& clock, const Evictor& evictor, Counters& counters) : clock_(clock), evictor_(evictor), counters_(counters), guard_(clock) {}

  // --- told by AccessTracker
  void created(ObjectId parent, std::string_view name, ObjectId id) override { note(parent, name, id); }
  void published(uint32_t, ObjectId parent, std::string_view name, ObjectId id, uint64_t) override { note(parent, name, id); }
  void probed(uint32_t, ObjectId, std::string_view, ObjectId, uint64_t) override {}
  void directory_named(ObjectId, std::string_view, ObjectId) override {}
  void opened(ObjectId, uint64_t) override {}
  void written(ObjectId, uint64_t) override {}
  void loaded_ahead(ObjectId) override {}
  void deleted(ObjectId) override {}

  // A batch of another node was read; or all of it anew.
  void note_batch(uint32_t ordinal, const Batch& batch);
  void note_all_anew(uint32_t ordinal);
  // What is due. Takes the lock of the Tree, a few names at a time.
  void drop_due(Tree& tree);

 private:
  struct Own {
    ObjectId parent, id;
  };
  struct Doubtful {
    Own own;
    uint64_t cookie = 0;
    int64_t due_ns = 0;
    int looks = 0;
    ObjectId winner;            // invalid: not known to be lost
    uint64_t winner_syncs = 0;  // how often its node had synced when that was first seen
  };
  struct Synced {  // as far as was read
    uint64_t times = 0;
    bool all = false;  // nothing came behind the last one
  };
  enum class Look : uint8_t { kSeen, kNotYet, kLost };  // kSeen: or it is gone; kNotYet: one of the two is not journaled, or empty
  void note(ObjectId parent, std::string_view name, ObjectId id);
  void doubt(std::vector<Doubtful> names);
  std::vector<Doubtful> take_due();
  Look look(const Tree::View& tree, Doubtful& name, std::string& text) const;  // `text`: the name, if it is kLost
  bool drop(Tree::Write& tree, const Doubtful& name) const;
  Synced synced(ObjectId of_peer) const;
  bool is_for_good(const Doubtful& lost) const;

  Clock& clock_;
  const Evictor& evictor_;
  Counters& counters_;
  const EvictGuard guard_;
  // Of the thread of the rounds:
  std::map<uint32_t, Synced> synced_;  // by ordinal
  std::deque<Doubtful> doubtful_;      // the first is due first
  LeafMutex mutex_;                    // guards:
  std::array<std::unordered_multimap<uint64_t, Own>, 2> stored_;  // by cookie of the name: lately, and before that
};

}  // namespace kvcachefs

// Removes files of this node that no client sees: another node stored the same name later, before either had heard of the other, and its
// file counts (FORMAT.md, "Several nodes"). A file is removed once the other one is durable on the volume, so a chunk computed twice takes
// space once.
//
// The listener is called from any thread; one leaf mutex. The thread of the rounds (PeerFollower) calls the rest. Bounded: files stored
// before the last kMost names, or before this mount, are left to eviction. So are files that could not be removed for two minutes: open,
// pinned, or no chunk.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
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
  static constexpr int64_t kLookNs = 5'000'000'000;  // delay after another node's file of the name was read, and between looks
  static constexpr int kMostLooks = 24;
  static constexpr size_t kMost = 1 << 16;  // remembered names of this node, and names waiting for a look

  // `catch_up` has this class told of every rename up to now (AccessTracker::catch_up()); may be empty.
  LostNames(Clock& clock, const Evictor& evictor, Counters& counters, std::function<void()> catch_up = {})
      : clock_(clock), evictor_(evictor), counters_(counters), catch_up_(std::move(catch_up)), guard_(clock) {}

  // --- told by AccessTracker
  void created(ObjectId parent, std::string_view name, ObjectId id) override { note(parent, name, id); }
  void published(uint32_t, ObjectId parent, std::string_view name, ObjectId id, uint64_t) override { note(parent, name, id); }
  void probed(uint32_t, ObjectId, std::string_view, ObjectId, uint64_t) override {}
  void directory_named(ObjectId, std::string_view, ObjectId) override {}
  void opened(ObjectId, uint64_t) override {}
  void written(ObjectId, uint64_t) override {}
  void loaded_ahead(ObjectId) override {}
  void deleted(ObjectId) override {}

  // A batch of another node was read; note_all_anew(): its whole state was read again.
  void note_batch(uint32_t ordinal, const Batch& batch);
  void note_all_anew(uint32_t ordinal);
  // Removes the files that are due. Takes the Tree's lock for a few names at a time.
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
    ObjectId winner;            // invalid: not known to have lost
    uint64_t winner_syncs = 0;  // how often its node had synced when it was first seen to win
  };
  struct Synced {  // as far as that node's journal was read
    uint64_t times = 0;
    bool all = false;  // nothing came after the last sync
  };
  enum class Look : uint8_t { kSeen, kNotYet, kLost };  // kSeen: clients see it, or it is gone; kNotYet: one of the two is not journaled, or empty
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
  const std::function<void()> catch_up_;
  const EvictGuard guard_;
  // Of the thread of the rounds:
  std::map<uint32_t, Synced> synced_;  // by ordinal
  std::deque<Doubtful> doubtful_;      // the first is due first
  LeafMutex mutex_;                    // guards:
  std::array<std::unordered_multimap<uint64_t, Own>, 2> stored_;  // by cookie of the name: lately, and before that
};

}  // namespace kvcachefs

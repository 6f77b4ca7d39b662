// Collects which objects of other nodes are used here. PeerFollower journals it to tell their nodes, which evict them: an object read only
// on this node would look unused there. Likewise which were found damaged here: their nodes, which serve all others, may not read them for long.
//
// Thread-safe; one leaf mutex. Bounded: uses beyond the bound are not told; a later use of the same object is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/base/types.h"
#include "store/chain/access_listener.h"

namespace kvcachefs {

class PeerTouches final : public AccessListener {
 public:
  static constexpr int64_t kAgainNs = 10'000'000'000;  // a use is told again after one to two times this
  static constexpr size_t kMost = 1 << 16;             // objects told within kAgainNs
  static constexpr int64_t kKeptNs = 3'600'000'000'000;
  static constexpr size_t kMostKept = 1 << 16;         // for each of two hours; more of them end the hour early
  static constexpr size_t kMostDamaged = 1 << 12;      // told at once; the others are told later
  static constexpr size_t kMostDamagedKept = 1 << 16;  // to be told, and for tell_again(); what does not fit is counted, and not told

  explicit PeerTouches(const Clock& clock) : clock_(clock) {}

  // --- told by AccessTracker. Absent names and objects of this node are ignored.
  void probed(uint32_t, ObjectId, std::string_view, ObjectId id, uint64_t) override { note(id); }
  void opened(ObjectId id, uint64_t) override { note(id); }
  void loaded_ahead(ObjectId id) override { note(id); }
  void directory_named(ObjectId, std::string_view, ObjectId) override {}
  void written(ObjectId, uint64_t) override {}
  void created(ObjectId, std::string_view, ObjectId) override {}
  void published(uint32_t, ObjectId, std::string_view, ObjectId, uint64_t) override {}
  void deleted(ObjectId) override {}

  // Takes what is to be told now, by ordinal of the node, in order of first use.
  std::map<uint32_t, std::vector<ObjectId>> take();
  // An object of another node does not match its checksums.
  void damaged(ObjectId id);
  std::map<uint32_t, std::vector<ObjectId>> take_damaged();  // like take(), and kMostDamaged at most
  void put_back_damaged(const std::map<uint32_t, std::vector<ObjectId>>& taken);  // their nodes could not be told: take_damaged() returns them again
  uint64_t take_dropped();  // how many did not fit since the last call
  // That node has restarted and forgotten what it was told (it keeps no uses over its end, and reads no journals that were removed while it
  // was down): uses of its objects within the last hour or two are told once more, and damage.
  void tell_again(uint32_t ordinal);

 private:
  void note(ObjectId id);
  void add_damaged(ObjectId id);  // mutex_ held

  const Clock& clock_;
  LeafMutex mutex_;  // guards the rest
  std::map<uint32_t, std::vector<ObjectId>> used_;
  std::array<std::unordered_set<ObjectId>, 2> noted_;  // lately, and before that
  int64_t begun_ns_ = 0;                               // start of the first set
  std::array<std::unordered_set<ObjectId>, 2> kept_;   // for tell_again(): in this hour, and before that
  int64_t kept_ns_ = 0;                                // start of the first set
  std::unordered_set<ObjectId> damaged_;               // to be told
  std::unordered_set<ObjectId> told_damaged_;          // for tell_again()
  uint64_t dropped_ = 0;
};

}  // namespace kvcachefs

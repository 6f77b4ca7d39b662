// Which objects of other nodes are used here. Their nodes are told (PeerFollower journals it), for it is they who evict them, and what is read on
// this node only would look unused there.
//
// Thread-safe; one leaf mutex. Bounded: what comes beyond the bound is not told, and is told when it is used again later.
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
  static constexpr int64_t kAgainNs = 10'000'000'000;  // what was told is told again after once to twice this
  static constexpr size_t kMost = 1 << 16;             // objects in kAgainNs
  static constexpr int64_t kKeptNs = 3'600'000'000'000;
  static constexpr size_t kMostKept = 1 << 16;         // of each of two hours; more of them make the hour end

  explicit PeerTouches(const Clock& clock) : clock_(clock) {}

  // --- told by AccessTracker. Names that are absent and objects of this node are none of its business.
  void probed(uint32_t, ObjectId, std::string_view, ObjectId id, uint64_t) override { note(id); }
  void opened(ObjectId id, uint64_t) override { note(id); }
  void loaded_ahead(ObjectId id) override { note(id); }
  void directory_named(ObjectId, std::string_view, ObjectId) override {}
  void written(ObjectId, uint64_t) override {}
  void created(ObjectId, std::string_view, ObjectId) override {}
  void published(uint32_t, ObjectId, std::string_view, ObjectId, uint64_t) override {}
  void deleted(ObjectId) override {}

  // What is to be told now, by the ordinal of its node, in the order in which it was used first.
  std::map<uint32_t, std::vector<ObjectId>> take();
  // That node has begun anew, and forgotten what it was told (it keeps no uses over its end, and reads no journals that were removed while it was
  // down): what was used of it within the last hour or two is told once more.
  void tell_again(uint32_t ordinal);

 private:
  void note(ObjectId id);

  const Clock& clock_;
  LeafMutex mutex_;  // guards the rest
  std::map<uint32_t, std::vector<ObjectId>> used_;
  std::array<std::unordered_set<ObjectId>, 2> noted_;  // lately, and before that
  int64_t begun_ns_ = 0;                               // the first of them
  std::array<std::unordered_set<ObjectId>, 2> kept_;   // for tell_again(): in this hour, and before that
  int64_t kept_ns_ = 0;                                // since when the first of them
};

}  // namespace kvcachefs

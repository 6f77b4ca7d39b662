// What Evictor is told, and what it says: values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/types.h"
#include "store/evict/policy.h"

namespace kvcachefs {

// A base of Evictor, so that they are known by its name: Evictor::Victim.
struct EvictorTypes {
  struct Settings {
    bool on = false;
    int64_t lease_ms = 0;
    std::string policy;
    uint64_t most_pinned_bytes = UINT64_MAX;
  };
  struct Member {
    ObjectId id, directory;
    uint64_t cookie = 0;  // of its name there
  };
  struct Victim {
    evict::UnitKey unit;
    std::vector<Member> members;
    uint64_t bytes = 0;
    bool lease_broken = false;
    bool known = false;       // the kernel may still hold what it was told of its names
    bool waited_for = false;  // by a call; set by the caller
    int64_t unused_ms = 0;    // since the last use of any of its members
  };
  // An object that is there already.
  struct Found {
    ObjectId parent, id;
    std::string_view name;
    uint64_t size_bytes = 0;
    int64_t used_ns = 0;  // on the realtime clock
    ObjectId follows;     // what comes before it in its chain, if that is known
    bool pinned = false;
  };
  // Leases are of what was probed or opened, and of what was written: the kernel knows that name for a second, and answers probes
  // of it unheard. What is broken first was only listed; then what was written some seconds ago; then the oldest, in steps.
  enum class Leases : uint8_t {
    kKeep,     // none is broken
    kListed,   // of what a listing told of, and nobody used since
    kSettled,  // of what was written some seconds ago; its sidecar, or the rest of its unit, is not about to come any more
    kHalf,     // ... and of what was probed or opened longer ago than half of its lease
    kQuarter,
    kPaired,   // ... and of all that was written, but for the last moment
    kEighth,   // ... and of all that was written
    kBreak,    // all
  };
  enum class Refused : uint8_t {
    kForNow,     // open, or not whole yet
    kForLong,    // no chunk at all
    kNotNeeded,  // others were enough
  };
};

// In which a lease by a listing is kept. It comes round after some hours: what was listed so long ago may look as if it had been listed just
// now, which does little harm.
inline constexpr int64_t kListedTickMs = 128;
inline uint16_t listed_tick(int64_t ms) { return static_cast<uint16_t>(std::max<int64_t>(ms / kListedTickMs % 0x10000, 1)); }

}  // namespace kvcachefs

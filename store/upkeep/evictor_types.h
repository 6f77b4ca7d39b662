// Values that Evictor takes and returns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store/base/types.h"
#include "store/evict/key_index.h"
#include "store/evict/policy.h"

namespace kvcachefs {

// A base of Evictor, so that these types are also known as Evictor::Victim and so on.
struct EvictorTypes {
  struct Settings {
    bool on = false;
    int64_t lease_ms = 0;
    std::string policy;
    uint64_t most_pinned_bytes = UINT64_MAX;
  };
  struct Member {
    ObjectId id, directory;
    uint64_t cookie = 0;  // of its name in that directory
  };
  struct Victim {
    evict::UnitKey unit;
    std::vector<Member> members;
    uint64_t bytes = 0;
    bool lease_broken = false;
    bool known = false;       // the kernel may still cache an answer about its names
    bool waited_for = false;  // by a call; set by the caller
    int64_t unused_ms = 0;    // since the last use of any of its members
  };
  // An object that already existed when eviction began.
  struct Found {
    ObjectId parent, id;
    std::string_view name;
    uint64_t size_bytes = 0;
    int64_t used_ns = 0;  // on the realtime clock
    ObjectId follows;     // its predecessor in the chain, if known
    bool pinned = false;
  };
  struct Pinned {
    uint64_t bytes = 0, most_bytes = 0;
    uint64_t filling = 0;  // number of the last filling, under way or done
  };
  // The files that were pinned since eviction is off: there is no table of units then. A file counts with its size when it was pinned.
  struct PinsWhileOff {
    std::unordered_map<ObjectId, uint64_t> files;
    uint64_t bytes = 0;
    void remove(ObjectId id) {
      if (const auto at = files.find(id); at != files.end()) {
        bytes -= at->second;
        files.erase(at);
      }
    }
    void add(ObjectId id, uint64_t its_bytes) {
      remove(id);
      files.emplace(id, its_bytes);
      bytes += its_bytes;
    }
  };
  // Leases protect objects that were probed, opened or written: the kernel caches the name for a second and answers probes of it itself.
  // Leases of objects that were only listed are broken first, then of objects written some seconds ago, then the oldest ones, in steps.
  enum class Leases : uint8_t {
    kKeep,     // none is broken
    kListed,   // of objects that were listed and not used since
    kSettled,  // ... of objects written some seconds ago: no sidecar or other member of the unit is about to arrive any more
    kHalf,     // ... and of those probed or opened longer ago than half of the lease
    kQuarter,
    kPaired,   // ... and of everything written, except in the last moment
    kEighth,   // ... and of everything written
    kBreak,    // all
  };
  enum class Refused : uint8_t {
    kForNow,     // open, or not whole yet
    kForLong,    // not a chunk at all
    kNotNeeded,  // the other victims were enough
  };

 protected:  // of its state
  struct Look {  // the last use before a thread's probes
    ObjectId id;
    uint32_t thread_id = 0, at = 0, used = 0, looked = 0;
  };
  struct Passed {  // a name whose object was removed a moment ago, perhaps replaced by another
    uint64_t cookie = 0;
    uint32_t directory = evict::kNoSlot, used = 0;
  };
};

// Unit of the time that a lease by a listing is kept in. It wraps around after some hours: an object listed that long ago may look as if it
// had just been listed, which does little harm.
inline constexpr int64_t kListedTickMs = 128;
inline uint16_t listed_tick(int64_t ms) { return static_cast<uint16_t>(std::max<int64_t>(ms / kListedTickMs % 0x10000, 1)); }

}  // namespace kvcachefs

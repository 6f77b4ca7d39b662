// The interface of eviction policies. Pure logic: no I/O, no threads, no clock. The caller makes all calls under one lock; none blocks or
// calls back (except the caller's own `held`), and each does bounded work unless stated otherwise. All answers are advice: a unit that a
// policy calls evictable may be kept, and any unit may be evicted without its advice.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/bytes.h"
#include "store/base/result.h"
#include "store/evict/types.h"

namespace kvcachefs::evict {

// The caller's reason why a unit may not be evicted now.
enum class Hold : uint8_t { kNone, kOpen, kLeased, kPinned, kOther };
using HeldBy = std::function<Hold(UnitKey)>;

struct Published {
  UnitKey unit;
  UnitKey follows;     // the unit before it in its chain; none: it begins one, or it is unknown
  StemKey stem;
  bool full = true;    // false: smaller than usual for its model, so nothing will follow it
};

struct Ask {
  TimeMs now;
  size_t max_units = 1;
  int64_t lease_ms = 0;      // units probed, read or written within it stay
  bool break_leases = false;  // only leases prevent eviction: choose the oldest of them
  const HeldBy* held = nullptr;
};

enum class Reason : uint8_t {
  kNothing,      // everything is held
  kBusy,         // a bounded search found none yet: ask again
  kUnfull,       // the unfinished end of a request, which the next request replaces
  kScore,        // the fewest expected hits for its space and time
  kRecency,      // least recently used: by choice, or because too few links between units hold
  kLeaseBroken,  // the oldest lease
};

struct Choice {
  Reason reason = Reason::kNothing;
  int64_t age_ms = 0;  // since the last visit of the chosen units
};

struct PolicyCounts {
  size_t units = 0;
  size_t nodes = 0;
  size_t leaves = 0;
  size_t ghosts = 0;
  size_t memory_bytes = 0;
  uint64_t visits = 0;
  uint64_t splits = 0;
  uint64_t ghost_hits = 0;       // units that came back while remembered
  uint64_t skipped_leased = 0;   // candidates skipped, by what held them
  uint64_t skipped_held = 0;
  bool by_recency = false;       // the score is the recency
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string_view name() const = 0;

  virtual bool holds(UnitKey unit) const = 0;
  virtual size_t units() const = 0;
  // The unit before it in its chain, if both are present.
  virtual UnitKey predecessor(UnitKey) const { return {}; }
  // True if more than one line of units follows it: several requests begin with it and the units before it.
  virtual bool forks_behind(UnitKey) const { return false; }
  // A probe found the unit, or it was opened for reading. Returns whether the unit is present; if not, the call is ignored.
  virtual bool read(UnitKey unit, TimeMs now) = 0;
  // The unit is present from now on. If it already was, this acts as read(). After a restart: call once for each unit, in the order of last
  // use, predecessors first.
  virtual void publish(const Published& what, TimeMs now) = 0;
  // A client removed the unit. Its followers keep their places in the chain.
  virtual void unlink(UnitKey unit) = 0;
  // A correction: `unit` follows `follows` (none: nothing). Ignored silently if it would make a ring.
  virtual void relink(UnitKey unit, UnitKey follows) = 0;
  // A known link was met again: it held, or another unit came before. A policy relies on links only while most of them hold.
  virtual void link_checked(bool held) = 0;

  // Appends up to `max_units` units of one chain to `out`, in the order in which they are to be evicted.
  virtual Choice choose(const Ask& ask, std::vector<UnitKey>& out) = 0;
  // Call after choose() found everything held. Cuts held units from the units before them in the chain, so that the latter can be chosen:
  // losing unused units, which strands their followers, is better than breaking a lease. Returns true if choose() may find some now, or not
  // everything was looked at yet. Bounded work.
  virtual bool part_chains(const Ask&) { return false; }
  // True if the unit ends its chain and is worth at most `factor` times the recently chosen ones (infinity: whatever its worth). For
  // callers that can evict it now or must pay for keeping it, for instance by moving it out of a mostly dead pack.
  virtual bool worth_little(UnitKey, double /*factor*/, TimeMs /*now*/) const { return false; }
  // The unit was evicted, whether it was chosen or not.
  virtual void evicted(UnitKey unit) = 0;

  // Takes some ten microseconds.
  virtual PolicyCounts counts() const = 0;
  // The learned tables, to be kept over a restart: some 50 KB.
  Bytes save() const;
  // Returns kCorrupt or kVersion, and changes nothing, if the bytes are not from save() of the same policy.
  Status restore(ByteSpan bytes);
  // Checks the invariants of the structure, for tests; empty: they hold. Visits everything.
  virtual std::string check() const { return {}; }

 private:
  virtual void save_tables(ByteWriter&) const {}
  // Reads the rest of `in`; changes nothing on an error.
  virtual Status restore_tables(ByteReader& in);
};

// "prefix" (the default), "lru", "fifo-reinsert", "s3fifo". For an unknown name the error lists them. `seed` makes runs repeatable.
Result<std::unique_ptr<Policy>> make_policy(std::string_view name, uint64_t seed = 1);
const std::vector<std::string>& policy_names();

}  // namespace kvcachefs::evict

// What a policy of eviction is told and asked. Pure logic: no I/O, no threads, no clock; all calls under one lock of the
// caller, none blocks or calls back (but for the caller's own `held`), and the work of each is bounded but where it says so.
// Everything it says is advice: a unit that it calls evictable may be kept, and any unit may go without its advice.
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

// Why a unit may not go now, as its owner knows.
enum class Hold : uint8_t { kNone, kOpen, kLeased, kPinned, kOther };
using HeldBy = std::function<Hold(UnitKey)>;

struct Published {
  UnitKey unit;
  UnitKey follows;     // the unit before it in its chain; none: it begins one, or nothing is known
  StemKey stem;
  bool full = true;    // false: smaller than its model's units usually are, so nothing will follow it
};

struct Ask {
  TimeMs now;
  size_t max_units = 1;
  int64_t lease_ms = 0;      // what was probed, read or written within it stays
  bool break_leases = false;  // only leases are in the way: choose the oldest of them
  const HeldBy* held = nullptr;
};

enum class Reason : uint8_t {
  kNothing,      // all that is there is held
  kBusy,         // none found yet in a bounded search: ask again
  kUnfull,       // the unfinished end of a request, which the next one replaces
  kScore,        // the fewest hits to expect for its space and time
  kRecency,      // least recently used: by choice, or because links between units do not hold
  kLeaseBroken,  // the oldest lease
};

struct Choice {
  Reason reason = Reason::kNothing;
  int64_t age_ms = 0;  // since the last visit of the units chosen
};

struct PolicyCounts {
  size_t units = 0;
  size_t nodes = 0;
  size_t leaves = 0;
  size_t ghosts = 0;
  size_t memory_bytes = 0;
  uint64_t visits = 0;
  uint64_t splits = 0;
  uint64_t ghost_hits = 0;       // units that came back while they were remembered
  uint64_t skipped_leased = 0;   // candidates passed over, by what held them
  uint64_t skipped_held = 0;
  bool by_recency = false;       // the score is recency
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string_view name() const = 0;

  virtual bool holds(UnitKey unit) const = 0;
  virtual size_t units() const = 0;
  // The unit before it in its chain, as far as both are held.
  virtual UnitKey predecessor(UnitKey) const { return {}; }
  // More than one line of units follows it: requests begin with it and with what is before it.
  virtual bool forks_behind(UnitKey) const { return false; }
  // A probe found the unit, or it was opened for reading. Returns whether it is held; else it is ignored.
  virtual bool read(UnitKey unit, TimeMs now) = 0;
  // The unit is there from now on. Of one that is there already: as read(). After a restart: once for each unit, in the
  // order of the times when they were last used, predecessors first.
  virtual void publish(const Published& what, TimeMs now) = 0;
  // A client removed it. What follows it stays where it was in its chain.
  virtual void unlink(UnitKey unit) = 0;
  // It was found out that `unit` follows `follows` (none: nothing). Refused silently where that would make a ring.
  virtual void relink(UnitKey unit, UnitKey follows) = 0;
  // A known link was met again: it held, or another unit came before. Most of them must hold to be relied on.
  virtual void link_checked(bool held) = 0;

  // Appends up to `max_units` units of one chain to `out`, in the order in which they are to go.
  virtual Choice choose(const Ask& ask, std::vector<UnitKey>& out) = 0;
  // Where choose() found that all is held: cuts what is held from the units before it in its chain, which are then chosen, for to lose
  // what is used by nobody now is better than to break a lease, though it strands what follows. True: some may be found now, or
  // not all was looked at yet. Bounded work.
  virtual bool part_chains(const Ask&) { return false; }
  // Is the unit worth at most `factor` times what was chosen of late, and nothing behind it in its chain? (Infinity: whatever
  // it is worth.) For callers that can evict it now or must pay for keeping it, such as moving it out of a pack that is mostly dead.
  virtual bool worth_little(UnitKey, double /*factor*/, TimeMs /*now*/) const { return false; }
  // The unit was evicted, whether it had been chosen or not.
  virtual void evicted(UnitKey unit) = 0;

  // Takes some ten microseconds.
  virtual PolicyCounts counts() const = 0;
  // What was learned, to be kept over a restart: some 50 KB.
  Bytes save() const;
  // kCorrupt or kVersion, and the policy is as before, if the bytes are not those of save() of the same policy.
  Status restore(ByteSpan bytes);
  // The invariants of the structure, for tests; empty: they hold. Looks at everything.
  virtual std::string check() const { return {}; }

 private:
  virtual void save_tables(ByteWriter&) const {}
  // Takes all that is left of `in`; changes nothing on an error.
  virtual Status restore_tables(ByteReader& in);
};

// "prefix" (the default), "lru", "fifo-reinsert", "s3fifo". An unknown name is an error that lists them. `seed` makes runs
// repeatable.
Result<std::unique_ptr<Policy>> make_policy(std::string_view name, uint64_t seed = 1);
const std::vector<std::string>& policy_names();

}  // namespace kvcachefs::evict

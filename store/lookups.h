// Answers lookups and listings, and leases the names that it answers. It lies here and not in requests/ because it tells the Evictor of
// each name, under the lock of the Tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "store/api/probe_counts.h"
#include "store/api/request_types.h"
#include "store/base/clock.h"
#include "store/chain/access_tracker.h"
#include "store/requests/name_versions.h"
#include "store/requests/new_objects.h"
#include "store/tree/peer_leases.h"
#include "store/tree/stale_opens.h"
#include "store/tree/tree.h"
#include "store/upkeep/evictor.h"

namespace kvcachefs {

// Thread-safe; no state of its own. Calls are made with no lock held; none blocks.
class Lookups {
 public:
  struct Parts {
    Tree& tree;
    StaleOpens& stale_opens;
    NameVersions& versions;
    NewObjects& new_objects;
    AccessTracker& accesses;
    Evictor& evictor;
    PeerLeases& peer_leases;
    ProbeCounts& probes;
    const RequestClock& clock;
  };
  explicit Lookups(Parts parts) : parts_(parts) {}

  // As in store.h.
  Result<Stat> stat_entry(ObjectId parent, std::string_view name, ObjectId id);
  Result<Stat> lookup(ObjectId parent, std::string_view name, const Caller& caller);
  Result<std::vector<DirectoryItem>> list(ObjectId directory, uint64_t after, size_t limit);

 private:
  bool will_be_told(ObjectId parent, ObjectId id, const Caller& caller);
  ProbeCounts::Miss why_absent(ObjectId parent, std::string_view name) const;

  const Parts parts_;
};

}  // namespace kvcachefs

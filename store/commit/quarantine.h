// Bodies whose bytes differ from those written: from now on absent, never wrong (invariant 2 of the store).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "store/api/counters.h"
#include "store/commit/commit_queue.h"
#include "store/extent/extents.h"
#include "store/object/object.h"
#include "store/space/space.h"
#include "store/tree/tree.h"

namespace kvcachefs {

// Thread-safe; has no lock: takes the Tree's, then the body's. The committer journals each quarantine.
class Quarantine {
 public:
  struct Parts {
    Tree& tree;
    CommitQueue& commits;
    Extents& extents;
    Space& space;
    Counters& counters;
    std::function<void(ObjectId)> tell_owner = {};  // a body of another node is damaged. May be empty
  };
  explicit Quarantine(Parts parts) : parts_(std::move(parts)) {}

  // Quarantines the journaled body of this version; does nothing if there is another by now. A peer's body is absent on this mount
  // only, and its node is told, which reads the body itself. No lock held.
  void put(const ObjectPtr& object, uint32_t base_version, const std::string& why) { put(object, base_version, why, false); }
  // The extent of the journaled body of this version was removed by others: absent on this mount, and nothing is journaled, for it may be put back.
  // No lock held.
  void put_missing(const ObjectPtr& object, uint32_t base_version, const std::string& why);
  // The body is already in quarantine, but the journal did not take the record.
  void put_again(const ObjectPtr& object, uint32_t base_version, const std::string& why) { put(object, base_version, why, true); }
  // A body to be moved (Relocator) cannot be read any more. Called by the lane that moves it, or for a body that is beyond help. Returns
  // false if the body was written meanwhile: then its writer has to get the error. Call with no lock held.
  bool put_moving(const ObjectPtr& object, const std::string& why);
  // True if a change lacks its base, which is gone, and no writer is left to write the body again. Caller holds the object's lock.
  bool is_beyond_help(const Object& object) const;

 private:
  void put(const ObjectPtr& object, uint32_t base_version, const std::string& why, bool again);
  void put_foreign(const ObjectPtr& object, uint32_t base_version, const std::string& why);
  bool hide(const ObjectPtr& object, uint32_t base_version);

  const Parts parts_;
};

}  // namespace kvcachefs

// Bodies whose bytes are not what was written: absent from now on, never wrong (invariant 2 of the store).
#pragma once

#include <cstdint>
#include <string>

#include "store/api/counters.h"
#include "store/commit/commit_queue.h"
#include "store/extent/extents.h"
#include "store/object/object.h"
#include "store/space/space.h"
#include "store/tree/tree.h"

namespace kvcachefs {

// Thread-safe; no lock of its own: takes that of the Tree, then that of the body. What is put here is journaled by the committer.
class Quarantine {
 public:
  struct Parts {
    Tree& tree;
    CommitQueue& commits;
    Extents& extents;
    Space& space;
    Counters& counters;
  };
  explicit Quarantine(Parts parts) : parts_(parts) {}

  // The journaled body of this version. Nothing if the body has another by now. One of a peer is absent on this mount only. No lock held.
  void put(const ObjectPtr& object, uint32_t base_version, const std::string& why) { put(object, base_version, why, false); }
  // It is in quarantine, but the journal did not take that.
  void put_again(const ObjectPtr& object, uint32_t base_version, const std::string& why) { put(object, base_version, why, true); }
  // What was to be moved (Relocator) cannot be read any more: by a lane that has it in hand, or of a body that is beyond help. False: it was
  // written to meanwhile, and its writer has to hear of it. No lock held.
  bool put_moving(const ObjectPtr& object, const std::string& why);
  // A change is missing what it was made of, which is gone, and nobody is left to write it anew. The object is locked.
  bool is_beyond_help(const Object& object) const;

 private:
  void put(const ObjectPtr& object, uint32_t base_version, const std::string& why, bool again);
  void put_foreign(const ObjectPtr& object, uint32_t base_version, const std::string& why);

  const Parts parts_;
};

}  // namespace kvcachefs

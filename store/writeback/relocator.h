// Bodies that are to lie elsewhere: in an extent of which a sync failed, or in a pack that is to be emptied. In the first case the kernel
// tells the error once and then takes the pages for written, so the sync is never tried again: the bodies move, and until they have no mark
// of the journal says that they are safe (UnmarkedBodies).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "store/base/clock.h"
#include "store/commit/quarantine.h"
#include "store/commit/unmarked_bodies.h"
#include "store/extent/extents.h"
#include "store/object/body_changes.h"
#include "store/space/space.h"
#include "store/tree/tree.h"

namespace kvcachefs {

// Thread-safe, but for rescue(). Nothing here writes: a body that is to move is dirty again, and a lane seals it.
class Relocator {
 public:
  struct Parts {
    Extents& extents;
    UnmarkedBodies& unmarked;
    Tree& tree;
    Quarantine& quarantine;
    BodyChanges& changes;
    Space& space;
    const Clock& clock;
  };
  explicit Relocator(Parts parts) : parts_(parts) {}

  // The object, which is locked, is sealed once more, as it is, if it lies in such an extent. Past the capacity if need be.
  bool move(const ObjectPtr& object);
  // The object, which is locked, is sealed once more, as it is, if it lies in this pack and nobody is changing it. `kept_bytes` are
  // reserved for that, and taken where no other room is left. kNoRoom: within the capacity it cannot lie in two places.
  enum class Moved : uint8_t { kYes, kNotNow, kNoRoom };
  Moved move_from(const ObjectPtr& object, ExtentId pack, uint64_t& kept_bytes);
  // All that lie in lost extents, no more than `most`. True if any is on its way. No lock held.
  bool move_all(size_t most = SIZE_MAX);
  // Moves all, and all that is lost meanwhile; the keeper's, before a sync point. `drain_and_sync` seals what is finished and syncs
  // it. Where what was moved is lost as well the volume syncs nothing at present: then one body is tried now and then.
  void rescue(const std::function<void()>& drain_and_sync);
  // What was moved was lost again, when it was tried last.
  bool is_in_vain() const { return in_vain_.load(); }

 private:
  static bool may_move(const Object& object);
  void seal_again(const ObjectPtr& object);

  const Parts parts_;
  std::atomic<bool> in_vain_{false};
  int64_t next_try_ns_ = 0, pause_ns_ = 0;  // rescue()'s
};

}  // namespace kvcachefs

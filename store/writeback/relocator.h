// Moves bodies that lie in an extent whose sync failed, or in a pack that is to be emptied. After a failed sync the kernel reports the error
// once and then takes the pages for written, so the sync is never tried again: the bodies move, and until they have moved no mark of the
// journal says that they are safe (UnmarkedBodies).
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

// Thread-safe, but for rescue(). It writes nothing itself: it makes a body that is to move dirty again, and a lane seals it.
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

  // Has the object, which is locked, sealed once more as it is, if it lies in an extent whose sync failed. Exceeds the capacity if need be.
  bool move(const ObjectPtr& object);
  // Has the object, which is locked, sealed once more as it is, if it lies in this pack and no client is changing it. `kept_bytes` are
  // reserved for that, and taken if no other room is left. kNoRoom: there is no room within the capacity for it to lie in two places.
  enum class Moved : uint8_t { kYes, kNotNow, kNoRoom };
  Moved move_from(const ObjectPtr& object, ExtentId pack, uint64_t& kept_bytes);
  // Moves all bodies in lost extents, but at most `most`. True if any is on its way. Call with no lock held.
  bool move_all(size_t most = SIZE_MAX);
  // Moves all of them, and those that are lost meanwhile; called by the keeper before a sync point. `drain_and_sync` seals finished
  // bodies and syncs them. If the moved bodies are lost too, the volume syncs nothing at present: then one body is tried now and then.
  void rescue(const std::function<void()>& drain_and_sync);
  // True: at the last try the moved bodies were lost again.
  bool is_in_vain() const { return in_vain_.load(); }

 private:
  static bool may_move(const Object& object);
  void seal_again(const ObjectPtr& object);

  const Parts parts_;
  std::atomic<bool> in_vain_{false};
  int64_t next_try_ns_ = 0, pause_ns_ = 0;  // used by rescue()
};

}  // namespace kvcachefs

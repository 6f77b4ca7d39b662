// Tells the Evictor of the files and directories that a volume has when eviction begins: a walk over all names.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>

#include "store/base/clock.h"
#include "store/base/work_queue.h"
#include "store/index/index.h"
#include "store/tree/tree.h"
#include "store/upkeep/evictor.h"

namespace kvcachefs {

// The keeper's thread alone, but for stop(). No lock held.
class EvictWalk {
 public:
  struct Parts {
    Evictor& evictor;
    Tree& tree;
    const Index& index;
    Clock& clock;
    Wakeup& keeper;  // woken where there is more to do
  };
  explicit EvictWalk(Parts parts) : parts_(parts) {}

  // A piece of the walk, or all that is left of it where a call waits for what comes of it. True if there was something to do.
  bool go_on(bool to_the_end);
  // From now on a walk to the end ends early. Any thread.
  void stop() { stopping_ = true; }

 private:
  void tell_of_names();
  static std::optional<Attributes> attributes_of(const Tree::View& tree, ObjectId id);

  const Parts parts_;
  std::atomic<bool> stopping_{false};
  struct Place {  // in all directories, from the root down, a page of names at a time
    uint64_t number = 0;  // of the filling, as the Evictor tells it; 0: none is under way
    std::deque<ObjectId> directories;
    uint64_t after = 0;
    bool over = false;
  } at_;
};

}  // namespace kvcachefs

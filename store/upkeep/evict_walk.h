// When eviction begins, walks over all names and tells the Evictor of the files and directories that the volume already has.
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

// Used by the keeper's thread only, except stop(). Call with no lock held.
class EvictWalk {
 public:
  struct Parts {
    Evictor& evictor;
    Tree& tree;
    const Index& index;
    Clock& clock;
    Wakeup& keeper;  // woken when there is more to do
  };
  explicit EvictWalk(Parts parts) : parts_(parts) {}

  // Does a piece of the walk; with `to_the_end`, because a call waits for the result, all that is left. Returns true if there was something
  // to do.
  bool go_on(bool to_the_end);
  // From now on a walk to the end stops early. Any thread.
  void stop() { stopping_ = true; }

 private:
  void tell_of_names();
  void warn_of_pins();
  static std::optional<Attributes> attributes_of(const Tree::View& tree, ObjectId id);

  const Parts parts_;
  std::atomic<bool> stopping_{false};
  struct Place {  // position in the walk over all directories, from the root down, one page of names at a time
    uint64_t number = 0;  // the Evictor's number of this filling; 0: none is under way
    std::deque<ObjectId> directories;
    uint64_t after = 0;
    bool over = false;
  } at_;
  Evictor::Pinned judged_;  // by warn_of_pins()
};

}  // namespace kvcachefs

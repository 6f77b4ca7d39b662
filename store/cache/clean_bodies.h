// The bodies with clean blocks, in the order in which they go when memory is short: the one opened longest ago first.
#pragma once

#include <cstddef>
#include <list>
#include <unordered_map>

#include "store/base/mutex.h"
#include "store/object/object.h"

namespace kvcachefs {

// Thread-safe; mutex_ is a leaf, taken by add() with the object locked.
class CleanBodies {
 public:
  // The object has clean blocks: it goes last from now on. Nothing if it was forgotten: another object may stand for its id. Its
  // lock is not held.
  void add(const ObjectPtr& object);
  // It goes last from now on, if it is here.
  void note_used(ObjectId id);
  // The one that goes first leaves the list; null: there is none.
  ObjectPtr take();
  size_t count() const;
  void clear();

 private:
  mutable LeafMutex mutex_;
  std::list<ObjectPtr> order_;  // most recent first
  std::unordered_map<ObjectId, std::list<ObjectPtr>::iterator> where_;
};

}  // namespace kvcachefs

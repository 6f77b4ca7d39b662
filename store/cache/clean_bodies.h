// The bodies with clean blocks, in the order in which they go when memory is short: the one opened longest ago first. And which of them
// have many bytes of extended attributes, which the pool does not count.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>

#include "store/base/mutex.h"
#include "store/base/units.h"
#include "store/object/object.h"

namespace kvcachefs {

// Thread-safe; mutex_ is a leaf, taken by add() with the object locked.
class CleanBodies {
 public:
  static constexpr uint64_t kManyXattrBytes = 4 * kKiB;  // fewer are not counted

  // The object has clean blocks: it goes last from now on. Nothing if it was forgotten: another object may stand for its id. Its
  // lock is not held.
  void add(const ObjectPtr& object);
  // It goes last from now on, if it is here.
  void note_used(ObjectId id);
  // Its attributes are others than when it was added. The object is locked.
  void note_xattrs(const Object& object);
  // The one that goes first leaves the list; null: there is none.
  ObjectPtr take();
  void remove(const ObjectPtr& object);  // not another one of its id
  size_t count() const;
  // Of those that have many.
  uint64_t xattr_bytes() const { return xattr_bytes_.load(std::memory_order_relaxed); }
  size_t count_with_many_xattrs() const;
  // One of them, each in its turn; null: there is none.
  ObjectPtr next_with_many_xattrs();
  void clear();

 private:
  void count_xattrs(ObjectId id, uint64_t bytes);  // mutex_ held

  mutable LeafMutex mutex_;     // guards the rest
  std::list<ObjectPtr> order_;  // most recent first
  std::unordered_map<ObjectId, std::list<ObjectPtr>::iterator> where_;
  struct Xattrs {
    uint64_t bytes;
    std::list<ObjectId>::iterator turn;
  };
  std::unordered_map<ObjectId, Xattrs> many_xattrs_;
  std::list<ObjectId> turns_;             // of the same
  std::atomic<uint64_t> xattr_bytes_{0};  // (atomic: asked for at each close)
};

}  // namespace kvcachefs

// The bodies with clean blocks, in the order in which they are dropped when memory is short: the one opened longest ago first. Also counts
// those with many bytes of extended attributes, which the pool does not count.
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

// Thread-safe; mutex_ is a leaf, which add() takes while it holds the object's lock.
class CleanBodies {
 public:
  static constexpr uint64_t kManyXattrBytes = 4 * kKiB;  // bodies with fewer are not counted

  // The object has clean blocks: from now on it is dropped last. Ignored for a forgotten object: another object may stand for its id.
  // Caller does not hold its lock.
  void add(const ObjectPtr& object);
  // If the object is in the list, it is dropped last from now on.
  void note_used(ObjectId id);
  // The object's attributes have changed since it was added. Caller holds its lock.
  void note_xattrs(const Object& object);
  // Takes the object to be dropped first off the list; null: none.
  ObjectPtr take();
  void remove(const ObjectPtr& object);  // does not remove another object with its id
  size_t count() const;
  // Total of the bodies with many bytes.
  uint64_t xattr_bytes() const { return xattr_bytes_.load(std::memory_order_relaxed); }
  size_t count_with_many_xattrs() const;
  // Returns those bodies in turn; null: none.
  ObjectPtr next_with_many_xattrs();
  void clear();

 private:
  // Objects are in the list by their ids; one that is outdated, by Object::outdated, once the list has a newer one of its id. Callers hold mutex_.
  using Where = std::unordered_map<ObjectId, std::list<ObjectPtr>::iterator>;
  Where::iterator find(const Object& object);
  void count_xattrs(ObjectId id, uint64_t bytes);
  void make_way(Where::iterator outdated);

  mutable LeafMutex mutex_;     // guards the rest
  std::list<ObjectPtr> order_;  // most recent first
  Where where_;
  struct Xattrs {
    uint64_t bytes;
    std::list<ObjectId>::iterator turn;
  };
  std::unordered_map<ObjectId, Xattrs> many_xattrs_;
  std::list<ObjectId> turns_;             // of the same bodies
  std::atomic<uint64_t> xattr_bytes_{0};  // atomic: read at each close
};

}  // namespace kvcachefs

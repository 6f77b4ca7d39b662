#include "store/cache/clean_bodies.h"

#include <mutex>
#include <utility>

namespace kvcachefs {

// Does both under the object's lock, under which forgetting sets `forgotten`: so a forgotten object never enters the list.
void CleanBodies::add(const ObjectPtr& object) {
  ObjectPtr before;  // perhaps the last reference: released without the locks
  const auto object_lock = object->lock();
  if (object->forgotten) return;
  std::lock_guard lock(mutex_);
  count_xattrs(object->id, bytes_of(object->attributes.xattrs));
  auto found = where_.find(object->id);
  if (found != where_.end()) {
    before = std::exchange(*found->second, object);  // it may have been forgotten and got again since
    order_.splice(order_.begin(), order_, found->second);
    return;
  }
  order_.push_front(object);
  where_.emplace(object->id, order_.begin());
}

void CleanBodies::note_used(ObjectId id) {
  std::lock_guard lock(mutex_);
  if (auto found = where_.find(id); found != where_.end()) order_.splice(order_.begin(), order_, found->second);
}

void CleanBodies::note_xattrs(const Object& object) {
  std::lock_guard lock(mutex_);
  if (where_.contains(object.id)) count_xattrs(object.id, bytes_of(object.attributes.xattrs));
}

void CleanBodies::count_xattrs(ObjectId id, uint64_t bytes) {
  if (bytes < kManyXattrBytes && many_xattrs_.empty()) return;
  if (auto counted = many_xattrs_.find(id); counted != many_xattrs_.end()) {
    xattr_bytes_ -= counted->second.bytes;
    turns_.erase(counted->second.turn);
    many_xattrs_.erase(counted);
  }
  if (bytes < kManyXattrBytes) return;
  many_xattrs_.emplace(id, Xattrs{bytes, turns_.insert(turns_.end(), id)});
  xattr_bytes_ += bytes;
}

ObjectPtr CleanBodies::take() {
  std::lock_guard lock(mutex_);
  if (order_.empty()) return nullptr;
  ObjectPtr object = std::move(order_.back());
  order_.pop_back();
  where_.erase(object->id);
  count_xattrs(object->id, 0);
  return object;
}

void CleanBodies::remove(const ObjectPtr& object) {
  std::lock_guard lock(mutex_);
  const auto found = where_.find(object->id);
  if (found == where_.end() || *found->second != object) return;
  order_.erase(found->second);
  where_.erase(found);
  count_xattrs(object->id, 0);
}

size_t CleanBodies::count_with_many_xattrs() const {
  std::lock_guard lock(mutex_);
  return turns_.size();
}

ObjectPtr CleanBodies::next_with_many_xattrs() {
  std::lock_guard lock(mutex_);
  if (turns_.empty()) return nullptr;
  turns_.splice(turns_.end(), turns_, turns_.begin());
  return *where_.at(turns_.back());
}

size_t CleanBodies::count() const {
  std::lock_guard lock(mutex_);
  return order_.size();
}

void CleanBodies::clear() {
  std::list<ObjectPtr> order;  // released without the lock
  std::lock_guard lock(mutex_);
  order.swap(order_);
  where_.clear();
  many_xattrs_.clear();
  turns_.clear();
  xattr_bytes_ = 0;
}

}  // namespace kvcachefs

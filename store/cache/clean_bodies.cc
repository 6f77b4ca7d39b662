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
  auto found = find(*object);
  if (found == where_.end()) {
    const ObjectId outdated = object->outdated;
    found = where_.find(outdated.valid() ? outdated : object->id);
    if (found != where_.end() && (*found->second)->outdated.load().valid()) {
      make_way(found);
      found = where_.end();
    }
    if (found == where_.end()) {
      order_.push_front(object);
      found = where_.emplace(outdated.valid() ? outdated : object->id, order_.begin()).first;
    }
  }
  count_xattrs(found->first, bytes_of(object->attributes.xattrs));
  before = std::exchange(*found->second, object);  // it may have been forgotten and got again since
  order_.splice(order_.begin(), order_, found->second);
}

CleanBodies::Where::iterator CleanBodies::find(const Object& object) {
  for (const ObjectId id : {object.id, object.outdated.load()}) {
    const auto found = where_.find(id);
    if (found != where_.end() && found->second->get() == &object) return found;
  }
  return where_.end();
}

// It is open as it was, and has bytes; from now on its id means a newer state.
void CleanBodies::make_way(Where::iterator outdated) {
  const ObjectId id = outdated->first, as = (*outdated->second)->outdated;
  auto entry = where_.extract(outdated);
  entry.key() = as;
  where_.insert(std::move(entry));
  const auto counted = many_xattrs_.find(id);
  if (counted == many_xattrs_.end()) return;
  const uint64_t bytes = counted->second.bytes;
  count_xattrs(id, 0);
  count_xattrs(as, bytes);
}

void CleanBodies::note_used(ObjectId id) {
  std::lock_guard lock(mutex_);
  if (auto found = where_.find(id); found != where_.end()) order_.splice(order_.begin(), order_, found->second);
}

void CleanBodies::note_xattrs(const Object& object) {
  std::lock_guard lock(mutex_);
  if (const auto found = find(object); found != where_.end()) count_xattrs(found->first, bytes_of(object.attributes.xattrs));
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
  ObjectPtr object = order_.back();
  const auto found = find(*object);
  count_xattrs(found->first, 0);
  where_.erase(found);
  order_.pop_back();
  return object;
}

void CleanBodies::remove(const ObjectPtr& object) {
  std::lock_guard lock(mutex_);
  const auto found = find(*object);
  if (found == where_.end()) return;
  order_.erase(found->second);
  count_xattrs(found->first, 0);
  where_.erase(found);
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

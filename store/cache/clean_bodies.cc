#include "store/cache/clean_bodies.h"

#include <mutex>
#include <utility>

namespace kvcachefs {

// Both under the object's lock, in which forgetting sets `forgotten`: a forgotten object never enters the list.
void CleanBodies::add(const ObjectPtr& object) {
  ObjectPtr before;  // perhaps its last holder: let go of without the locks
  const auto object_lock = object->lock();
  if (object->forgotten) return;
  std::lock_guard lock(mutex_);
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

ObjectPtr CleanBodies::take() {
  std::lock_guard lock(mutex_);
  if (order_.empty()) return nullptr;
  ObjectPtr object = std::move(order_.back());
  order_.pop_back();
  where_.erase(object->id);
  return object;
}

size_t CleanBodies::count() const {
  std::lock_guard lock(mutex_);
  return order_.size();
}

void CleanBodies::clear() {
  std::list<ObjectPtr> order;  // let go of without the lock
  std::lock_guard lock(mutex_);
  order.swap(order_);
  where_.clear();
}

}  // namespace kvcachefs

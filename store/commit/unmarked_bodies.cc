#include "store/commit/unmarked_bodies.h"

#include <mutex>
#include <utility>

namespace kvcachefs {

void UnmarkedBodies::add(ExtentId extent, ObjectId object) {
  std::lock_guard lock(mutex_);
  bodies_[extent].push_back(object);
}

std::vector<ObjectId> UnmarkedBodies::in(ExtentId extent) const {
  std::lock_guard lock(mutex_);
  auto found = bodies_.find(extent);
  return found == bodies_.end() ? std::vector<ObjectId>() : found->second;
}

void UnmarkedBodies::set(ExtentId extent, std::vector<ObjectId> objects) {
  std::lock_guard lock(mutex_);
  if (objects.empty())
    bodies_.erase(extent);
  else
    bodies_[extent] = std::move(objects);
}

void UnmarkedBodies::clear() {
  std::lock_guard lock(mutex_);
  bodies_.clear();
}

}  // namespace kvcachefs

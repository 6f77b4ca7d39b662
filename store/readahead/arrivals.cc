#include "store/readahead/arrivals.h"

#include <utility>

namespace kvcachefs {

namespace {
constinit thread_local Arrivals* innermost = nullptr;
}  // namespace

Arrivals::Arrivals(AccessTracker& accesses, int64_t arrived_ns)
    : accesses_(accesses), arrived_ns_(arrived_ns), shadowed_(std::exchange(innermost, this)),
      outer_(shadowed_ != nullptr && &shadowed_->accesses_ == &accesses ? shadowed_ : nullptr) {}

void Arrivals::add(AccessTracker::Loaded body, ObjectPtr object) {
  Arrivals& all = outer_ != nullptr ? *outer_ : *this;
  all.bodies_.push_back(body);
  all.objects_.push_back(std::move(object));
}

Arrivals::~Arrivals() {
  innermost = shadowed_;
  if (bodies_.empty()) return;
  accesses_.loaded(bodies_, arrived_ns_);
  for (const ObjectPtr& object : objects_) {
    auto lock = object->lock();
    const bool left = !object->any_in_ram();
    lock.unlock();
    if (left) accesses_.left_ram(object->id);  // the body was evicted before it counted as loaded
  }
}

}  // namespace kvcachefs

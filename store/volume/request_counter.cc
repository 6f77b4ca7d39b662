#include "store/volume/io_engine.h"

namespace kvcachefs {

uint64_t RequestCounter::begin(size_t count) {
  const std::lock_guard lock(mutex_);
  if (count > 0) under_way_[generation_] += count;
  return generation_;
}

void RequestCounter::end(uint64_t generation) {
  const std::lock_guard lock(mutex_);
  const auto found = under_way_.find(generation);
  if (--found->second > 0) return;
  under_way_.erase(found);
  ended_.notify_all();  // with the lock held: the waiter may destroy this object as soon as it sees the end
}

void RequestCounter::wait() {
  std::unique_lock lock(mutex_);
  const uint64_t last = generation_++;
  ended_.wait(lock, [&] { return under_way_.empty() || under_way_.begin()->first > last; });
}

void RequestCounter::wait_for_all() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return under_way_.empty(); });
}

}  // namespace kvcachefs

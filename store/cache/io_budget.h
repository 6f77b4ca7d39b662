// Limits the bytes in flight: requests beyond the limit wait for their turn, in order of arrival.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "store/base/mutex.h"

namespace kvcachefs {

// Thread-safe; its lock is a leaf. Calls nothing under it.
class IoBudget {
 public:
  using Begin = std::move_only_function<void()>;

  explicit IoBudget(uint64_t most_bytes) : most_bytes_(most_bytes) {}

  // Returns true if the request may begin; it counts until end(). A request larger than the whole budget runs alone.
  bool try_begin(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    if (!waiting_.empty() || !fits(bytes)) return false;
    under_way_bytes_ += bytes;
    return true;
  }
  // Call for a refused request. Returns the requests whose turn it is now, perhaps this one: they already count, and the caller runs them.
  [[nodiscard]] std::vector<Begin> wait(uint64_t bytes, Begin begin) {
    std::lock_guard lock(mutex_);
    waiting_.emplace_back(bytes, std::move(begin));
    return take_next();
  }
  [[nodiscard]] std::vector<Begin> end(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    under_way_bytes_ -= bytes;
    return take_next();
  }
  size_t waiting() const {
    std::lock_guard lock(mutex_);
    return waiting_.size();
  }

 private:
  bool fits(uint64_t bytes) const { return under_way_bytes_ == 0 || under_way_bytes_ + bytes <= most_bytes_; }
  std::vector<Begin> take_next() {
    std::vector<Begin> next;
    while (!waiting_.empty() && fits(waiting_.front().first)) {
      under_way_bytes_ += waiting_.front().first;
      next.push_back(std::move(waiting_.front().second));
      waiting_.pop_front();
    }
    return next;
  }

  const uint64_t most_bytes_;
  mutable LeafMutex mutex_;
  uint64_t under_way_bytes_ = 0;
  std::deque<std::pair<uint64_t, Begin>> waiting_;
};

}  // namespace kvcachefs

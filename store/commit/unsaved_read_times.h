// When files were read last, as far as no record tells it yet. It is the order in which a cache that starts anew evicts what is there, so it is
// journaled: along with whatever is committed next, or after kWaitNs by itself, as one record for all of them.
//
// Thread-safe; one leaf mutex. Bounded: what comes beyond the bound is known to this mount only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "store/base/mutex.h"
#include "store/base/records.h"

namespace kvcachefs {

class UnsavedReadTimes {
 public:
  static constexpr size_t kMost = 1 << 16;
  static constexpr int64_t kWaitNs = 10'000'000'000;

  // The later of two of one object counts. `now_ns`: monotonic, as below.
  void note(ObjectId id, int64_t atime_ns, int64_t now_ns) {
    std::lock_guard lock(mutex_);
    if (times_.empty()) since_ns_ = now_ns;
    if (times_.size() < kMost || times_.contains(id)) times_.insert_or_assign(id, atime_ns);
  }
  bool is_due(int64_t now_ns) const {
    std::lock_guard lock(mutex_);
    return !times_.empty() && now_ns - since_ns_ >= kWaitNs;
  }
  TouchRecord take() {
    std::map<ObjectId, int64_t> times;
    {
      std::lock_guard lock(mutex_);
      times.swap(times_);
    }
    return {{times.begin(), times.end()}};
  }

 private:
  mutable LeafMutex mutex_;  // guards the rest
  std::map<ObjectId, int64_t> times_;
  int64_t since_ns_ = 0;  // the first of them
};

}  // namespace kvcachefs

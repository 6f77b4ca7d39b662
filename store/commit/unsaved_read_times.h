// When files were read last, as far as no record tells it yet. It is the order in which a cache that starts anew evicts what is there, so it is
// journaled: along with whatever is committed next, or after kWaitNs by itself, as one record for many of them.
//
// Thread-safe; one leaf mutex. Bounded: what comes beyond the bound is known only as long as the object is in RAM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "store/base/mutex.h"
#include "store/base/records.h"

namespace kvcachefs {

class UnsavedReadTimes {
 public:
  static constexpr size_t kMost = 1 << 16, kMostOfCommit = 1 << 13;
  static constexpr int64_t kWaitNs = 10'000'000'000;

  // The later of two of one object counts. The object is locked.
  void note(ObjectId id, int64_t atime_ns) {
    std::lock_guard lock(mutex_);
    if (times_.size() < kMost || times_.contains(id)) times_.insert_or_assign(id, atime_ns);
  }
  // Its time was given otherwise, which is journaled with its attributes. The object is locked.
  void drop(ObjectId id) {
    std::lock_guard lock(mutex_);
    times_.erase(id);
  }
  // A commit is to be made for them now; each kWaitNs at most, or kMostOfCommit after kMostOfCommit. `now_ns`: monotonic. By one thread.
  bool claim_commit(int64_t now_ns) {
    std::lock_guard lock(mutex_);
    if (times_.empty()) since_ns_ = now_ns;
    if (now_ns - since_ns_ < kWaitNs && times_.size() < kMostOfCommit) return false;
    since_ns_ = now_ns;
    return !times_.empty();
  }
  // Of some objects, by id.
  TouchRecord take() {
    TouchRecord taken;
    std::lock_guard lock(mutex_);
    while (!times_.empty() && taken.atimes_ns.size() < kMostOfCommit) {
      taken.atimes_ns.emplace_back(*times_.begin());
      times_.erase(times_.begin());
    }
    return taken;
  }
  // They were not journaled. What was noted meanwhile stays.
  void put_back(const TouchRecord& taken) {
    std::lock_guard lock(mutex_);
    for (const auto& each : taken.atimes_ns)
      if (times_.size() < kMost) times_.insert(each);
  }

 private:
  LeafMutex mutex_;  // guards the rest
  std::map<ObjectId, int64_t> times_;
  int64_t since_ns_ = 0;  // when they were none, or a commit was claimed
};

}  // namespace kvcachefs

// Last read times of files that no record has yet. A cache that restarts evicts its chunks in this order, so the times are journaled: with
// the next commit, or after kWaitNs on their own, as one record for many.
//
// Thread-safe; one leaf mutex. Bounded: times beyond the bound are known only while the object is in RAM.
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

  // The last time noted for an object counts. Caller holds the object's lock.
  void note(ObjectId id, int64_t atime_ns) {
    std::lock_guard lock(mutex_);
    if (times_.size() < kMost || times_.contains(id)) times_.insert_or_assign(id, atime_ns);
  }
  // The time was set another way, and is journaled with the attributes. Caller holds the object's lock.
  void drop(ObjectId id) {
    std::lock_guard lock(mutex_);
    times_.erase(id);
  }
  // True if a commit should be made for them now: once per kWaitNs, or after kMostOfCommit times. `now_ns`: monotonic. One thread calls it.
  bool claim_commit(int64_t now_ns) {
    std::lock_guard lock(mutex_);
    if (times_.empty()) since_ns_ = now_ns;
    if (now_ns - since_ns_ < kWaitNs && times_.size() < kMostOfCommit) return false;
    since_ns_ = now_ns;
    return !times_.empty();
  }
  // Takes the times of some objects, by id.
  TouchRecord take() {
    TouchRecord taken;
    std::lock_guard lock(mutex_);
    while (!times_.empty() && taken.atimes_ns.size() < kMostOfCommit) {
      taken.atimes_ns.emplace_back(*times_.begin());
      times_.erase(times_.begin());
    }
    return taken;
  }
  // These times were not journaled. Times noted meanwhile stay.
  void put_back(const TouchRecord& taken) {
    std::lock_guard lock(mutex_);
    for (const auto& each : taken.atimes_ns)
      if (times_.size() < kMost) times_.insert(each);
  }

 private:
  LeafMutex mutex_;  // guards the rest
  std::map<ObjectId, int64_t> times_;
  int64_t since_ns_ = 0;  // when there were none, or a commit was claimed
};

}  // namespace kvcachefs

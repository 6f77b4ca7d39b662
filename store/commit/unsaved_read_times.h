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
  static constexpr uint64_t kMostBytesOfCommit = uint64_t{8} << 20;  // of attributes: the index rewrites the whole row of an object
  static constexpr int64_t kWaitNs = 10'000'000'000;

  // The last time noted for an object counts. `attribute_bytes`: of its extended attributes. Caller holds the object's lock.
  void note(ObjectId id, int64_t atime_ns, uint64_t attribute_bytes) {
    std::lock_guard lock(mutex_);
    if (times_.size() < kMost || times_.contains(id)) times_.insert_or_assign(id, Noted{atime_ns, attribute_bytes});
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
    uint64_t bytes = 0;
    std::lock_guard lock(mutex_);
    while (!times_.empty() && taken.atimes_ns.size() < kMostOfCommit && bytes < kMostBytesOfCommit) {
      const auto& [id, noted] = *times_.begin();
      taken.atimes_ns.emplace_back(id, noted.atime_ns);
      bytes += noted.attribute_bytes;
      times_.erase(times_.begin());
    }
    return taken;
  }
  // These times were not journaled. Times noted meanwhile stay. The bytes of their attributes are not known any more:
  // they count as if a commit took these objects alone.
  void put_back(const TouchRecord& taken) {
    if (taken.atimes_ns.empty()) return;
    const uint64_t bytes = kMostBytesOfCommit / taken.atimes_ns.size();
    std::lock_guard lock(mutex_);
    for (const auto& [id, atime_ns] : taken.atimes_ns)
      if (times_.size() < kMost) times_.insert({id, Noted{atime_ns, bytes}});
  }

 private:
  struct Noted {
    int64_t atime_ns = 0;
    uint64_t attribute_bytes = 0;
  };
  LeafMutex mutex_;  // guards the rest
  std::map<ObjectId, Noted> times_;
  int64_t since_ns_ = 0;  // when there were none, or a commit was claimed
};

}  // namespace kvcachefs

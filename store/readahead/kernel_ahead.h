// Files that are read into the page cache ahead of those who will be passed through to them. Each is queued, read by a thread of
// the store, and awaited by who opens it meanwhile: beside such a read he would get the same pages in small pieces.
// Thread-safe. One leaf mutex; nothing is called with it held.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "store/base/descriptors.h"
#include "store/base/mutex.h"
#include "store/base/types.h"
#include "store/volume/volume.h"

namespace kvcachefs {

class KernelAhead {
 public:
  using Then = std::move_only_function<void()>;
  static constexpr uint64_t kMostAwaitedBytes = uint64_t{64} << 20;
  static constexpr auto kStalled = std::chrono::milliseconds(500);
  struct Work {
    ObjectId id;
    FilePtr file;
    uint64_t size_bytes = 0;
  };

  // Left out where too many are queued: it is the one needed last. Of a body that is queued already the newer file is taken, of one
  // that is being read nothing more.
  void push(Work work);
  // True: it is being read, or queued, and goes before all that nobody waits for; `then` was taken, and is called by the thread
  // that reads it. False also where that can take long: of a large one, of one behind a large one or behind as many bytes, and
  // where one has been read for so long that the volume seems to stall.
  bool await(ObjectId id, Then& then);
  // Those who wait for a volume that has come to stall meanwhile: to be called by the caller, from where that may be done.
  std::vector<Then> take_stalled();
  // The next to be read; blocks until there is one. None: it was stopped.
  std::optional<Work> next();
  // What next() gave is done with: whoever waits is called.
  void finish(ObjectId id);
  // next() gives nothing any more. Who waits is called once no thread is at it (give_up()).
  void stop();
  void give_up();

 private:
  struct Entry {
    Work work;
    std::optional<std::chrono::steady_clock::time_point> begun;  // else it is queued
    std::vector<Then> waiting;
    bool is_large() const { return work.size_bytes > kMostAwaitedBytes; }
  };
  bool stalls() const;  // mutex_ held

  const size_t most_queued_ = std::min<uint64_t>(64, descriptor_shares().open_extents);  // their files are open

  LeafMutex mutex_;
  ConditionVariable ready_;
  std::unordered_map<ObjectId, Entry> entries_;  // queued or being read
  std::deque<ObjectId> queue_;                   // not begun
  size_t large_begun_ = 0;
  bool stopped_ = false;
  std::atomic<size_t> count_{0};  // of entries_: most opens find none, without the lock
};

}  // namespace kvcachefs

// Files that the store reads into the page cache ahead of readers by passthrough. Each file is queued and read by a thread of the
// store. An open that comes meanwhile waits for it: a client that read beside it would get the same pages in small pieces.
// Thread-safe. One leaf mutex; calls no other class with it held.
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

  // Queues a file. Drops it if too many are queued: it is the one needed last. If the body is queued already, the newer file replaces
  // the older; if it is being read, does nothing.
  void push(Work work);
  // True: the file is being read, or is queued and now goes before all files that no open waits for; `then` was taken, and the thread
  // that reads the file calls it. False if there is none, or the wait could be long: the file is large, is behind a large one or behind
  // as many bytes, or a read has taken so long that the volume seems to stall.
  bool await(ObjectId id, Then& then);
  // If the volume stalls, takes the `then` of all waiting opens; the caller calls them where it may.
  std::vector<Then> take_stalled();
  // The next file to read; blocks until there is one. No value: stop() was called.
  std::optional<Work> next();
  // The file that next() gave has been read: calls the opens that wait for it.
  void finish(ObjectId id);
  // From stop() on next() gives no file. give_up() calls the opens that still wait, once no thread reads files any more.
  void stop();
  void give_up();

 private:
  struct Entry {
    Work work;
    std::optional<std::chrono::steady_clock::time_point> begun;  // no value: it is queued
    std::vector<Then> waiting;
    bool is_large() const { return work.size_bytes > kMostAwaitedBytes; }
  };
  bool stalls() const;  // mutex_ held

  const size_t most_queued_ = std::min<uint64_t>(64, descriptor_shares().open_extents);  // queued files are open

  LeafMutex mutex_;
  ConditionVariable ready_;
  std::unordered_map<ObjectId, Entry> entries_;  // queued or being read
  std::deque<ObjectId> queue_;                   // entries not begun
  size_t large_begun_ = 0;
  bool stopped_ = false;
  std::atomic<size_t> count_{0};  // of entries_: most opens find 0, and take no lock
};

}  // namespace kvcachefs

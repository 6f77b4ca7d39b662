// Files that are read into the page cache ahead of those who will be passed through to them. Each is queued, read by a thread of
// the store, and awaited by who opens it meanwhile: beside such a read he would get the same pages in small pieces.
// Thread-safe. One leaf mutex; nothing is called with it held.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "store/base/types.h"
#include "store/volume/volume.h"

namespace kvcachefs {

class KernelAhead {
 public:
  using Then = std::move_only_function<void()>;
  static constexpr uint64_t kMostAwaitedBytes = uint64_t{64} << 20;
  struct Work {
    ObjectId id;
    FilePtr file;
    uint64_t size_bytes = 0;
  };

  // Left out where it is there already, or too many are: it is the one needed last.
  void push(Work work);
  // True: it is queued, and the next now, or being read; `then` was taken, and is called by the thread that ends that. False
  // also of a large one: its reader gets more from what is there meanwhile.
  bool await(ObjectId id, Then& then);
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
    bool begun = false;
    std::vector<Then> waiting;
  };
  std::mutex mutex_;
  std::condition_variable ready_;
  std::unordered_map<ObjectId, Entry> entries_;  // queued or being read
  std::deque<ObjectId> queue_;                   // not begun
  bool stopped_ = false;
  std::atomic<size_t> count_{0};  // of entries_: most opens find none, without the lock
};

}  // namespace kvcachefs

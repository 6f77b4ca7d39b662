// Moves bodies from blocks of the pool into memory files, before clients map them or read them again.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>

#include "store/api/counters.h"
#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/base/result.h"
#include "store/cache/file_policy.h"
#include "store/memory/memory_file.h"
#include "store/object/object.h"

namespace kvcachefs {

// Thread-safe; mutex_ is a leaf and guards the queue. One thread, kvc-mover, takes from it.
class FileMover {
 public:
  struct Parts {
    MemoryPool& pool;
    MemoryFiles& files;
    const MemoryFilePolicy& policy;
    Clock& clock;
    Counters& counters;
    bool enabled;  // false: no file is passed through, so nothing is moved
    std::function<bool(uint64_t bytes)> recover_memory;  // drops clean bodies; false: freed nothing. Called with no lock held
  };
  explicit FileMover(Parts parts) : parts_(std::move(parts)) {}
  ~FileMover() { stop(); }

  Status start();
  void stop();  // ends the thread; queued bodies stay where they are
  // Queues a body that is about to be read from RAM: passed through it is read twice as fast, and the copy costs less processor time than
  // answering its reads. Never blocks. Caller does not hold the object's lock.
  void move_soon(const ObjectPtr& object);
  // Moves one body, which takes its memory twice during the copy. Returns true if another call may find more.
  bool step();
  void clear();

 private:
  bool may_move(const Object& object) const;  // caller holds the object's lock
  bool move(const ObjectPtr& object);
  void run();

  const Parts parts_;
  std::atomic<int64_t> refused_ns_{INT64_MIN};  // when a body last got no file
  LeafMutex mutex_;
  ConditionVariable ready_;
  std::deque<ObjectPtr> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace kvcachefs

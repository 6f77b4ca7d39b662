// Moves bodies from blocks of the pool into memory files, ahead of clients that map them or read them again.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>

#include "store/api/counters.h"
#include "store/base/clock.h"
#include "store/base/mutex.h"
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
    bool enabled;  // false: nothing is passed through, so nothing is moved
    std::function<bool(uint64_t bytes)> recover_memory;  // drops clean bodies; false: none came. Called with no lock held
  };
  explicit FileMover(Parts parts) : parts_(std::move(parts)) {}
  ~FileMover() { stop(); }

  void start();
  void stop();  // ends the thread; what is queued stays where it is
  // A body that is about to be read from RAM: past the daemon it is read twice as fast, and the copy takes less of a processor
  // than answering its reads does. Never blocks. The object's lock is not held.
  void move_soon(const ObjectPtr& object);
  // Moves one body. Its memory is taken twice for the moment of the copy. True: another call may find more.
  bool step();
  void clear();

 private:
  bool may_move(const Object& object) const;  // the object's lock is held
  bool move(const ObjectPtr& object);
  void run();

  const Parts parts_;
  std::atomic<int64_t> refused_ns_{INT64_MIN};  // when there was no file for a body the last time
  LeafMutex mutex_;
  ConditionVariable ready_;
  std::deque<ObjectPtr> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace kvcachefs

// Room kept on the volume for the journal. A removal frees nothing before it is journaled, and on a file system that others have
// filled a journal cannot grow. So a file of allocated blocks is kept beside the journal, and truncated where there is no room
// for a record; it is filled up again once there is room.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "store/base/mutex.h"
#include "store/volume/volume.h"

namespace kvcachefs {

class Reserve {
 public:
  // Only this object uses `path` on `volume`. Takes over the file that an earlier mount left there.
  Reserve(std::shared_ptr<Volume> volume, std::string path);

  // Frees `bytes`, or what there is, or all if the file cannot be truncated. False: nothing was left, or that failed as well.
  bool give(uint64_t bytes);
  // Grows it to `bytes` if `available_bytes`, free for anybody, are several times what it lacks; otherwise does nothing.
  Status refill(uint64_t bytes, uint64_t available_bytes);
  // Cuts it to at most `bytes`: an earlier life with a larger capacity may have kept more.
  Status shrink(uint64_t bytes);
  // Frees all of it, at the end of a life: the next life makes its own.
  Status give_back();
  // Allocated now. Does not block.
  uint64_t held_bytes() const { return held_bytes_.load(std::memory_order_relaxed); }
  // Something was freed and is not filled up again. Does not block.
  bool is_cut() const { return cut_.load(std::memory_order_relaxed); }

 private:
  Status grow_to(uint64_t bytes);

  const std::shared_ptr<Volume> volume_;
  const std::string path_;
  LeafMutex mutex_;  // a leaf, held over the I/O of this file: of two calls that cut it at once each has to get something
  std::atomic<uint64_t> held_bytes_{0};  // changed with mutex_ held
  std::atomic<bool> cut_{false};         // the same
};

}  // namespace kvcachefs

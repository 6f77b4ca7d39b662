// Room on the volume for what gives room back. A removal frees nothing before it is journaled, and a journal on a file system
// that others have filled cannot grow. So a file of allocated blocks is kept beside it, and cut where there is no room for a
// record; it is made whole again once there is.
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
  // `path` on `volume` is its alone, through this object. What an earlier mount has left there is taken over.
  Reserve(std::shared_ptr<Volume> volume, std::string path);

  // Gives up `bytes`, or what there is, or all where it cannot be cut. False: nothing was left, or that failed as well.
  bool give(uint64_t bytes);
  // Makes it `bytes` large where `available_bytes`, free for anybody, are several times what it lacks; elsewhere nothing.
  Status refill(uint64_t bytes, uint64_t available_bytes);
  // Makes it no larger than `bytes`: what a life with a larger capacity kept is not this one's.
  Status shrink(uint64_t bytes);
  // All of it, for a life that ends: the next one makes its own.
  Status give_back();
  // Allocated now. Does not block.
  uint64_t held_bytes() const { return held_bytes_.load(std::memory_order_relaxed); }
  // Something was given up and is not there again. Does not block.
  bool is_cut() const { return cut_.load(std::memory_order_relaxed); }

 private:
  Status grow_to(uint64_t bytes);

  const std::shared_ptr<Volume> volume_;
  const std::string path_;
  LeafMutex mutex_;  // a leaf, held over the I/O of this file: of two who cut it at once each is to get something
  std::atomic<uint64_t> held_bytes_{0};  // changed with mutex_ held
  std::atomic<bool> cut_{false};         // the same
};

}  // namespace kvcachefs

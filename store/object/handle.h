// An open of an object.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "store/api/request_types.h"
#include "store/object/object.h"
#include "store/object/written_ranges.h"

namespace kvcachefs {

class Handle {
 public:
  ObjectPtr object;
  OpenRequest request;
  uint32_t thread_id = 0;
  // Guarded by object->lock():
  bool unflushed = false;
  bool synced = false;   // ... and an fsync of this handle covers all that it wrote
  uint32_t writes = 0;   // its number may wrap
  bool changed = false;  // it changed bytes or size, or tried to
  uint8_t weight_of_changes = 0;  // of its first change, which has not come yet; see requests/in_place_changes.h
  std::unique_ptr<WrittenRanges> rewrites;  // set: it is one of object->rewriters, and wrote these ranges
  bool kernel_cuts = false;  // a write failed: the next truncation by this handle may be the kernel's own

  // The process that called write() last, identified by the kernel by its table of descriptors. 0: none, or unknown.
  std::atomic<uint64_t> writer{0};

  // With the lock of the object held.
  void begin_writing() {
    ++writes;
    if (!std::exchange(unflushed, true)) ++object->unflushed_handles;
    if (std::exchange(synced, false)) --object->synced_handles;
  }
  bool end_writing() {  // false: it was not writing
    if (std::exchange(synced, false)) --object->synced_handles;
    if (!std::exchange(unflushed, false)) return false;
    --object->unflushed_handles;
    return true;
  }
  void note_synced() {
    if (unflushed && !std::exchange(synced, true)) ++object->synced_handles;
  }

  void note_failed_write() {  // the lock of the object is not held
    const auto lock = object->lock();
    kernel_cuts = true;
  }
};

}  // namespace kvcachefs

// An open of an object.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

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
  bool changed = false;  // bytes or size, or tried to
  uint8_t weight_of_changes = 0;  // of what it has not changed yet, see requests/in_place_changes.h
  std::unique_ptr<WrittenRanges> rewrites;  // it is one of object->rewriters: what it wrote
  bool kernel_cuts = false;  // a write failed: the next truncation by this handle may be the kernel's own

  // Who called write() last, as the kernel tells it: the table of descriptors of a process. 0: nobody, or nobody knows.
  std::atomic<uint64_t> writer{0};

  void note_failed_write() {  // the lock of the object is not held
    const auto lock = object->lock();
    kernel_cuts = true;
  }
};

}  // namespace kvcachefs

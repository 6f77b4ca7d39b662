// The state of a body at one moment.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "store/object/object.h"

namespace kvcachefs {

// The state of a body at one moment. It holds the blocks, so that the body can be written while the object changes.
struct Snapshot {
  ObjectPtr object;
  uint64_t size_bytes = 0;
  std::vector<Unit> units;
  Body base;
  uint64_t base_valid_bytes = 0;
  FilePtr spill;
  ExtentId spill_extent;
  std::vector<bool> spill_written;
  bool raw = false;
  uint64_t content_version = 0;
  int64_t mtime_ns = 0, ctime_ns = 0;
};

// The snapshot of a body as its record describes it, with no unit in RAM.
inline Snapshot stored_snapshot(Body body) {
  Snapshot stored;
  stored.size_bytes = stored.base_valid_bytes = body.size_bytes;
  stored.base = std::move(body);
  return stored;
}

}  // namespace kvcachefs

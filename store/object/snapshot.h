// A body as it was at one moment.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "store/object/object.h"

namespace kvcachefs {

// What a body was at one moment: holds its blocks, so that it can be written while the object changes.
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
};

// A body as its record tells it, with nothing of it in RAM.
inline Snapshot stored_snapshot(Body body) {
  Snapshot stored;
  stored.size_bytes = stored.base_valid_bytes = body.size_bytes;
  stored.base = std::move(body);
  return stored;
}

}  // namespace kvcachefs

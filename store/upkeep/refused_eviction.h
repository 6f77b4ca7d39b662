// Decides when to evict although the volume reports free space and yet refuses writes. Eviction helps if a quota or the inodes are used up;
// it does not if something below the file system is full (a thin device, a sparse image) or broken. So it is tried: while less than half of
// the evicted bytes were written since, the next try comes after a pause that doubles each time.
#pragma once

#include <cstdint>

#include "store/base/backoff.h"

namespace kvcachefs {

// Used by one thread. `written_bytes`: to the volume, since the start.
class RefusedEviction {
 public:
  bool may_try(int64_t now_ns, uint64_t written_bytes) {
    if (written_bytes >= enough_bytes_) pause_.succeeded();
    return pause_.may_try(now_ns);
  }
  void tried(int64_t now_ns, uint64_t written_bytes, uint64_t evicted_bytes) {
    enough_bytes_ = written_bytes + evicted_bytes / 2;
    pause_.failed(now_ns);
  }

 private:
  Backoff pause_{10'000'000'000, 3'600'000'000'000};
  uint64_t enough_bytes_ = 0;
};

}  // namespace kvcachefs

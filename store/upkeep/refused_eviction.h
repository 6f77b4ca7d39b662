// Decides when to evict although the volume reports free space and yet refuses writes. Eviction helps if a quota or the inodes are used up;
// it does not if something below the file system is full (a thin device, a sparse image) or broken. So it is tried: while less than half of
// the evicted bytes are known to be on the medium since, the next try comes after a pause that doubles each time. Writes alone prove nothing: the
// page cache takes them.
#pragma once

#include <atomic>
#include <cstdint>

#include "store/base/backoff.h"

namespace kvcachefs {

// One thread calls tried(). `durable_bytes`: Counters::durable_bytes.
class RefusedEviction {
 public:
  // Any thread.
  bool may_try(int64_t now_ns, uint64_t durable_bytes) const { return has_helped(durable_bytes) || pause_.may_try(now_ns); }
  void tried(int64_t now_ns, uint64_t durable_bytes, uint64_t evicted_bytes) {
    if (has_helped(durable_bytes)) pause_.succeeded();
    enough_bytes_ = durable_bytes + evicted_bytes / 2;
    pause_.failed(now_ns);
  }

 private:
  bool has_helped(uint64_t durable_bytes) const { return durable_bytes >= enough_bytes_; }

  Backoff pause_{10'000'000'000, 3'600'000'000'000};
  std::atomic<uint64_t> enough_bytes_{0};
};

}  // namespace kvcachefs

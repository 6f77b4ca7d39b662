// Writes a batch of bodies: joins pieces that lie next to each other in a file into large requests, several in flight.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "store/api/counters.h"
#include "store/base/mutex.h"
#include "store/base/result.h"
#include "store/base/units.h"
#include "store/memory/block.h"
#include "store/memory/pool.h"
#include "store/volume/volume.h"

namespace kvcachefs {

inline constexpr uint64_t kWriteBytes = 4 * kMiB;  // one request to the volume

// Used by one thread; completions run on threads of the volume. mutex_ is a leaf. The destructor waits for all requests in flight.
class BodyWriter {
 public:
  BodyWriter(Volume& volume, Counters& counters)
      : volume_(volume), counters_(counters), one_body_a_write_(volume.features().whole_writes) {}
  ~BodyWriter() { wait_all(); }

  // `body` receives a failure; it stands for one body, and the caller must not read or change it before wait_all(). `keep` holds the
  // memory of the piece. Blocks while too much is in flight.
  void add(Status* body, const FilePtr& file, uint64_t offset, std::span<std::byte> piece, BlockPtr keep);
  void send();
  void wait_all();

 private:
  Volume& volume_;
  Counters& counters_;
  const bool one_body_a_write_;  // a request holds one body only, so that punching a body gives its room back
  FilePtr file_;
  uint64_t offset_ = 0, bytes_ = 0;
  std::vector<std::span<std::byte>> pieces_;
  std::vector<BlockPtr> keep_;
  std::vector<Status*> bodies_;
  LeafMutex mutex_;  // guards in_flight_ and the statuses of bodies
  ConditionVariable room_;
  uint64_t in_flight_ = 0;
};

}  // namespace kvcachefs

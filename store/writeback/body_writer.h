// The writes of a batch of bodies: pieces that lie next to each other in a file go in large requests, several in flight.
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

// Used by one thread; completions come on the volume's. mutex_ is a leaf. Its end waits for all that is in flight.
class BodyWriter {
 public:
  BodyWriter(Volume& volume, Counters& counters)
      : volume_(volume), counters_(counters), one_body_a_write_(volume.features().whole_writes) {}
  ~BodyWriter() { wait_all(); }

  // `body` hears of a failure; it stands for one body, and is not to be read or changed before wait_all(). `keep` holds the memory of
  // the piece. Blocks while too much is in flight.
  void add(Status* body, const FilePtr& file, uint64_t offset, std::span<std::byte> piece, BlockPtr keep);
  void send();
  void wait_all();

 private:
  Volume& volume_;
  Counters& counters_;
  const bool one_body_a_write_;  // so that punching a body gives its room back
  FilePtr file_;
  uint64_t offset_ = 0, bytes_ = 0;
  std::vector<std::span<std::byte>> pieces_;
  std::vector<BlockPtr> keep_;
  std::vector<Status*> bodies_;
  LeafMutex mutex_;  // in_flight_, and what bodies hear
  ConditionVariable room_;
  uint64_t in_flight_ = 0;
};

}  // namespace kvcachefs

// Decides which bodies in RAM lie in memory files, which FUSE can pass through, instead of blocks of the pool.
#pragma once

#include <atomic>
#include <cstdint>

#include "store/api/live_options.h"
#include "store/base/clock.h"
#include "store/cache/size_guess.h"
#include "store/memory/memory_file.h"
#include "store/object/object.h"

namespace kvcachefs {

// Thread-safe; its only lock is that of SizeGuess, a leaf.
class MemoryFilePolicy {
 public:
  struct Parts {
    const MemoryFiles& files;
    const LiveOptions& options;
    Clock& clock;
  };
  explicit MemoryFilePolicy(Parts parts) : files_(parts.files), options_(parts.options), clock_(parts.clock) {}

  // On this mount, the kernel does not pass memory files through.
  void refuse() { refused_.store(true); }
  bool refused() const { return refused_.load(); }
  // True if some bodies get memory files.
  bool in_use() const { return !refused() && options_.memory_file_min_bytes() > 0 && files_.started(); }
  bool takes(uint64_t size_bytes) const {
    return in_use() && size_bytes >= options_.memory_file_min_bytes() && size_bytes <= files_.most_bytes();
  }

  // A client has mapped a body that was not passed through.
  void note_mapped_read() { mapped_read_ns_.store(clock_.monotonic_ns(), std::memory_order_relaxed); }
  // True if whole bodies are loaded into memory files, because clients map them.
  bool loads_into_files() const;

  // Guesses the final size of a body that is being created: `kind_key` is its stem (0: none). Returns 0 if unknown or of no use.
  uint64_t guess_size(uint64_t kind_key, uint32_t thread_id) const;
  uint64_t guess_size(uint32_t thread_id) const { return guess_.of(SizeGuess::thread_key(thread_id)); }
  void note_size(uint64_t kind_key, uint32_t thread_id, uint64_t size_bytes);
  // Call for a new body before its first byte: if it is large enough it goes into a memory file. Caller holds the object's lock.
  void expect_size(Object& object, uint64_t size_bytes) const {
    if (takes(size_bytes)) object.expected_bytes = size_bytes;
  }

 private:
  const MemoryFiles& files_;
  const LiveOptions& options_;
  Clock& clock_;
  SizeGuess guess_;
  std::atomic<bool> refused_{false};
  std::atomic<int64_t> mapped_read_ns_{INT64_MIN};  // time of the last one, on the monotonic clock
};

}  // namespace kvcachefs

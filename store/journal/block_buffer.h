// Reads and writes whole blocks of a file that may be open for direct I/O, which requires aligned memory, offsets and lengths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

#include "store/base/bytes.h"
#include "store/base/result.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// Aligned memory, kept from one use to the next. Not thread-safe.
class BlockBuffer {
 public:
  // Writes `bytes` at `offset`, a multiple of the block size, zero-padded to a whole block: one call of the volume.
  Status write(File& file, ByteSpan bytes, uint64_t offset);
  // Like File::read, for any offset and length.
  Result<size_t> read(File& file, std::span<std::byte> into, uint64_t offset);
  // Frees the memory if it is larger than `bytes`.
  void shrink(size_t bytes);

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  Result<std::span<std::byte>> take(uint64_t bytes);
  std::unique_ptr<std::byte, Free> memory_;
  size_t size_bytes_ = 0;
};

}  // namespace kvcachefs

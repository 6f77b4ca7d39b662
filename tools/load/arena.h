// One block of zeroed, faulted-in, page-aligned memory, on huge pages if the kernel provides them. O_DIRECT into
// small pages has half the rate, and a page fault inside a timed region costs more than the read that causes it.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "store/base/result.h"

namespace kvcachefs {

class Arena {
 public:
  static Result<Arena> create(size_t bytes);
  Arena() = default;
  Arena(Arena&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Arena& operator=(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  std::span<std::byte> span() const { return {memory_, bytes_}; }

 private:
  std::byte* memory_ = nullptr;
  size_t bytes_ = 0;
};

// How many bytes may be used for buffers without pushing the machine into swap or emptying its page cache.
size_t default_pool_bytes();

}  // namespace kvcachefs

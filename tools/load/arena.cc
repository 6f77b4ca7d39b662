#include "tools/load/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "store/base/units.h"

namespace kvcachefs {
namespace {
constexpr size_t kHugePageBytes = 2 * kMiB;
}  // namespace

Result<Arena> Arena::create(size_t bytes) {
  Arena arena;
  // mmap of whole huge pages is aligned to one by kernels >= 6.7, and nearly always before.
  arena.bytes_ = align_up(std::max<size_t>(bytes, 1), kHugePageBytes);
  void* memory = ::mmap(nullptr, arena.bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return fail_errno(errno, "cannot allocate " + format_size(arena.bytes_) +
                                 " of buffers; lower --pass-bytes, --pool-bytes or --scale");
  }
  arena.memory_ = static_cast<std::byte*>(memory);
  ::madvise(memory, arena.bytes_, MADV_HUGEPAGE);
  std::memset(memory, 0, arena.bytes_);
  return arena;
}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Arena::~Arena() {
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
}

size_t default_pool_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string line;
  uint64_t available_kib = 0;
  while (std::getline(meminfo, line)) {
    if (std::sscanf(line.c_str(), "MemAvailable: %lu", &available_kib) == 1) break;
  }
  // A quarter: the page cache and a daemon's own budget need the rest.
  return std::clamp<size_t>(available_kib * kKiB / 4, 64 * kMiB, 4 * kGiB);
}

}  // namespace kvcachefs

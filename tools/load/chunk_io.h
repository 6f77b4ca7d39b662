// Probing, reading and writing chunk files with the very system calls of a style.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "store/base/result.h"
#include "tools/load/access_style.h"
#include "tools/load/slot.h"

namespace kvcachefs {

// One per thread. Errors name the file and what was done to it; a file that is not there is no error.
class ChunkIo {
 public:
  // Chunk paths are relative to `root`, which exists. `writer` tells the temp names of concurrent writers apart.
  ChunkIo(std::string root, AccessStyle style, unsigned writer);

  // Whether the chunk is there, as the client asks.
  Result<bool> probe(const ChunkName& name) const;
  // The whole file into `slot`; false when there is none. A short file is an error.
  Result<bool> load(const ChunkName& name, uint64_t bytes, Slot& slot) const;
  // Creates or replaces the file with `content` (its bytes start with the header of styles that have one). False when
  // the style looked first, found it there and wrote nothing.
  Result<bool> store(const ChunkName& name, std::span<const std::byte> content);

 private:
  std::string full(const std::string& path) const { return root_ + path; }
  Result<bool> load_by_read(const std::string& path, const ChunkName& name, uint64_t bytes, Slot& slot) const;
  Result<bool> load_by_mmap(const std::string& path, const ChunkName& name, uint64_t bytes, Slot& slot) const;

  std::string temp_name(const ChunkName& name);
  Status store_by_write(const std::string& temp, std::span<const std::byte> content) const;
  Status store_by_mmap(const std::string& temp, std::span<const std::byte> content, int create_flags) const;
  Status store_lmcache_gds(const std::string& temp, std::span<const std::byte> content) const;
  Status store_sidecar(const ChunkName& name, std::span<const std::byte> header);

  std::string root_;
  AccessStyle style_;
  uint64_t writer_;
  uint64_t sequence_ = 0;
};

// mkdir -p of everything above root + path; `root` exists and ends with a slash.
Status make_parent_directories(const std::string& root, const std::string& path);

}  // namespace kvcachefs

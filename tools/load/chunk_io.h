// Probes, reads and writes chunk files with exactly the system calls of a style.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "store/base/result.h"
#include "tools/load/access_style.h"
#include "tools/load/slot.h"

namespace kvcachefs {

// One per thread. Errors name the file and the operation; an absent file is no error.
class ChunkIo {
 public:
  // Chunk paths are relative to `root`, which exists. `writer` makes the temp names of concurrent writers differ.
  ChunkIo(std::string root, AccessStyle style, unsigned writer);

  // Whether the chunk exists, checked as the client checks it.
  Result<bool> probe(const ChunkName& name) const;
  // Reads the whole file into `slot`; false if there is none. A short file is an error.
  Result<bool> load(const ChunkName& name, uint64_t bytes, Slot& slot) const;
  // Creates or replaces the file with `content` (which starts with the header if the style has one). Returns false if
  // the style checks first, and found the file and wrote nothing.
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

// mkdir -p for the parent of root + path; `root` exists and ends with a slash.
Status make_parent_directories(const std::string& root, const std::string& path);

}  // namespace kvcachefs

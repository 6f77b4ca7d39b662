#include "store/peers/part_size.h"

namespace kvcachefs {

Result<std::optional<uint64_t>> PartSize::go_on(Volume& volume, const Clock& clock, int64_t most_ns) {
  const int64_t until_ns = clock.monotonic_ns() + most_ns;
  do {
    if (!files_.empty()) {
      const auto info = volume.info(files_.back());
      if (!info && info.error().code != Code::kNotFound) return std::unexpected(info.error());
      if (info) bytes_ += info->allocated_bytes;
      files_.pop_back();
      continue;
    }
    if (directories_.empty()) return bytes_;
    const std::string directory = std::move(directories_.back());
    directories_.pop_back();
    if (const auto info = volume.info(directory)) bytes_ += info->allocated_bytes;
    const auto entries = volume.list(directory);
    if (!entries && entries.error().code == Code::kNotFound) continue;
    KVC_TRY(entries);
    for (const DirectoryEntry& entry : *entries) (entry.is_directory ? directories_ : files_).push_back(directory + "/" + entry.name);
  } while (clock.monotonic_ns() < until_ns);
  return std::nullopt;
}

}  // namespace kvcachefs

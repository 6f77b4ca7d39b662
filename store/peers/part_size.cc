#include "store/peers/part_size.h"

#include <sys/stat.h>

#include <filesystem>
#include <system_error>

namespace kvcachefs {

uint64_t allocated_below(const std::string& directory) {
  uint64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator each(directory, error), end; !error && each != end; each.increment(error)) {
    struct stat file {};
    if (::lstat(each->path().c_str(), &file) == 0) bytes += static_cast<uint64_t>(file.st_blocks) * 512;
  }
  return bytes;
}

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

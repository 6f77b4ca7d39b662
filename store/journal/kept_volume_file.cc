#include "store/journal/kept_volume_file.h"

#include <utility>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/journal/file_header.h"
#include "store/journal/make_volume.h"
#include "store/journal/volume_file.h"

namespace kvcachefs {

namespace {
bool is_unchanged(const FileInfo& seen, const FileInfo& now) {
  return now.file_id == seen.file_id && now.size_bytes == seen.size_bytes && now.mtime_ns == seen.mtime_ns && !now.is_directory;
}
}  // namespace

Status KeptVolumeFile::look() {
  auto info = volume_.info(kVolumeFileName);
  if (info && seen_ && is_unchanged(*seen_, *info)) return {};
  seen_.reset();
  auto content = read_file(volume_, kVolumeFileName, kVolumeFileBytes);
  const auto header = content ? decode_volume_file(*content) : Result<VolumeHeader>(std::unexpected(content.error()));
  if (header && header->uuid == uuid_) {
    content_ = std::move(*content);
    if (info) seen_ = *info;
    return {};
  }
  if (content_.empty()) return {};
  if (header)
    return fail(Code::kExists, fmt::format("volume {}: others put the {} of another volume ({}) in the place of its own ({}) while it was mounted: remove that file, "
                                           "then this mount makes its own anew",
                                           volume_.root(), kVolumeFileName, format_uuid(header->uuid), format_uuid(uuid_)));
  Error error = header.error();
  if (error.code == Code::kVersion) return std::unexpected(std::move(error).at("volume " + volume_.root()));
  if (error.code == Code::kIsDirectory)
    return fail(Code::kIsDirectory, fmt::format("volume {}: others put a directory in the place of {} while it was mounted: remove or rename it, then this mount makes "
                                                "the file anew",
                                                volume_.root(), kVolumeFileName));
  if (!lacks_volume_file(error)) return {};  // not known: perhaps a look into what another node is doing, or an error that passes
  const bool missing = error.code == Code::kNotFound;
  return put_back(missing ? "removed" : "damaged", /*replaces=*/!missing);
}

Status KeptVolumeFile::put_back(const char* what, bool replaces) {
  Status written = write_volume_file(volume_, content_, replaces);
  if (!written && written.error().code == Code::kExists) return {};  // another node was first
  if (!written) {
    written.error().message = fmt::format("volume {}: {} was {} by others while it was mounted, and could not be put back: {}", volume_.root(), kVolumeFileName, what,
                                          written.error().message);
    return written;
  }
  log::warn("volume {}: {} was {} by others while it was mounted, and is put back", volume_.root(), kVolumeFileName, what);
  return {};
}

}  // namespace kvcachefs

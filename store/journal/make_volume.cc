#include "store/journal/make_volume.h"

#include <sys/random.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "store/base/log.h"

namespace kvcachefs {
namespace {

constexpr int kMostTries = 10;  // retries while others are faster

// Drafts of the file VOLUME, left by or in use by a first start.
bool is_draft(std::string_view name) { return name.starts_with(std::string(kVolumeFileName) + ".") && name.ends_with(".tmp"); }

Result<VolumeHeader> read_header(Volume& volume) {
  KVC_ASSIGN(const auto content, read_file(volume, kVolumeFileName, kVolumeFileBytes));
  auto header = decode_volume_file(content);
  if (!header) return std::unexpected(std::move(header).error().at("volume " + volume.root()));
  return header;
}

// Once there is a VOLUME, drafts are useless; a draft may even be a second name of it, and a file with two names cannot be opened.
Status remove_drafts(Volume& volume) {
  KVC_ASSIGN(const auto entries, volume.list(""));
  if (std::ranges::find(entries, std::string(kVolumeFileName), &DirectoryEntry::name) == entries.end()) return {};
  for (const DirectoryEntry& entry : entries)
    if (!entry.is_directory && is_draft(entry.name))
      if (Status removed = volume.remove_file(entry.name); !removed && removed.error().code != Code::kNotFound) return removed;
  return {};
}

Result<VolumeHeader> make_header(Volume& volume, Stamp created) {
  VolumeHeader header;
  uint64_t draft = 0;
  const auto random = [](void* into, size_t bytes) { return getrandom(into, bytes, 0) == static_cast<ssize_t>(bytes); };
  if (!random(header.uuid.data(), header.uuid.size()) || !random(&draft, sizeof draft))
    return fail(Code::kIo, "no random bytes for the id of a new volume");
  header.created_stamp = created;
  KVC_TRY(publish_file(volume, fmt::format("{}.{:016x}.tmp", kVolumeFileName, draft), kVolumeFileName, encode_volume_file(header)));
  log::info("initialised a new volume in {}", volume.root());
  return header;
}

}  // namespace

Status check_may_be_volume(Volume& volume) {
  KVC_ASSIGN(const auto entries, volume.list(""));
  if (std::ranges::find(entries, std::string(kVolumeFileName), &DirectoryEntry::name) != entries.end()) return {};
  for (const DirectoryEntry& entry : entries)
    if (entry.name != "lost+found" && !entry.name.starts_with(".kvcachefs") && !is_draft(entry.name))
      return fail(Code::kExists, fmt::format("{} is not a kvcachefs volume and not empty (it holds '{}'): give an empty or new directory",
                                             volume.root(), entry.name));
  return {};
}

Result<VolumeHeader> open_or_make_volume(Volume& volume, Stamp created) {
  const auto nodes = volume.list("nodes");
  const bool first = !nodes || nodes->empty();
  for (int i = 0;; ++i) {
    if (first) KVC_TRY(remove_drafts(volume));
    auto header = read_header(volume);
    // The file may have two names for a moment while another node makes it: retry.
    if (!header && header.error().code == Code::kIo && first && i < kMostTries) continue;
    if (header || header.error().code != Code::kNotFound) return header;
    KVC_TRY(check_may_be_volume(volume));  // fails if there are nodes but no header: their volume id is lost
    header = make_header(volume, created);
    if (header || i == kMostTries) return header;
    // Another node was first, and may have removed this one's draft.
    if (const Code code = header.error().code; code != Code::kExists && code != Code::kNotFound) return header;
  }
}

}  // namespace kvcachefs

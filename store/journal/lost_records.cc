#include "store/journal/lost_records.h"

#include <span>

#include <fmt/format.h>

#include "store/journal/journal_file.h"

namespace kvcachefs {

namespace {
constexpr uint64_t kMostBytes = 32;
}  // namespace

std::string lost_records_path(std::string_view node) { return fmt::format("nodes/{}/LOST", node); }

Result<uint32_t> epochs_with_lost_records(Volume& volume, std::string_view node) {
  const auto content = read_file(volume, lost_records_path(node), kMostBytes);
  if (!content && content.error().code == Code::kNotFound) return 0;
  if (!content) return kMaxEpoch;
  std::string_view text(reinterpret_cast<const char*>(content->data()), content->size());
  if (text.ends_with('\n')) text.remove_suffix(1);
  const auto epoch = parse_seq(text);
  return epoch && *epoch <= kMaxEpoch ? static_cast<uint32_t>(*epoch) : kMaxEpoch;
}

// Replaces the file by rename: after a crash either the old or the new file is there, and both are valid.
Status note_lost_records(Volume& volume, std::string_view node, uint32_t up_to_epoch) {
  KVC_ASSIGN(const uint32_t there, epochs_with_lost_records(volume, node));
  if (there >= up_to_epoch) return {};
  const std::string path = lost_records_path(node), draft = path + ".tmp", text = fmt::format("{}\n", up_to_epoch);
  KVC_TRY(remove_file_if_there(volume, draft));
  KVC_ASSIGN(const FilePtr file, volume.open(draft, {.writable = true, .create_exclusive = true}));
  const auto piece = std::as_bytes(std::span(text));
  KVC_TRY(file->write({&piece, 1}, 0));
  KVC_TRY(file->sync_data());
  KVC_TRY(volume.rename(draft, path));
  return volume.sync_directory(fmt::format("nodes/{}", node));
}

Status forget_lost_records(Volume& volume, std::string_view node) {
  KVC_TRY(remove_file_if_there(volume, lost_records_path(node)));
  return volume.sync_directory(fmt::format("nodes/{}", node));
}

}  // namespace kvcachefs

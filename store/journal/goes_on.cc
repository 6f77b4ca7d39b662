#include "store/journal/goes_on.h"

#include <algorithm>

#include <fmt/format.h>

#include "store/journal/epoch_ends.h"

namespace kvcachefs {

Result<bool> journals_were_lost(Volume& volume, const FileIdentity& identity, JournalPosition at, const std::optional<CheckpointInfo>& checkpoint,
                                std::span<const JournalFileInfo> journals) {
  if (at == JournalPosition{} || (checkpoint && at <= checkpoint->header.covers)) return false;
  KVC_ASSIGN(const auto epochs, list_epochs(volume, identity.node));
  KVC_ASSIGN(const EpochEnds ends, EpochEnds::read(volume, identity, epochs, at.epoch));
  if (!ends.counts(at)) return false;
  const auto file = std::ranges::find_if(journals, [&](const JournalFileInfo& info) { return info.epoch == at.epoch && info.seq == at.seq; });
  return file == journals.end() || file->size_bytes < at.offset;
}

Result<std::string> why_of_another_time(Volume& volume, const FileIdentity& identity, JournalPosition at, bool closed, const std::optional<CheckpointInfo>& checkpoint,
                                        std::span<const JournalFileInfo> journals) {
  if (!checkpoint && journals.empty()) return std::string();  // there is nothing but the index to believe
  KVC_ASSIGN(const auto epochs, list_epochs(volume, identity.node));
  if (!std::ranges::binary_search(epochs, at.epoch)) return fmt::format("{} is not there", epoch_directory(identity.node, at.epoch));
  const auto behind = std::ranges::find_if(journals, [&](const JournalFileInfo& info) { return info.epoch == at.epoch && info.seq > at.seq; });
  if (!closed || behind == journals.end()) return std::string();
  return fmt::format("{} comes after it", journal_path(identity.node, behind->epoch, behind->seq));
}

JournalPosition behind_what_is_lost(JournalPosition at, std::span<const JournalFileInfo> journals) {
  for (const JournalFileInfo& file : journals)
    if (file.epoch == at.epoch && file.seq > at.seq) return {at.epoch, file.seq, 0};
  return {at.epoch + 1, 0, 0};
}

}  // namespace kvcachefs

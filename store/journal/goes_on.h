// Whether the journals continue from the position of an index; if not, whether to believe the index or the journals.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "store/journal/journal.h"

namespace kvcachefs {

// `at`: the position of the index. False: the index is older than these journals, or belongs to another state of the volume, and must be made anew.
// Journals before a checkpoint may be gone; without a checkpoint an index at position {0,0,0} continues with the first journal.
inline bool journals_go_on_from(JournalPosition at, const std::optional<CheckpointInfo>& checkpoint, std::span<const JournalFileInfo> journals) {
  if (checkpoint && at < checkpoint->header.covers) return false;
  if (checkpoint && at == checkpoint->header.covers) return true;
  for (const JournalFileInfo& file : journals)
    if (file.epoch == at.epoch && file.seq == at.seq) return file.counting_bytes >= at.offset;
  return at == JournalPosition{} && !checkpoint;
}

// For an index from which the journals do not continue. True: journals that it had read were lost. No crash causes that, for the index is committed only
// up to a synced position of the journal. False: the index is older than the checkpoint, or has read records that do not count. Blocks on the volume.
Result<bool> journals_were_lost(Volume& volume, const FileIdentity& identity, JournalPosition at, const std::optional<CheckpointInfo>& checkpoint,
                                std::span<const JournalFileInfo> journals);
// For an index whose position `at` the journals lack: why it may belong to another state of the volume; empty: it can be of this one. An index on the volume
// is restored with it, so ask only for an index elsewhere. `closed`: it was closed cleanly, so `at` is the end of its epoch. Blocks on the volume.
Result<std::string> why_of_another_time(Volume& volume, const FileIdentity& identity, JournalPosition at, bool closed, const std::optional<CheckpointInfo>& checkpoint,
                                        std::span<const JournalFileInfo> journals);
// Where the journals continue behind the part that was lost at the position of the index.
JournalPosition behind_what_is_lost(JournalPosition at, std::span<const JournalFileInfo> journals);

}  // namespace kvcachefs

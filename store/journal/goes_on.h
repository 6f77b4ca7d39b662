// Whether the journals go on where an index ends; if not, whether the index or the journals are to be believed.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "store/journal/journal.h"

namespace kvcachefs {

// `at`: the position of the index. False: it is older than these journals, or of another time, and is made anew. Before a
// checkpoint the journals may be gone; without one an index that has seen nothing goes on with the first of them.
inline bool journals_go_on_from(JournalPosition at, const std::optional<CheckpointInfo>& checkpoint, std::span<const JournalFileInfo> journals) {
  if (checkpoint && at < checkpoint->header.covers) return false;
  if (checkpoint && at == checkpoint->header.covers) return true;
  for (const JournalFileInfo& file : journals)
    if (file.epoch == at.epoch && file.seq == at.seq) return file.counting_bytes >= at.offset;
  return at == JournalPosition{} && !checkpoint;
}

// For an index from which the journals do not go on. True: what it had read of them was lost. No crash does that, for an index is committed only
// behind what is synced of the journal. False: it is older than the checkpoint, or has read what does not count. Blocks on the volume.
Result<bool> journals_were_lost(Volume& volume, const FileIdentity& identity, JournalPosition at, const std::optional<CheckpointInfo>& checkpoint,
                                std::span<const JournalFileInfo> journals);
// Why an index that is `at` a position which the journals lack may be of another time than this volume; empty: it can be of this one. What is part of the volume
// is put back to an earlier state with it, so this is asked of an index that lies elsewhere. `closed`: cleanly, which is the end of its epoch. Blocks on the volume.
Result<std::string> why_of_another_time(Volume& volume, const FileIdentity& identity, JournalPosition at, bool closed, const std::optional<CheckpointInfo>& checkpoint,
                                        std::span<const JournalFileInfo> journals);
// Where the journals go on behind what is lost of them at the position of the index.
JournalPosition behind_what_is_lost(JournalPosition at, std::span<const JournalFileInfo> journals);

}  // namespace kvcachefs

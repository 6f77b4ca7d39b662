// Whether the journals go on where an index ends.
#pragma once

#include <optional>
#include <span>

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

}  // namespace kvcachefs

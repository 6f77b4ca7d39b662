#include "store/commit/journal_room.h"

#include "store/base/log.h"

namespace kvcachefs {

void JournalRoom::note_full(const Error& error) {
  counters_.errors_journal.fetch_add(1, std::memory_order_relaxed);
  log::warn("{}; the journal takes of the room that is kept for it, {} are left", error.message, format_size(reserve_.held_bytes()));
}

}  // namespace kvcachefs

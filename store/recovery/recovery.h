// Recovers the state at a start: opens the index, or fills it anew from the newest checkpoint; replays the journals from where the index ends;
// if the machine stopped, checks which bodies are whole. Reads what came since the last checkpoint, never every chunk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>

#include "store/api/counters.h"
#include "store/base/clock.h"
#include "store/base/result.h"
#include "store/base/types.h"
#include "store/index/index.h"
#include "store/journal/journal.h"
#include "store/memory/pool.h"
#include "store/space/dead_space.h"
#include "store/space/orphan_notes.h"
#include "store/tree/tree.h"
#include "store/volume/volume.h"

namespace kvcachefs {

struct RecoveryParts {
  std::shared_ptr<Volume> volume;
  FileIdentity identity;  // with the last epoch begun so far
  std::string index_directory;
  HybridClock& stamps;
  MemoryPool& pool;  // not used by others yet
  Counters& counters;
  DeadSpace& dead;       // gets the places that the journals gave up
  OrphanNotes& orphans;  // gets notes of what earlier lives may have left
  // Notes that records of epochs up to this one are lost. Called before anything that shows the loss is changed.
  std::function<Status(uint32_t last_epoch)> note_lost;
};

struct Recovered {
  std::unique_ptr<Index> index;
  bool index_rebuilt = false;
  bool unclean = false;  // the previous life did not end cleanly
  // Bodies were read to decide which to trust, or some were trusted unread. Once some of these are deleted, the journals that named them must not be
  // judged again: so a checkpoint comes before anything is given back.
  bool judged_tail = false;
  bool records_lost = false;  // a damaged checkpoint or journal lost records: they may have named data that now looks dead
  bool checkpoint_damaged = false;  // the newest checkpoint, or a file that may have been it; the index may not have needed it
  std::unordered_set<ObjectId> unverified;  // kept although the volume did not return their bytes
  bool journals_lost = false;  // journals that the index had read are lost
  // Peers may have read records, also before `end`, that are gone; or an earlier life said so and ended before its checkpoint. They need a checkpoint of this life.
  bool peers_want_checkpoint = false;
  bool tail_cut = false;  // invalid bytes follow `end` in the journals: peers may have read them before they broke
  uint32_t last_epoch = 0;  // largest epoch begun, as far as anything tells: also by an index that knows an epoch whose directory is gone
  // Behind everything in the journals that counts. Excludes what a daemon that lost this node appends later, and what lies behind a torn tail.
  JournalPosition end;
  bool other_boot = false;  // some of the journals were written before this machine started, or on another machine
  uint64_t checkpoint_bytes = 0;
  uint64_t older_journals_bytes = 0, journal_files = 1;  // includes the file that is about to be begun
};

// Called by the thread that starts the store, before there are others. Blocks on the volume.
Result<Recovered> recover(const RecoveryParts& parts);

// Makes the names of quarantined bodies read as absent.
void find_quarantined(const Index& index, Tree& tree);

}  // namespace kvcachefs

// What a start finds on the volume: the index opened, or filled anew from the newest checkpoint; the journals replayed from where it
// ends; what of that is whole, if the machine stopped. Reads what came since the last checkpoint, never every chunk.
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
  FileIdentity identity;  // with the last epoch that was begun
  std::string index_directory;
  HybridClock& stamps;
  MemoryPool& pool;  // nothing else takes of it yet
  Counters& counters;
  DeadSpace& dead;       // told of places that the journals gave up
  OrphanNotes& orphans;  // told of what earlier lives may have left
  // Records of epochs up to this one are lost: before anything is changed that tells of it.
  std::function<Status(uint32_t last_epoch)> note_lost;
};

struct Recovered {
  std::unique_ptr<Index> index;
  bool index_rebuilt = false;
  bool unclean = false;  // the life before did not come to its end
  // Bodies were read to tell which to trust, or some were trusted unread. The journals that named them must not be judged again once
  // some are gone for good: a checkpoint comes before anything is given back.
  bool judged_tail = false;
  bool records_lost = false;  // of a damaged checkpoint or journal: they may have named what looks dead
  bool checkpoint_damaged = false;  // the newest, or one that may have been; the index may have had no need of it
  std::unordered_set<ObjectId> unverified;  // kept though the volume did not give their bytes
  bool journals_lost = false;  // what the index had read of them
  // Peers may have read more than is left, and not only behind `end`; or an earlier life said so and ended before its checkpoint. They go on from one of this life.
  bool peers_want_checkpoint = false;
  bool tail_cut = false;  // the journals go on behind `end` with what does not count: peers may have read that before it broke
  uint32_t last_epoch = 0;  // that was begun, as far as anything tells: also by an index of which the directory is gone
  // Behind all that counts of the journals: what a daemon that lost this node appends later comes behind it, and what a torn tail took along.
  JournalPosition end;
  bool other_boot = false;  // some of them were written before this machine was started, or on another one
  uint64_t checkpoint_bytes = 0;
  uint64_t older_journals_bytes = 0, journal_files = 1;  // of the latter one is about to be begun
};

// By the thread that starts the store, before there are others. Blocks on the volume.
Result<Recovered> recover(const RecoveryParts& parts);

// The names of bodies that are in quarantine read as absent.
void find_quarantined(const Index& index, Tree& tree);

}  // namespace kvcachefs

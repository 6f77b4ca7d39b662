// Sync points, index points and checkpoints: they decide when accepted data is safe, when the index follows, and which dead space may be
// given back then (invariants 3, 4 and 6 of the store).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "store/api/counters.h"
#include "store/api/live_options.h"
#include "store/base/clock.h"
#include "store/base/health.h"
#include "store/chain/access_tracker.h"
#include "store/commit/committer.h"
#include "store/commit/journal_room.h"
#include "store/extent/extents.h"
#include "store/index/index.h"
#include "store/journal/journal.h"
#include "store/space/dead_space.h"
#include "store/space/orphan_notes.h"
#include "store/space/raw_space.h"
#include "store/space/record_space.h"
#include "store/space/reserve.h"
#include "store/tree/tree.h"
#include "store/upkeep/drainer.h"
#include "store/upkeep/eviction.h"
#include "store/upkeep/index_rebuild.h"
#include "store/upkeep/orphan_sweep.h"
#include "store/upkeep/peer_follower.h"
#include "store/upkeep/peer_holds.h"
#include "store/upkeep/reclaimer.h"
#include "store/volume/volume.h"
#include "store/writeback/relocator.h"

namespace kvcachefs {

// Used only by the thread that commits the index (the keeper; at the end the thread in close()), except nobody_reads(). Call with no lock
// held. Blocks on the volume.
class Checkpointer {
 public:
  struct Parts {
    std::shared_ptr<Volume> volume;
    const FileIdentity& identity;
    const std::string& index_directory;
    Index& index;
    IndexRebuild& index_rebuild;
    JournalWriter& journal;
    JournalRoom& journal_room;
    Reserve& reserve;
    Extents& extents;
    Committer& committer;
    Relocator& relocator;
    Drainer& drainer;
    Tree& tree;
    AccessTracker& accesses;
    Space& space;
    DeadSpace& dead;
    RawSpace& raw_space;
    RecordSpace& records;
    OrphanNotes& orphans;
    OrphanSweep& sweep;
    Reclaimer& reclaimer;
    Eviction& eviction;
    Health& health;
    Counters& counters;
    Clock& clock;
    const LiveOptions& options;
    const std::atomic<uint64_t>& next_number;  // of an object
  };
  // The state that a start found.
  struct Found {
    uint64_t checkpoint_bytes = 0, journal_files = 1;
    uint64_t older_journals_bytes = 0;  // of earlier epochs, until a checkpoint takes their place
    // This start read bodies to decide which records to trust. After some of those bodies are removed, the same journals must not be judged
    // again: so a checkpoint is written before any space is given back.
    bool judged_tail = false;
  };
  Checkpointer(Parts parts, const Found& found) : parts_(std::move(parts)), found_(found) {}

  // Closes the packs being written because descriptors are scarce (Extents::limit_made()). Writes no mark (synced record): that takes
  // longer.
  void sync_if_asked();
  // Syncs the data, then the journal, then writes and syncs a record that states it.
  Status sync_point();
  // Makes a sync point, commits the index, gives dead space back as far as `amount` allows, and writes a checkpoint if one is due.
  Status index_point(const Reclaimer::Amount& amount = {});
  // Writes a copy of everything live, from the index as just committed; then removes the journals before it.
  Status write_checkpoint();
  // Checks whether others removed, replaced or cut the journal file. If so, the journal goes on in a new file at once, and a checkpoint
  // replaces everything before that at the next index point, which is then due.
  void look_for_journal();
  bool wants_checkpoint() const { return wants_checkpoint_ || rotted_; }
  void want_checkpoint() { wants_checkpoint_ = true; }  // by the next index point. Call on the keeper's thread, or before it runs
  // As want_checkpoint(), for rotted journals or a rotted checkpoint while the index has all their content: dead space is still given back.
  // Any thread.
  void replace_rotted() { rotted_ = true; }
  // Replaces journals and a checkpoint that are mostly outdated by a smaller checkpoint, to gain room. Returns true if it did.
  bool checkpoint_for_room();
  // Rewrites the index without its unused pages. Done only if the index lies on the volume, at least half of it and a given part of the
  // capacity are unused, and there is room for both files. Returns true if the index is smaller now.
  bool shrink_index();

  // Tells RecordSpace how much the journals with their reserve, the checkpoint and the index take. Looks at one file only: the index,
  // wherever it lies.
  void measure_overhead();
  uint64_t measure_epochs() const;
  bool judged_tail() const { return found_.judged_tail; }
  bool reclaim_was_cut_short() const { return reclaim_cut_short_; }  // the time limit ended it: the next call continues
  uint64_t journal_files() const { return found_.journal_files; }
  // Tells this class that the volume has other nodes: they are told of checkpoints, journals stay until peers have read them, and dead
  // places stay while peers may read there. Call before the first index point. `running`: the clock by which peers are waited for.
  void follow_peers(PeerFollower& peers, const Clock& running);
  bool holds_for_peers(const FreedPlace& freed) { return holds_ && holds_->holds(freed); }
  // Dead bytes that were held for peers at the last reclaim. Any thread.
  uint64_t held_for_peers_bytes() const { return held_for_peers_bytes_; }
  // The same for leftovers of earlier runs, which DeadSpace does not know. Any thread.
  uint64_t held_of_earlier_lives_bytes() const { return held_of_earlier_lives_bytes_; }
  // The part of both that comes back once the peers have followed, without places that a peer is reading.
  uint64_t awaited_from_peers_bytes();
  // True if leftovers of earlier runs are held for peers (OrphanSweep then does nothing). The thread that commits the index. May block on
  // the volume.
  bool holds_earlier_lives() { return earlier_lives() != PeerHolds::Earlier::kFree; }
  PeerHolds* holds() { return holds_ ? &*holds_ : nullptr; }
  // Call before a commit of the index, behind a sync point. As OrphanNotes::note_leftovers().
  void note_leftovers(std::span<const FreedPlace> taken, bool ends = false);
  // Removes the journals before a checkpoint that peers have read by now; all of them if a call waits for room.
  void remove_kept_journals(bool room_is_wanted);
  // The unmount has begun: from now on places of open and lingering objects are given back as well.
  void end_reading() { nobody_reads_ = true; }
  bool nobody_reads() const { return nobody_reads_; }

 private:
  PeerHolds::Earlier earlier_lives();
  void sync_ahead();
  void reclaim(std::vector<FreedPlace> dead, const Reclaimer::Amount& amount);
  uint64_t least_checkpoint_bytes() const;
  Status remove_before_checkpoint();
  Status rotate_journal(bool lost = false);
  JournalPosition followed_by_peers(JournalPosition covers, uint64_t bytes, int64_t since_ns) const;
  uint64_t bytes_of_journals_before_this() const;
  std::string index_file() const { return parts_.index_directory + "/data.mdb"; }
  bool index_is_elsewhere() const { return !parts_.index_directory.starts_with(parts_.volume->root() + "/"); }  // not on the volume

  const Parts parts_;
  int64_t shrunk_ns_ = INT64_MIN / 2;  // when shrink_index() was last tried
  Found found_;
  PeerFollower* peers_ = nullptr;  // null: this volume has one node
  std::optional<PeerHolds> holds_;  // set together with peers_
  struct KeptJournals {  // journals that peers have not read yet
    CheckpointInfo checkpoint;  // the checkpoint that covers them
    uint64_t bytes = 0;         // at most
    int64_t since_ns = 0, tried_ns = 0;
  };
  std::optional<KeptJournals> kept_journals_;
  std::atomic<uint64_t> held_for_peers_bytes_{0}, held_of_earlier_lives_bytes_{0};
  std::optional<CheckpointInfo> to_clear_;  // a finished checkpoint; the files that it covers are not removed yet
  uint64_t next_seq_ = 0;
  bool wants_checkpoint_ = false;
  std::atomic<bool> rotted_{false};
  std::optional<uint64_t> told_lost_seq_;  // the journal file that look_for_journal() logged last
  std::optional<uint64_t> epochs_bytes_;  // null: to be measured; only removals change it
  bool reclaim_cut_short_ = false;
  std::atomic<bool> nobody_reads_{false};
};

}  // namespace kvcachefs

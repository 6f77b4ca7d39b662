// Sync points, index points and checkpoints: when what was accepted is safe, when the index follows, and what may be given back then
// (invariants 3, 4 and 6 of the store).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
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

// The thread that commits the index alone (the keeper's; at the end that of close()), but for nobody_reads(). No lock held. Blocks on
// the volume.
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
  // What a start found.
  struct Found {
    uint64_t checkpoint_bytes = 0, journal_files = 1;
    uint64_t older_journals_bytes = 0;  // of earlier epochs, until a checkpoint takes their place
    // Bodies were read at this start to tell which to trust. The journals that named them must not be judged again once some are gone
    // for good: a checkpoint comes before anything is given back.
    bool judged_tail = false;
  };
  Checkpointer(Parts parts, const Found& found) : parts_(std::move(parts)), found_(found) {}

  // Closes what is written, for descriptors are few (Extents::limit_made()): without a mark, which takes longer.
  void sync_if_asked();
  // Data, then the journal, then a record that says so.
  Status sync_point();
  // A sync point, the index committed, what is dead given back as far as `amount` says, and a checkpoint where one is due.
  Status index_point(const Reclaimer::Amount& amount = {});
  // A copy of everything live, from the index as it was just committed; then the journals before it go.
  Status write_checkpoint();
  // A file of the journal that others removed, replaced or cut: it goes on in a new one at once, and a checkpoint takes the place of all before that with the
  // next index point, which is due.
  void look_for_journal();
  bool wants_checkpoint() const { return wants_checkpoint_ || rotted_; }
  void want_checkpoint() { wants_checkpoint_ = true; }  // by the next index point. The keeper's thread, or before it runs
  // The same where journals or checkpoint have rotted, and the index has all that they said: what is dead is given back all the same. Any thread.
  void replace_rotted() { rotted_ = true; }
  // Journals and a checkpoint of which most is gone are room, too. True if they were replaced by a smaller checkpoint.
  bool checkpoint_for_room();
  // Writes the index anew without what is unused of it, where it lies on the volume, at least half of it and a part of the capacity are unused,
  // and there is room for both files. True if it is smaller now.
  bool shrink_index();

  // Tells RecordSpace what journals with their reserve, checkpoint and index take, without a look at the volume but one: at the index,
  // wherever that is.
  void measure_overhead();
  uint64_t measure_epochs() const;
  bool judged_tail() const { return found_.judged_tail; }
  bool reclaim_was_cut_short() const { return reclaim_cut_short_; }  // by the time it takes: the next one goes on
  uint64_t journal_files() const { return found_.journal_files; }
  // The volume has other nodes: they hear of checkpoints, journals stay until they have read them, and places while they may read there.
  // Before the first index point.
  void follow_peers(PeerFollower& peers);
  bool holds_for_peers(const FreedPlace& freed) { return holds_ && holds_->holds(freed); }
  // What was dead and held for them when it was asked last. Any thread.
  uint64_t held_for_peers_bytes() const { return held_for_peers_bytes_; }
  // The same of what earlier lives left, which DeadSpace does not know. Any thread.
  uint64_t held_of_earlier_lives_bytes() const { return held_of_earlier_lives_bytes_; }
  // Of both what comes back once they have followed: without what is read there.
  uint64_t awaited_from_peers_bytes();
  // What earlier lives left is held for them (OrphanSweep does nothing). The thread that commits the index. May block on the volume.
  bool holds_earlier_lives() { return earlier_lives() != PeerHolds::Earlier::kFree; }
  PeerHolds* holds() { return holds_ ? &*holds_ : nullptr; }
  // Those of the journals that a checkpoint covers which peers have read by now; all, where a call waits for room.
  void remove_kept_journals(bool room_is_wanted);
  // The end has begun: what is open or lingers is given back as well.
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
  int64_t shrunk_ns_ = INT64_MIN / 2;  // shrink_index() was tried then
  Found found_;
  PeerFollower* peers_ = nullptr;  // null: this volume has one node
  std::optional<PeerHolds> holds_;  // with it
  struct KeptJournals {  // that peers have not read yet
    CheckpointInfo checkpoint;  // which covers them
    uint64_t bytes = 0;         // at most
    int64_t since_ns = 0, tried_ns = 0;
  };
  std::optional<KeptJournals> kept_journals_;
  std::atomic<uint64_t> held_for_peers_bytes_{0}, held_of_earlier_lives_bytes_{0};
  std::optional<CheckpointInfo> to_clear_;  // finished, but what it covers was not removed yet
  uint64_t next_seq_ = 0;
  bool wants_checkpoint_ = false;
  std::atomic<bool> rotted_{false};
  std::optional<uint64_t> told_lost_seq_;  // the journal file that look_for_journal() logged last
  std::optional<uint64_t> epochs_bytes_;  // null: to be measured; only removals change it
  bool reclaim_cut_short_ = false;
  std::atomic<bool> nobody_reads_{false};
};

}  // namespace kvcachefs

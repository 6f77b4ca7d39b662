// Space that journals, checkpoints and the index take on the volume, and will take for changes of names and attributes that
// were accepted and are not written yet. Such changes reserve nothing one by one; this bounds them together: their bytes on the volume
// (invariant 8; the less the smaller the capacity) and in RAM (invariant 10). Beyond the bounds calls wait here, without holding a thread or a lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "store/base/mutex.h"
#include "store/base/units.h"
#include "store/space/space.h"

namespace kvcachefs {

// Bytes of one object's extended attributes that are in RAM alone, until the journal has them or the object is gone. Not thread-safe.
class UnjournaledXattrs {
 public:
  UnjournaledXattrs() = default;
  UnjournaledXattrs(const UnjournaledXattrs&) = delete;
  UnjournaledXattrs& operator=(const UnjournaledXattrs&) = delete;
  ~UnjournaledXattrs() { journaled(); }
  void journaled() {
    if (sum_) sum_->fetch_sub(std::exchange(bytes_, 0), std::memory_order_relaxed);
  }

 private:
  friend class RecordSpace;
  std::shared_ptr<std::atomic<uint64_t>> sum_;  // of all objects
  uint64_t bytes_ = 0;
};

// Thread-safe.
class RecordSpace {
 public:
  // Bound for extended attributes of all objects while they are in RAM alone. Separate from accept(), for those of a file that is open
  // and was never flushed are in no record before its body is: no call can wait for that.
  static constexpr uint64_t kMostXattrBytes = 64 * kMiB;

  RecordSpace(Space& space, uint64_t memory_bytes);

  struct Measured {
    uint64_t journal_bytes = 0;     // of all journals
    uint64_t appended_bytes = 0;    // appended to journals of this life by then; bytes appended later are added
    uint64_t checkpoint_bytes = 0;  // of the newest
    uint64_t index_bytes = 0;
    uint64_t index_unused_bytes = 0;  // the part of that in which rows can be written, for others were removed
    uint64_t files_bytes = 0;  // about what the index takes for files without attributes: rows, names and inline bodies
    uint64_t bodiless_bytes = 0;  // the part of that for what has no body and cannot be evicted, and for directories
    bool index_is_elsewhere = false;  // not on the volume, where it takes nothing then
    uint64_t reserve_bytes = 0;       // kept for the journal
  };
  void measured(const Measured& measured);
  // The bytes that the indexes of other nodes, kept by this node, take on the volume, and those that they may take more once all that was read of
  // the others is in them. Any thread; counted apart, for they grow while nothing is stored here. `kept`: as in Space::set_overhead().
  void set_peers(uint64_t bytes, uint64_t ahead_bytes, bool kept = false);

  // Each commit of the index writes a row of about so many bytes anew (OrphanNotes::note_leftovers()).
  void set_notes(uint64_t bytes);

  // A change that takes about so many bytes of journal was accepted. Never refuses.
  void accept(uint64_t bytes);
  // The committer takes all accepted bytes, and calls settle() with them afterwards.
  uint64_t take();
  void settle(uint64_t taken, bool journaled);
  // A batch of `bytes` is in the overlay of the index, and in the journal; in this life `appended_bytes` were appended to journals so far.
  void appended(uint64_t appended_bytes, uint64_t bytes, uint64_t records);
  // Reserves bytes that were accepted for the record of a new file, which is made when its body comes. Calls do not wait for these bytes: the
  // file may be open for days. body_came() ends it, also if the file was removed instead.
  void await_body(uint64_t bytes);
  void body_came(uint64_t bytes);
  // The attributes of an object now take `bytes`, and are not journaled yet. The object is locked.
  void keep_xattrs(UnjournaledXattrs& of, uint64_t bytes);
  // True if the index, with what is on its way there and beside files, takes this part of the capacity; the checkpoint and the next one may take as much each. From
  // then on extended attributes do not grow: otherwise those of a few directories, which are not evicted, could displace all chunks.
  bool index_has_its_part() const { return index_has_its_part_.load(std::memory_order_relaxed); }
  static constexpr uint64_t kIndexPart = 8;
  // True if directories, links and other names without a body take that part, as last measured. From then on no more are made, for the same reason.
  bool bodiless_have_their_part() const { return bodiless_have_their_part_.load(std::memory_order_relaxed); }
  // True if a change would be refused for such a part, and a commit of the index could show that there is room: rows shrank (note_shrunk()) since the
  // last one, or the part is only reached by what was accepted since and is estimated.
  bool is_to_be_measured(Growth growth) const;
  // Wants a commit of the index that begins from now on, with measured() after it. measurings() then returns at least the result.
  uint64_t want_measured();
  bool is_wanted_measured() const;
  uint64_t measurings() const;
  // Rows of the index were made smaller or removed: of names without a body, or with extended attributes. Not for evictions: each would be a reason
  // for a commit that shows no more room for names without a body.
  void note_shrunk() { shrunk_.fetch_add(1); }
  bool has_room_for_xattrs(uint64_t bytes) const { return xattr_bytes_->load(std::memory_order_relaxed) + bytes <= kMostXattrBytes; }
  // Runs `retry` soon: when something was written, or a second later.
  void retry_soon(std::move_only_function<void()> retry);
  std::vector<std::move_only_function<void()>> take_retries();
  // Call before and after a commit of the index, which empties the overlay of what was in it when the commit began.
  void index_commit_begins();
  void index_committed();

  // The size of all journals at which a checkpoint replaces them. It counts as used from the beginning, so that removals, which
  // free nothing before they are journaled, never lack room.
  uint64_t most_journal_bytes() const;
  bool wants_checkpoint() const;
  bool wants_index_commit() const;

  // So much is accepted or waits for the index that further changes should wait.
  bool crowded() const { return crowded_.load(std::memory_order_relaxed); }
  // So much more that calls which give room back should wait, too.
  bool overcrowded() const;
  uint64_t accepted_bytes() const;
  // Runs `retry` once something was written after this call; never before this returns. The caller then checks crowded() again.
  void wait(std::move_only_function<void()> retry);
  // The calls to be run now; with `all`, even if nothing was written.
  std::vector<std::move_only_function<void()>> take_waiting(bool all = false);

 private:
  uint64_t most_journal() const;  // mutex_ held, here and below
  uint64_t most_accepted() const;
  uint64_t most_overlay() const;
  bool is_crowded(uint64_t times) const;
  uint64_t index_part() const;
  uint64_t used_index_bytes() const;
  void tell();

  Space& space_;
  const uint64_t most_accepted_bytes_, most_overlay_bytes_;
  mutable Mutex<LockRank::kPartOfSpace> mutex_;  // a leaf, but for the mutex of Space
  Measured measured_;
  uint64_t accepted_bytes_ = 0;  // and not taken yet
  uint64_t taken_bytes_ = 0;     // and not settled yet
  uint64_t awaiting_body_bytes_ = 0;
  uint64_t overlay_bytes_ = 0, overlay_records_ = 0;
  uint64_t notes_bytes_ = 0;  // of the row that each commit of the index writes anew
  uint64_t peers_bytes_ = 0, peers_ahead_bytes_ = 0;
  bool peers_ahead_is_kept_ = false;
  uint64_t committing_bytes_ = 0, committing_records_ = 0;
  bool written_ = false;  // since the first waiting call began to wait
  std::vector<std::move_only_function<void()>> waiting_, retries_;
  std::atomic<uint64_t> shrunk_{0};
  // Commits of the index, counted as they begin: the last one; the last that succeeded; that before measured(); the one that is wanted.
  uint64_t commits_begun_ = 0, committed_ = 0, measured_after_ = 0, wanted_after_ = 0;
  uint64_t begun_shrunk_ = 0, committed_shrunk_ = 0, measured_shrunk_ = 0;  // shrunk_ as the last one began, the last that succeeded, and that before measured()
  bool index_is_estimated_ = false;  // committed since it was measured
  std::atomic<bool> crowded_{false}, index_has_its_part_{false}, bodiless_have_their_part_{false};
  const std::shared_ptr<std::atomic<uint64_t>> xattr_bytes_ = std::make_shared<std::atomic<uint64_t>>(0);
};

}  // namespace kvcachefs

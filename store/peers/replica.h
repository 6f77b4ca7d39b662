// One peer as this node knows it: its index, made from its newest checkpoint and kept up with its journal, in a directory of its own on
// this machine. Reads the peer's files, and writes nothing on the volume.
//
// One thread at a time calls the non-const members; load(), poll(), commit() and forget() block on the volume and on that directory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/records.h"
#include "store/base/result.h"
#include "store/index/index.h"
#include "store/journal/journal.h"
#include "store/peers/head_file.h"
#include "store/peers/journal_tail.h"
#include "store/peers/part.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// What is known of a peer from outside its journals.
struct Outlook {
  uint32_t epoch = 0;  // its highest
  std::optional<JournalPosition> written;    // how far the peer says that it has written
  std::optional<HeadCheckpoint> checkpoint;  // its newest, if it tells of one
};

class Replica {
 public:
  struct Setup {
    std::shared_ptr<Volume> volume;
    FileIdentity identity;  // of the peer; the epoch does not matter
    std::string directory;  // for its indexes and nothing else
    uint32_t ordinal = 0;
    std::function<void()> let_go_wanted = {};  // call let_go_of_mapped() soon; see Index. May be empty
  };
  // Runs `work`, which applies the batch, while nobody reads the part, and calls NameView::change() within it.
  using Change = std::function<Status(const PeerBatch& batch, const std::function<Status()>& work)>;
  // Whether this node has read the journals of `node` up to `position`; true for itself, and for a node that is not there.
  using HasRead = std::function<bool(const std::string& node, JournalPosition position)>;
  using LookOut = std::function<Outlook()>;  // the outlook as it is now
  struct Loading {
    HasRead has_read = {};
    // Called often during a load, which can take minutes, to do what must not wait so long; must not use this replica. An error ends the load.
    std::function<Status()> meanwhile = [] { return Status(); };
    std::function<void(const Batch&)> applied = {};  // called with each batch of the epoch being written now; may be empty
  };

  enum class State : uint8_t {
    kLoading,     // there is nothing to read yet
    kLive,        // read as far as the last poll went
    kHeld,        // what was read is served; reading goes on once the peer makes a checkpoint
    kUnreadable,  // an error of the volume, of this machine's disk, or another format version; tried again
  };

  explicit Replica(Setup setup);
  ~Replica();

  // Whether load() should be called: there is no index yet, or it does not count any more.
  bool wants_load() const { return wants_load_; }
  // Opens the index that an earlier life left, or makes a new one beside the one that is served. Then applies what its epoch has so far, or
  // the index would name what the peer gave up since. Afterwards part() is a new part, which has to go into the view before the next
  // poll(). The outlook's epoch must not be 0.
  Status load(const LookOut& look_out, Loading loading);
  // Whether the peer has said that its next checkpoint is needed: its daemon makes that within seconds.
  bool awaits_checkpoint() const { return waits_; }
  // About the bytes that a load takes on this machine beside what is there; 0: not known before it is read, or no load is wanted.
  uint64_t load_bytes() const { return wants_load_ ? load_bytes_ : 0; }
  uint64_t measure_load();  // measures that anew: the peer goes on writing
  // Call before load() if there is no room for two indexes: gives up the served one. It is removed once nobody reads it; until then the load waits.
  void let_go();
  bool is_let_go();  // let_go() was called, and the index is not removed yet

  struct Polled {
    uint64_t batches = 0;
    bool more = false;   // there may be more to read at once
    std::string waits_for;  // node whose journal is not read up to what the next batch answers; empty: none
  };
  // Applies what is new, a batch at a time; nothing while wants_load(). An answer waits, for at most 2 s, until the statement that it answers was
  // read: else a name that one node replaced, and the other then took away, would be absent in between. If that wait fails, no answer waits for the
  // next 10 s. state() tells errors as well; the next call tries again.
  Result<Polled> poll(const Outlook& outlook, int64_t now_ns, const Change& change, const HasRead& has_read);

  // Makes durable on this machine what was applied. A failure loses nothing.
  Status commit();
  bool is_uncommitted() const { return index_ != nullptr && applied_since_ns_.has_value(); }
  uint64_t uncommitted_rows() const { return is_uncommitted() ? index_->overlay_rows() : 0; }
  bool is_commit_due(int64_t now_ns);  // much is uncommitted, or it has been for long
  // About the bytes that the next commit may add to the files on this machine; errs upwards.
  uint64_t growth_bytes();
  // Committed bytes of the index's file that hold nothing. Later commits reuse them; give_back_unused() frees them, where possible, by writing the file anew.
  uint64_t unused_bytes() const { return index_ == nullptr ? 0 : index_->unused_bytes(); }
  bool give_back_unused();
  void let_go_of_mapped() const {
    if (index_ != nullptr) index_->let_go_of_mapped();
  }
  // Removes a directory of indexes that no replica uses. Leaves anything else in it alone; the directory then stays.
  static Status remove(const std::string& directory);

  // Drops the peer's statements about `node` up to `answered`: they are answered, and every reader knows it. `alone` runs a short step while nobody
  // reads the part; it is not called if there are no such statements.
  using Alone = std::function<Status(const std::function<Status()>& work)>;
  Status forget(std::string_view node, JournalPosition answered, const Alone& alone);

  // Null pointers: there is nothing yet.
  Part part() const { return {setup_.ordinal, setup_.identity.node, index_, statements_, quarantined_}; }

  State state() const { return state_; }
  const std::string& reason() const { return reason_; }  // for the last two states
  JournalPosition position() const { return position_; }  // everything before it is applied
  Stamp stamp() const { return index_ ? index_->stamp() : Stamp{}; }
  uint64_t objects() const { return index_ ? index_->totals().objects : 0; }
  // A lower bound: bytes in files that were not read yet are not known.
  uint64_t bytes_behind(const Outlook& outlook) const;
  uint64_t reloads() const { return reloads_; }
  uint64_t records_left_out() const { return records_left_out_; }

 private:
  static constexpr uint64_t kMostRows = 50'000;  // of uncommitted rows
  using IndexPtr = std::shared_ptr<Index>;
  // An index filled with all epochs before the highest one.
  struct Filled {
    uint64_t generation = 0;
    IndexPtr index;
    JournalPosition position;
    std::optional<HeadCheckpoint> checkpoint;
    bool waits = false;  // for a checkpoint: what comes next does not continue from `position`
    std::shared_ptr<QuarantinedIds> quarantined = {};
    bool has_checkpoint_of(uint32_t epoch) const { return checkpoint && checkpoint->epoch >= epoch; }
  };
  using ApplyBatch = std::function<Status(const Batch&, JournalPosition after)>;
  using ApplyTo = std::function<ApplyBatch(Index&)>;
  Status load_anew(const LookOut& look_out);
  Result<Filled> find_or_fill(uint32_t epoch);
  Result<std::optional<Filled>> open_left(uint64_t generation);
  Result<Filled> fill(uint64_t generation, const ApplyTo& apply_to, uint32_t epoch);
  Status load_checkpoint(Filled& filled);
  // Applies what follows `position` in the epochs before `before_epoch`. True: it stopped where the peer's next checkpoint is needed.
  Result<bool> catch_up(JournalPosition& position, uint32_t before_epoch, const ApplyBatch& apply);
  Result<bool> goes_on_from(JournalPosition position) const;
  Result<bool> is_begun(uint32_t epoch) const;
  Result<bool> follow_unshown(JournalTail& tail, const Filled& filled, Statements& statements, const Outlook& outlook);
  Status enter_epoch(uint32_t epoch, const Change& change);
  Result<Polled> follow(const Outlook& outlook, int64_t now_ns, const Change& change, const HasRead& has_read);
  std::string comes_too_early_for(const Batch& batch, int64_t now_ns, const HasRead& has_read);
  Status apply(const Batch& batch, JournalPosition after, const Change& change);
  Batch possible(const Batch& batch, uint32_t epoch);
  Result<PeerBatch> compared(const Batch& batch, JournalPosition after) const;
  bool knows_checkpoint_of(uint32_t epoch) const { return checkpoint_ && checkpoint_->epoch >= epoch; }
  void reload(std::string why);
  uint64_t bytes_to_load() const;
  void hold(std::string why);
  JournalTail tail_from(JournalPosition position) const;
  void follow_with(JournalTail tail);
  Result<IndexPtr> open_index(uint64_t generation, Index::Found& found) const;
  std::string path_of(uint64_t generation) const;
  void remove_retired();

  const Setup setup_;
  IndexPtr index_;
  std::shared_ptr<QuarantinedIds> quarantined_;
  std::shared_ptr<Statements> statements_;
  uint64_t generation_ = 0;  // of index_
  std::optional<JournalTail> tail_;
  JournalPosition position_;
  JournalPosition before_epoch_;  // how far the epochs before the one followed were applied
  std::optional<HeadCheckpoint> checkpoint_;  // the one that index_ began with
  State state_ = State::kLoading;
  std::string reason_;
  bool wants_load_ = true;
  uint64_t load_bytes_ = 0;
  bool begun_ = false;  // the journal of the epoch followed has a file
  bool waits_ = false;  // for a checkpoint beyond position_; nothing is read until then
  std::optional<int64_t> early_since_ns_;  // since when the next batch answers something not read yet
  std::optional<int64_t> impatient_ns_;    // when a wait for that ran out
  std::vector<std::pair<std::weak_ptr<Index>, uint64_t>> retired_;  // removed once nobody reads them
  std::optional<int64_t> applied_since_ns_;                         // since when there is something uncommitted
  std::optional<uint64_t> growth_bytes_;                            // of the uncommitted rows; nullopt: not computed since more was applied
  uint64_t reloads_ = 0, records_left_out_ = 0;
  Loading loading_;  // the load under way
};

}  // namespace kvcachefs

// What waits to be journaled, turned into batches: which bodies, attributes and names go, in which order, and which wait for others.
#pragma once

#include <cstdint>
#include <vector>

#include "store/base/clock.h"
#include "store/chain/access_tracker.h"
#include "store/commit/commit.h"
#include "store/commit/unsaved_read_times.h"
#include "store/index/index.h"
#include "store/object/body_changes.h"
#include "store/object/dirty_queue.h"
#include "store/space/dead_space.h"
#include "store/space/record_space.h"
#include "store/space/space.h"
#include "store/tree/tree.h"

namespace kvcachefs {

// No state of its own; used by one thread at a time, the committer. Its calls take the lock of the Tree, and under it those of
// objects, one at a time. None does I/O but index reads.
class BatchBuilder {
 public:
  struct Parts {
    Tree& tree;
    Index& index;
    AccessTracker& accesses;
    DirtyQueue& dirty;
    BodyChanges& changes;
    Space& space;
    RecordSpace& records;
    DeadSpace& dead;
    HybridClock& stamps;
    UnsavedReadTimes& read_times;
  };
  explicit BatchBuilder(Parts parts) : parts_(parts) {}

  // What is known of the successors of the bodies in this commit; first.
  void take_rows(Commit& commit);
  // Objects that the index knows and no name refers to any more; before the first batch.
  void take_nameless(Commit& commit);
  // Makes the next batch; false if nothing is left.
  bool build(Commit& commit);
  // The journal takes nothing: all that the commit has, in a batch or not, waits again, and bodies are sealed anew.
  void give_up(Commit& commit);
  // How often a name was looked at so far, for tests: some times for each that waits, whatever they wait for.
  uint64_t looks() const { return looks_; }

 private:
  // What a batch says of a dirty name.
  enum class NameChange : uint8_t { kGiven, kTaken, kWaits, kWaitsForOther, kNone };  // waits: for the body of its child

  void take_waiting(Tree::Write& tree, Commit& commit);
  void take_dispossessed(Tree::Write& tree, Commit& commit);
  std::optional<uint64_t> bytes_of_names(Tree::Write& tree, const Commit& commit) const;
  void choose_shares(Tree::Write& tree, Commit& commit);
  void drop_body(Tree::Write& tree, SealedBody& sealed);
  void add_bodies(Tree::Write& tree, Commit& commit);
  void add_attributes(const Tree::View&, Commit& commit);  // reads nlink
  void add_names(Tree::Write& tree, Commit& commit);
  bool add_statements(const Tree::View& tree, Commit& commit, const DirtyName& name, const NameState& state);
  void keep_answers(Commit& commit);
  void add_rows(const Tree::View& tree, Commit& commit);
  bool is_known(const Tree::View& tree, const Commit& commit, ObjectId id) const;
  bool would_be_nameless(const Tree::View& tree, const Commit& commit, ObjectId id) const;
  NameChange change_of(const Tree::View& tree, const Commit& commit, ObjectId parent, const NameState& state, ObjectId* named) const;

  const Parts parts_;
  mutable uint64_t looks_ = 0;
  std::vector<Record> answers_for_later_;  // names that they speak of could not be journaled yet. Of the committer's thread
};

}  // namespace kvcachefs

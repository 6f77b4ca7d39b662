// Turns pending changes into batches: decides which bodies, attributes and names are journaled, in which order, and which wait for others.
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

// Used by one thread at a time, the committer. Calls take the Tree's lock, and under it those of objects, one at a time. None does I/O,
// except index reads.
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

  // Takes the known successors of the bodies in this commit; call first.
  void take_rows(Commit& commit);
  // Takes the objects in the index that no name refers to any more; call before the first batch.
  void take_nameless(Commit& commit);
  // Makes the next batch; returns false if nothing is left.
  bool build(Commit& commit);
  // Call if the journal takes nothing: everything in the commit, in a batch or not, waits again, and bodies are sealed again.
  void give_up(Commit& commit);
  // How often names were looked at so far, for tests: a few times for each pending name, whatever it waits for.
  uint64_t looks() const { return looks_; }

 private:
  // How a batch changes a dirty name.
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
  std::vector<Record> answers_for_later_;  // they answer statements about names that could not be journaled yet. Used by the committer's thread
};

}  // namespace kvcachefs

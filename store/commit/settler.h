// Updates the state in RAM after a batch is in the journal: its bodies, attributes and names become durable, and space is counted.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "store/cache/body_cache.h"
#include "store/commit/commit.h"
#include "store/commit/record_waiters.h"
#include "store/commit/unmarked_bodies.h"
#include "store/index/index.h"
#include "store/object/body_changes.h"
#include "store/object/dirty_queue.h"
#include "store/space/dead_space.h"
#include "store/space/discards.h"
#include "store/space/record_space.h"
#include "store/space/space.h"
#include "store/tree/tree.h"

namespace kvcachefs {

// Used by one thread at a time, the committer.
class Settler {
 public:
  struct Parts {
    Tree& tree;
    Index& index;
    BodyCache& cache;
    DirtyQueue& dirty;
    BodyChanges& changes;
    Space& space;
    RecordSpace& records;
    RecordWaiters& record_waiters;
    DeadSpace& dead;
    Discards& discards;
    UnmarkedBodies& unmarked;
    std::function<void(ObjectId, uint64_t size_bytes)> sealed;  // called for each body, with the Tree and the object locked
  };
  explicit Settler(Parts parts) : parts_(std::move(parts)) {}

  // Call when the batch is in the journal, and in the index unless that could not take it (it is then rebuilt). `freed`: places that no
  // record names any more. Call with no lock held; takes the Tree's, and lets other threads in between steps: names and objects that are
  // not settled yet are answered from RAM as before.
  void settle(Commit& commit, std::span<const FreedPlace> freed);

 private:
  void count(const Commit& commit, std::span<const FreedPlace> freed);
  static void end_replacing(const Tree::View& tree, const ObjectPtr& object);
  void note_unmarked(const Object& object);
  void settle_raw(Object& object, const Place& unjournaled);
  void settle_body(Tree::Write& tree, SealedBody& sealed);
  void settle_attributes(const ObjectPtr& object, uint64_t version);
  void lost_record(Tree::Write&, const ObjectPtr& object);
  void settle_name(Tree::Write& tree, const DirtyName& name, ObjectId durable, std::vector<ObjectPtr>& touched);
  void settle_former(Tree::Write& tree, ObjectId before, std::vector<ObjectPtr>& touched);

  const Parts parts_;
};

}  // namespace kvcachefs

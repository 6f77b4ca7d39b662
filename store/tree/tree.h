// What names mean, and to which caller: the names that clients see, the table of objects in RAM, versions of temporary names, and
// objects that can still be opened though they have no name. One lock guards all of it, for a rename changes all of it in one step. It is
// taken as a Tree::Read (shared) or a Tree::Write (exclusive), whose methods are the operations under it; a Write can do all that a
// Read can. Objects are locked, one at a time, after it. No I/O but index reads, which touch mapped memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "store/api/request_types.h"
#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/base/records.h"
#include "store/chain/access_tracker.h"
#include "store/index/index.h"
#include "store/memory/pool.h"
#include "store/object/dirty_queue.h"
#include "store/object/object.h"
#include "store/peers/directory_classes.h"
#include "store/peers/removal.h"
#include "store/peers/view.h"
#include "store/space/discards.h"
#include "store/space/record_space.h"
#include "store/space/space.h"
#include "store/tree/given_up_objects.h"
#include "store/tree/lost_versions.h"
#include "store/tree/namespace.h"
#include "store/tree/peer_leases.h"
#include "store/tree/recent_changes.h"
#include "store/tree/stale_opens.h"
#include "store/tree/temporary_names.h"
#include "store/tree/tree_times.h"
#include "store/tree/unlinked_queue.h"

namespace kvcachefs {

class Tree {
 public:
  struct Parts {
    Index& index;
    const Clock& clock;
    AccessTracker& accesses;
    Space& space;
    RecordSpace& records;
    Discards& discards;
    DirtyQueue& dirty;
    const MemoryPool& pool;
    bool lingers = true;  // the caller calls end_lingering(); if false nothing lingers, for nobody would end it
    std::string node{};   // this node's name
    bool shared = false;  // the volume may have other nodes
    PeerLeases* leases = nullptr;  // null: no leases are given
  };
  explicit Tree(Parts parts)
      : parts_(std::move(parts)), view_({0, parts_.node, {std::shared_ptr<const Index>(), &parts_.index}, statements_}, classes_, parts_.shared), names_(parts_.index, view_) {
    view_.tell_own_names([this](ObjectId directory, const NameEntry& entry) -> Result<bool> {
      KVC_ASSIGN(const ObjectId now, names_.own_child(directory, entry.name));
      return now == entry.child;
    });
  }

  class View;
  class Read;
  class Write;
  class ForgetAfter;
  struct Kept;
  Read read() const;
  Write write();
  std::optional<Write> try_write();

  // These take the lock themselves.
  ObjectPtr find(ObjectId id) const;              // from the table, else null
  Result<ObjectPtr> get(ObjectId id);             // from the table, or from the index and then added to the table
  Result<Kept> get_kept(ObjectId id);             // for a change: the table keeps it as long as the result is held
  // Changes the attributes of an object that was removed, and that a client may still have open (a directory, for instance). nullopt: not known.
  std::optional<Stat> change_removed(ObjectId id, const std::function<void(Stat& stat)>& change);
  std::shared_ptr<void> keep_for_call(ObjectId id);  // not evicted until the result goes: a call to it waits. Null if it is gone. Takes the lock at both ends
  void forget_when_idle(const ObjectPtr& object);
  // Whether forget_when_idle() would keep the object. Ask this first: it takes the lock shared, so that closing a resident chunk does not
  // take it exclusively.
  bool stays_in_ram(Object& object) const;
  // Whether the process of the caller will be asked for when it looks the name up, renames or removes it: several files are written under the name. If
  // others change the name between this and that call, process_of() has to find the process then.
  bool asks_for_process(ObjectId parent, std::string_view name) const;
  bool has_versions() const { return has_versions_.load(std::memory_order_relaxed); }  // whether any name has versions; no lock
  bool adopted_lost_names() { return adopted_lost_names_.exchange(false); }  // since the last call; then drop_left_directories() may find something
  // Whether any object, of whichever node, may be in quarantine; no lock.
  bool has_quarantined() const { return quarantined_count_.load(std::memory_order_relaxed) > 0 || peers_quarantine_.load(std::memory_order_relaxed); }
  TemporaryNames& temporary_names() { return temporary_names_; }
  void clear();  // at the end: drops what is left in RAM
  // --- peers (tree_peers.cc); these take the lock exclusively
  Status load_statements();  // loads those that the index has; at the start
  std::shared_ptr<const Statements> statements() const { return statements_; }  // this node's; read and changed under the lock
  NameView& view() { return view_; }  // for code that changes the parts of peers, while it holds the lock exclusively
  // `work` applies a batch of this node's journal to its index: a batch with statements about peers' objects, or answers to peers.
  Status change_own(const Batch& batch, JournalPosition after, const std::function<Status()>& work);
  // Forgets this node's statements about the peer's objects up to `answered`: all nodes have read the answer. Call on one thread.
  Status forget_statements(const std::string& peer, JournalPosition answered);

 private:
  struct Lingering {
    ObjectPtr object;
    int64_t until_ns = 0;  // monotonic
    uint64_t bytes = 0;
  };

  // Whether a file of this node that will be renamed may have lost its name to a peer's file, and not be in lost_; no lock.
  bool may_hide() const { return parts_.clock.monotonic_ns() < may_hide_until_ns_.load(std::memory_order_relaxed); }
  void note_may_hide();
  // Shows an adopted directory as its nodes have it now, as long as nothing was changed in it here.
  void refresh_adopted(const View& names, Object& object) const;

  const Parts parts_;
  TemporaryNames temporary_names_;
  std::atomic<bool> adopted_lost_names_{false};  // a directory of adopted_ lost a name of this node
  std::atomic<bool> has_versions_{false};  // some temporary name has several writers
  std::atomic<int64_t> may_hide_until_ns_{INT64_MIN};  // monotonic; the journal got a file under a temporary name some seconds before
  std::atomic<uint64_t> quarantined_count_{0};
  std::atomic<bool> peers_quarantine_{false};  // a peer has, or had, an object in quarantine

  mutable SharedMutex<LockRank::kNames> mutex_;  // guards the rest
  DirectoryClasses classes_;
  std::set<ObjectId> adopted_;  // directories in which this node has named nothing: they go when those of the peers go
  std::set<ObjectId> unjournaled_;  // the adopted ones, kMostUnjournaled at most, that the journal does not know
  GivenUpObjects given_up_by_peers_;
  ObjectId adopted_looked_at_;  // the last directory of the current pass over adopted_
  bool adopted_again_ = false;  // another pass follows: this one has dropped some, or names went after it had begun
  const std::shared_ptr<Statements> statements_ = std::make_shared<Statements>();  // this node's, about objects of peers
  NameView view_;  // of all nodes of the volume
  Namespace names_;
  std::unordered_map<ObjectId, ObjectPtr> table_;
  std::unordered_multimap<ObjectId, ObjectId> outdated_;  // Object::outdated of those in the table, by the object's id
  uint64_t outdated_given_ = 0;
  RecentChanges recent_changes_, recent_bodies_;  // of all kinds; the objects that got another body
  RecentChanges recent_moves_{kMovedNs};          // objects that were renamed a moment before they left the table
  std::deque<Lingering> lingering_;        // oldest first
  std::deque<Lingering> kept_for_rename_;  // oldest first
  LostVersions lost_;
  uint64_t lingering_bytes_ = 0;
  std::unordered_set<ObjectId> leaving_;        // lost their last name, not journaled yet
  std::unordered_set<ObjectId> quarantined_;    // their names read as absent; of a peer's, those that this node found damaged
  std::unordered_map<ObjectId, Stat> removed_;  // the last removed objects, as they were: a client may be in one, or have looked it up before
  std::deque<ObjectId> removed_order_;          // oldest first
  UnlinkedQueue unlinked_;                      // the journal may not yet know that they have no name
  std::vector<std::pair<Place, ObjectPtr>> shared_places_;  // the object's place was given to the one that replaced it; kept while the object is read
};

}  // namespace kvcachefs

#include "store/tree/tree_guards.h"  // the guards: View, Read, Write

namespace kvcachefs {

struct Tree::Kept {
  Read names;
  ObjectPtr object;
};

// Forgets an object, if it is idle, when the scope ends, however it is left. For code that gets an object and may leave it unchanged: nothing
// else would look at the object again, and the table would keep it for ever. Without a Write it takes the lock at the end, so declare it
// before everything that holds that lock or the object's; with a Write, after it.
class Tree::ForgetAfter {
 public:
  explicit ForgetAfter(Tree& tree, ObjectPtr object = nullptr) : tree_(&tree), object_(std::move(object)) {}
  ForgetAfter(Write& write, ObjectPtr object) : write_(&write), object_(std::move(object)) {}
  ForgetAfter(const ForgetAfter&) = delete;
  ForgetAfter& operator=(const ForgetAfter&) = delete;
  ~ForgetAfter() {
    if (!object_) return;
    if (write_ != nullptr) write_->forget_if_idle(object_);
    else tree_->forget_when_idle(object_);
  }
  void take(ObjectPtr object) { object_ = std::move(object); }
  void keep() { object_.reset(); }  // the caller forgets it elsewhere, or has changed it: then its commit does

 private:
  Tree* tree_ = nullptr;
  Write* write_ = nullptr;
  ObjectPtr object_;
};

inline Tree::Read Tree::read() const { return Read(*this); }
inline Tree::Write Tree::write() { return Write(*this); }

}  // namespace kvcachefs

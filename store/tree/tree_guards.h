// The operations under the lock of a Tree. Included by tree.h.
#pragma once

#include "store/tree/tree.h"

namespace kvcachefs {

struct Rename;

// Queries while the lock is held, shared or exclusive. Objects passed to a method are not locked, unless its comment says so.
class Tree::View {
 public:
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  const Namespace& names() const { return tree_->names_; }
  const NameView& view() const { return tree_->view_; }  // of the journaled names of all nodes
  ObjectPtr live(ObjectId id) const;  // from the table, else null
  size_t objects_in_ram() const { return tree_->table_.size(); }
  Stat stat_of(const Object& object) const;  // the object is locked
  Result<Stat> stat(ObjectId id) const;
  // As journaled, on whichever node. For objects that are not live(). nullopt: there is none, or it lost its last name.
  Result<std::optional<ObjectRecord>> record(ObjectId id) const;
  Result<std::optional<ObjectRecord>> record_summary(ObjectId id) const;

  // What clients see under a name: a quarantined object is absent (and its name may be taken by a new one).
  Result<std::optional<Namespace::Found>> find_name(ObjectId parent, std::string_view name) const;
  Status check_new_name(ObjectId parent, std::string_view name) const;  // whether it can be given
  Result<std::vector<DirectoryItem>> list(ObjectId directory, uint64_t after, size_t limit) const;
  bool is_quarantined(ObjectId id) const;
  struct ProbedBody {
    std::string_view name;
    ObjectId id;  // invalid: absent
    uint64_t size_bytes = 0;
  };
  // The body whose sidecar this name is, as a probe of the name tells it; `there`: the sidecar exists.
  std::optional<ProbedBody> body_probed_by(ObjectId parent, std::string_view name, bool there) const;
  bool is_only_adopted(ObjectId id) const { return tree_->unjournaled_.contains(id); }  // in RAM alone, see adopt_directory()
  // kOtherNode if peers have a part in the object: only its node may rename it.
  Status check_own(const Object& object, const std::string& what) const;
  bool has_versions(ObjectId parent, std::string_view name) const;  // several writers have the name, each with a version of its own
  bool is_one_of_several(ObjectId id) const;  // it is a version of a temporary name, also the last one left
  bool hides_version(ObjectId parent, std::string_view name, ObjectId seen) const;  // one that its writer may rename
  bool lost_name_to(uint32_t thread_id, ObjectId seen) const;  // the thread wrote a file under a name that means this object of another writer now
  // The kernel must not cache this object under that name: a lookup may be answered between a rename of another version here and the kernel's move of its entry.
  bool is_brief(ObjectId parent, std::string_view name, ObjectId id) const { return is_one_of_several(id) || hides_version(parent, name, id); }
  // The object that the journal should give the name; while several write it, the newest finished version, for the mount may end before the last is.
  ObjectId version_to_keep(const NameState& state) const;
  bool still_written_by_other(Object& object, uint32_t thread_id) const;

  // The object lives on in RAM and is read from this place (it is open, or an older version of a name), or another object is that shares the place.
  bool still_needed(const FreedPlace& freed) const;
  static bool is_read_still(Object& object);
  bool is_given_up_and_read(ObjectId id) const;  // a peer's object: in a state that its node has given up
  bool changed_lately(ObjectId id) const { return tree_->recent_changes_.has(id, tree_->parts_.clock.monotonic_ns()); }  // a peer's

 protected:
  explicit View(const Tree& tree) : tree_(&tree) {}
  View(View&& other) = default;
  View& operator=(View&& other) = default;
  bool is_abandoned(ObjectId id, int64_t for_ns) const;
  const Tree* tree_;
};

class Tree::Read final : public Tree::View {
 public:
  explicit Read(const Tree& tree) : View(tree), lock_(tree.mutex_) {}
  void unlock() { lock_.unlock(); }  // early: nothing is asked after it

 private:
  std::shared_lock<SharedMutex<LockRank::kNames>> lock_;
};

class Tree::Write final : public Tree::View {
 public:
  explicit Write(Tree& tree) : View(tree), own_(&tree), lock_(tree.mutex_) {}
  void unlock() { lock_.unlock(); }  // early
  // Lets other threads in: what was found out before may be different afterwards.
  void breathe() {
    lock_.unlock();
    lock_.lock();
  }

  Namespace& names() { return tree().names_; }
  NameView& view() { return tree().view_; }
  using View::names, View::view;

  // --- the table (tree.cc) ---
  Result<ObjectPtr> get(ObjectId id);  // from the table, or from the index and then added to the table
  void add(const ObjectPtr& object) { tree().table_.emplace(object->id, object); }
  // Drops the table entry when nothing needs it any more. An object already forgotten is not the one that the table has now.
  void forget_if_idle(const ObjectPtr& object);
  // The journal knows that the object is gone.
  void note_gone(ObjectId id);
  void forget_removed(ObjectId id) { tree().removed_.erase(id); }  // a later call by this id is answered that the name has to be looked up again
  void for_each(const std::function<void(const ObjectPtr&)>& visit) const;

  // --- names and links (tree_names.cc, tree_rename.cc) ---
  void touch_directory(ObjectId directory);  // sets its times to now
  void change_links(const ObjectPtr& object, int by, bool evicts = false);
  // The directory, for giving a name in it. Fails for one that was removed, which the kernel may still know.
  Result<ObjectPtr> directory_for_entry(ObjectId id);
  // A name whose chunk is in quarantine reads as absent; a call that gives the name anew takes it from that chunk.
  void take_from_quarantined(ObjectId id);
  // Makes a name dirty for a client's change. If a peer's file hides this node's file, that file loses its link now, together with what clients see.
  Result<Namespace::Edit> edit(ObjectId parent, std::string_view name);
  // Adds a new object and its first name, which check_new_name() has accepted.
  Status make_entry(const ObjectPtr& directory, std::string_view name, const ObjectPtr& object);
  Status give_name(ObjectId parent, std::string_view name, const ObjectPtr& object);  // gives it another name; the caller counts the link
  Status unlink(ObjectId parent, std::string_view name, uint32_t thread_id);
  uint64_t evict(const ObjectPtr& object, ObjectId parent, const std::string& name);  // requires one name and one version; returns bytes on the volume
  Status resolve_rename(Rename& rename);  // resolves its names; then rename() does it, once the caller has prepared the source's body
  Status rename(Rename& rename);
  Status remove_directory(ObjectId parent, std::string_view name);
  // kNotEmpty if clients see a name in it. Names that they do not see (in quarantine) are removed, journaled before the directory goes.
  Status clear_directory(ObjectId directory);
  void drop_directory(const ObjectPtr& directory);  // after it lost its name
  void note_unlinked(ObjectId id) { tree().unlinked_.add(id); }  // after it lost its last name, see UnlinkedQueue
  size_t unlinked() const { return tree_->unlinked_.size(); }
  void look_at_unlinked(size_t most, const std::function<bool(ObjectId)>& is_done) { tree().unlinked_.look_at(most, is_done); }
  void not_leaving(ObjectId id) { tree().leaving_.erase(id); }

  // --- peers (tree_peers.cc) ---
  // Makes a directory that so far only peers have named one of this node, with this id; returns the one that is there if there is one. The journal is
  // not told of it, or of those above it, before journal_adopted(): call that before anything in it gets a name.
  Result<ObjectPtr> adopt_directory(ObjectId parent, std::string_view name, ObjectId id);
  void journal_adopted(ObjectId id);
  // The place of a directory that was made or moved, which the index does not tell yet; until directory_journaled() or drop_directory().
  void hold_directory(ObjectId parent, std::string_view name, ObjectId id) { view().hold_new(parent, name, id); }
  // Drops adopted directories that no peer has any more, looking at `most` of them. True: a pass over all has found none since `names_went`.
  bool drop_left_directories(size_t most, bool names_went = false);
  void directory_journaled(ObjectId id) { tree().classes_.release(id); }
  void follow(uint32_t ordinal, const PeerBatch& batch);  // after the batch was applied
  void follow_all(uint32_t ordinal);                      // after all of that peer's part was loaded anew
  // Call before a batch of a peer is applied: names that it evicts, and clients here were told of within the lease, stay visible for a while.
  void keep_leased(uint32_t ordinal, const Batch& batch);
  void end_leases();  // that are over
  std::vector<ObjectId> still_read(uint32_t ordinal);  // the peer's objects, in its ids, ascending, that it gave up and that are read here; some hundreds
  // Carries out the peer's statements up to `until` on this node's names; returns what is to be journaled after these names.
  Result<PeerAnswer> answer(const Part& peer, JournalPosition until);

  // --- quarantine and places ---
  void mark_quarantined(const ObjectPtr& object);  // the object is locked
  void found_quarantined(ObjectId id);             // at the start
  void end_quarantine(ObjectId id);
  // The object's place was given to the one that replaced it; the older object needs the place while it is read.
  void keep_shared_place(ObjectId former, const Place& place);
  void drop_unread_places();

  // --- versions of a temporary name (tree_versions.cc) ---
  ObjectId choose_version_to_read(const NameState& state, uint32_t thread_id);
  ObjectId choose_version(const NameState& state, uint32_t thread_id);
  ObjectPtr version_awaiting_open(ObjectId parent, std::string_view name, uint32_t thread_id) const;  // the caller was told of it; null: none
  // The version that the caller's rename or unlink means, though clients see `seen`: a peer's file took the name from it; nullopt: none (tree_lost.cc).
  std::optional<LostVersions::Lost> lost_version(ObjectId parent, std::string_view name, const std::optional<Namespace::Found>& seen, uint32_t thread_id);
  // Makes `fresh` mean the name; `object`, which had it, stays as an older version.
  void add_version(Namespace::Edit& state, ObjectId parent, std::string_view name, const ObjectPtr& object, const ObjectPtr& fresh);
  void sweep_versions(bool all, bool room_is_wanted = false);
  void settle(const DirtyName& name, ObjectId durable);  // Namespace::settle(), but the name stays known while its file is written

  // --- objects that stay for a time only (tree_lingering.cc) ---
  bool linger(const ObjectPtr& replaced);  // false: there is no room for it, or nobody to end it
  void linger_for_unknown(const ObjectPtr& object);  // like keep_for_repeat(), for callers that cannot be told apart
  void end_lingering(bool all);
  // Keeps what a repeated lookup found until the call is repeated, so that it is not answered kStale twice; also on a full volume: one object a thread.
  void keep_for_repeat(StaleOpens& stale, uint32_t thread_id, ObjectId id);
  void let_go(const StaleOpens::Released& released);
  void lose_name(const ObjectPtr& object, ObjectId parent, std::string_view name, bool may_be_kept = true);

 private:
  friend class Tree;
  Write(Tree& tree, std::try_to_lock_t attempt) : View(tree), own_(&tree), lock_(tree.mutex_, attempt) {}
  Tree& tree() { return *own_; }
  void note_removed(Stat stat);
  void look_again(ObjectId id);
  void erase_from_table(const Object& object);
  void override_peers(Namespace::Edit& state, ObjectId parent, std::string_view name);
  void end_leases_on_names_of(uint32_t ordinal, const Batch& batch);
  void end_lease(ObjectId id);
  void end_leases_under(ObjectId parent, std::string_view name);
  Status take_name(const UnnameRecord& gone);
  Result<bool> has_only_taken(ObjectId directory) const;
  std::vector<ObjectId> take_versions(NameState& state, ObjectId taken, bool at_the_end = false);
  void take_lost_versions(const Batch* given, bool at_the_end = false);
  void take_lost(NameState& state, const ObjectPtr& version);
  void end_lost(const LostVersions::Lost& lost);
  Status leave_directory(ObjectId parent, const std::string& name, const ObjectPtr& directory);
  Result<bool> leave_adopted_in(ObjectId directory);
  std::vector<ObjectId> move_name(const Rename& rename, Namespace::Edit& old_state, Namespace::Edit& new_state);
  void note_moved(Rename& rename);
  void settle_links(const Rename& rename, std::span<const ObjectId> dropped_versions);
  bool keep_for_rename(const ObjectPtr& object);  // the object is locked
  void end_oldest_lingering();

  Tree* own_;
  std::unique_lock<SharedMutex<LockRank::kNames>> lock_;
};

}  // namespace kvcachefs

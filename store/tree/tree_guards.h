// What can be done under the lock of a Tree. Included by tree.h.
#pragma once

#include "store/tree/tree.h"

namespace kvcachefs {

struct Rename;

// What can be asked while the lock is held, shared or alone. An object that a method is given is not locked, where nothing else is
// said.
class Tree::View {
 public:
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  const Namespace& names() const { return tree_->names_; }
  const NameView& view() const { return tree_->view_; }  // of what is journaled, on all nodes
  ObjectPtr live(ObjectId id) const;  // in the table, else null
  size_t objects_in_ram() const { return tree_->table_.size(); }
  Stat stat_of(const Object& object) const;  // the object is locked
  Result<Stat> stat(ObjectId id) const;
  // As it is journaled, by whichever node. To be asked for what is not live(). Nothing: there is none, or it lost its last name.
  Result<std::optional<ObjectRecord>> record(ObjectId id) const;
  Result<std::optional<ObjectRecord>> record_summary(ObjectId id) const;

  // What clients see under a name: a quarantined object is absent (and its name may be taken by a new one).
  Result<std::optional<Namespace::Found>> find_name(ObjectId parent, std::string_view name) const;
  Status check_new_name(ObjectId parent, std::string_view name) const;  // that it can be given
  Result<std::vector<DirectoryItem>> list(ObjectId directory, uint64_t after, size_t limit) const;
  bool is_quarantined(ObjectId id) const;
  struct ProbedBody {
    std::string_view name;
    ObjectId id;  // invalid: absent
    uint64_t size_bytes = 0;
  };
  // What a probe of this name says of the body whose sidecar it is; `there`: the sidecar exists.
  std::optional<ProbedBody> body_probed_by(ObjectId parent, std::string_view name, bool there) const;

  bool is_only_adopted(ObjectId id) const { return tree_->unjournaled_.contains(id); }  // in RAM alone, see adopt_directory()
  // kOtherNode if peers have a part in it: only its node may give it another name.
  Status check_own(const Object& object, const std::string& what) const;

  // Several write the name, each a version of its own.
  bool has_versions(ObjectId parent, std::string_view name) const;
  // It is a version of a temporary name, which the kernel does not cache under that name, also when it is the last one left: a lookup can be
  // answered after another's rename was done here, and before the kernel moved its entry, which would take the time-out along to the target.
  bool is_one_of_several(ObjectId id) const;
  // What the journal says a name is: its object; while several write it the newest finished version, for the mount may end before
  // the last of them does.
  ObjectId version_to_keep(const NameState& state) const;
  bool still_written_by_other(Object& object, uint32_t thread_id) const;

  // The object lives on in RAM and reads from there: it is open, or an older version of a name with several writers. Or another whose place it has.
  bool still_needed(const FreedPlace& freed) const;
  static bool is_read_still(Object& object);

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
  void unlock() { lock_.unlock(); }  // ahead of the end: nothing is asked any more

 private:
  std::shared_lock<SharedMutex<LockRank::kNames>> lock_;
};

class Tree::Write final : public Tree::View {
 public:
  explicit Write(Tree& tree) : View(tree), own_(&tree), lock_(tree.mutex_) {}
  void unlock() { lock_.unlock(); }  // ahead of the end
  // Others get in between: what was found out before may be different afterwards.
  void breathe() {
    lock_.unlock();
    lock_.lock();
  }

  Namespace& names() { return tree().names_; }
  NameView& view() { return tree().view_; }
  using View::names, View::view;

  // --- the table (tree.cc) ---
  Result<ObjectPtr> get(ObjectId id);  // from the table or the index, then in the table
  void add(const ObjectPtr& object) { tree().table_.emplace(object->id, object); }
  // Gives a table entry up when nothing needs it any more. One that was forgotten before is not that which the table has now.
  void forget_if_idle(const ObjectPtr& object);
  // The journal knows that it is gone.
  void note_gone(ObjectId id);
  // Who asks for it learns that the name is to be looked up again.
  void forget_removed(ObjectId id) { tree().removed_.erase(id); }
  void for_each(const std::function<void(const ObjectPtr&)>& visit) const;

  // --- names and links (tree_names.cc, tree_rename.cc) ---
  void touch_directory(ObjectId directory);  // its times are now
  void change_links(const ObjectPtr& object, int by);
  // The directory, for a name in it. The kernel may still know one that was removed: nothing gets a name there.
  Result<ObjectPtr> directory_for_entry(ObjectId id);
  // A name whose chunk is in quarantine reads as absent; whoever gives it anew takes it from that chunk.
  void take_from_quarantined(ObjectId id);
  // A name that a client changes. What this node has under it, and a peer's file hides, loses its link now: it goes with what is seen.
  Result<Namespace::Edit> edit(ObjectId parent, std::string_view name);
  // A new object and its first name, for which check_new_name() was asked.
  Status make_entry(const ObjectPtr& directory, std::string_view name, const ObjectPtr& object);
  // Another name of the object. The caller counts the link.
  Status give_name(ObjectId parent, std::string_view name, const ObjectPtr& object);
  Status unlink(ObjectId parent, std::string_view name, uint32_t thread_id);
  uint64_t evict(const ObjectPtr& object, ObjectId parent, const std::string& name);  // one with one name and one version; bytes on the volume
  // What the names of a rename mean; then the rename itself, once the caller has seen to the body of its source.
  Status resolve_rename(Rename& rename);
  Status rename(Rename& rename);
  Status remove_directory(ObjectId parent, std::string_view name);
  // kNotEmpty if clients see a name in it; what they do not see, names in quarantine, goes with it: before it, as the journal has to have it.
  Status clear_directory(ObjectId directory);
  void drop_directory(const ObjectPtr& directory);  // it lost its name
  void note_unlinked(ObjectId id) { tree().unlinked_.add(id); }  // it lost its last name, see UnlinkedQueue
  size_t unlinked() const { return tree_->unlinked_.size(); }
  void look_at_unlinked(size_t most, const std::function<bool(ObjectId)>& is_done) { tree().unlinked_.look_at(most, is_done); }
  void not_leaving(ObjectId id) { tree().leaving_.erase(id); }

  // --- peers (tree_peers.cc) ---
  // A directory that so far only peers have named, as one of this node, with this id; or that which is there. The journal is told of it, and of
  // those above it, by journal_adopted(): before anything in it gets a name.
  Result<ObjectPtr> adopt_directory(ObjectId parent, std::string_view name, ObjectId id);
  void journal_adopted(ObjectId id);
  // Where a directory that was made or moved lies, which the index does not tell yet; until directory_journaled() or drop_directory().
  void hold_directory(ObjectId parent, std::string_view name, ObjectId id) { view().hold_new(parent, name, id); }
  // Directories that were adopted, and that no peer has any more, go as well: at most so many are looked at. True: all were by now.
  bool drop_left_directories(size_t most);
  void directory_journaled(ObjectId id) { tree().classes_.release(id); }
  void follow(uint32_t ordinal, const PeerBatch& batch);  // it was applied
  void follow_all(uint32_t ordinal);                      // all that is known of one was made anew
  // A batch of a peer is about to be applied: what it evicts, and clients here were told of a moment ago, keeps its name here for a while.
  void keep_leased(uint32_t ordinal, const Batch& batch);
  void end_leases();  // those that are over
  std::vector<ObjectId> still_read(uint32_t ordinal);  // in its ids, ascending: what it removed or replaced, and is read here; some hundreds at most
  // Takes from this node what the peer said is gone, up to there; what is to be journaled once these names are.
  Result<PeerAnswer> answer(const Part& peer, JournalPosition until);
  // What this node said of the peer's objects up to there was answered, and everybody has read the answer.
  Status forget_statements(const std::string& peer, JournalPosition answered);

  // --- quarantine and places ---
  void mark_quarantined(const ObjectPtr& object);  // the object is locked
  void found_quarantined(ObjectId id);             // at the start
  void end_quarantine(ObjectId id);
  // The place of an object was given to the one that replaced it; while somebody still reads the older one, it needs it.
  void keep_shared_place(ObjectId former, const Place& place);
  void drop_unread_places();

  // --- versions of a temporary name (tree_versions.cc) ---
  uint32_t writer_process(Object& object);  // kept, for the thread that opened may have ended before the rename
  ObjectId choose_version_to_read(const NameState& state, uint32_t thread_id);
  ObjectId choose_version(const NameState& state, uint32_t thread_id);
  // The version of the name that the caller was told of and has not opened yet; null: none.
  ObjectPtr version_awaiting_open(ObjectId parent, std::string_view name, uint32_t thread_id) const;
  // `fresh` is what the name means from now on; `object`, which had it, stays as an older version.
  void add_version(Namespace::Edit& state, ObjectId parent, std::string_view name, const ObjectPtr& object, const ObjectPtr& fresh);
  void sweep_versions(bool all);

  // --- what stays though nothing but a clock needs it (tree_lingering.cc) ---
  bool linger(const ObjectPtr& replaced);  // false: there is no room for it, or nobody to end it
  void linger_for_unknown(const ObjectPtr& object);  // as keep_for_repeat(), for callers that cannot be told apart
  void end_lingering(bool all);
  // What a repeated lookup found stays until the call is repeated: it is not told twice. However full the volume is, for it is
  // one object a thread.
  void keep_for_repeat(StaleOpens& stale, uint32_t thread_id, ObjectId id);
  void let_go(const StaleOpens::Released& released);

 private:
  friend class Tree;
  Write(Tree& tree, std::try_to_lock_t attempt) : View(tree), own_(&tree), lock_(tree.mutex_, attempt) {}
  Tree& tree() { return *own_; }
  void note_removed(Stat stat);
  void look_again(ObjectId id);
  void override_peers(Namespace::Edit& state, ObjectId parent, std::string_view name);
  void end_leases_on_names_of(uint32_t ordinal, const Batch& batch);
  void end_lease(ObjectId id);
  void end_leases_under(ObjectId parent, std::string_view name);
  Status take_name(const UnnameRecord& gone);
  std::vector<ObjectId> take_versions(NameState& state, ObjectId taken, bool at_the_end = false);
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

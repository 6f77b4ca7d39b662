// Rename: of one name, over another, of two with each other, and of one of several versions of a temporary name.
#include <fmt/format.h>

#include "store/base/kill_point.h"
#include "store/base/limits.h"
#include "store/store_impl.h"
#include "store/tree/writer_processes.h"

namespace kvcachefs {

namespace {

// After a rename of one version of several: how long the kernel may take another for it.
constexpr int64_t kRelookupNs = 1'000'000'000;

}  // namespace

// One rename under way: what was asked for, and what that means.
struct StoreImpl::Rename {
  ObjectId parent;
  std::string name;
  ObjectId new_parent;
  std::string new_name;
  RenameMode mode;
  Caller caller;

  ObjectPtr source{};  // null: two names of one object, nothing is to be done
  ObjectPtr target{};  // what has the new name; may be null
  bool target_is_seen = false;
  bool others_keep_name = false;             // one of several versions of the old name goes, the others stay there
  std::vector<ObjectId> dropped_versions{};  // of the new name
  std::vector<ObjectPtr> unsealed{};   // what got a name and is not journaled yet, so that the name cannot be either
  std::vector<ObjectPtr> looked_at{};  // to be forgotten if it comes to nothing

  bool exchanges() const { return mode == RenameMode::kExchange; }
  std::string old_text() const { return entry_text(parent, name); }
  std::string new_text() const { return entry_text(new_parent, new_name); }
};

Status StoreImpl::rename_now(Rename& rename) {
  if (rename.new_name.size() > kMaxNameBytes)
    return fail(Code::kNameTooLong, fmt::format("a name of {} bytes; at most {}", rename.new_name.size(), kMaxNameBytes));
  const KnownProcesses processes(tree_->writers_of(rename.parent, rename.name, rename.caller.thread_id));
  Tree::Write tree = tree_->write();
  KVC_TRY(resolve_rename(tree, rename));
  if (!rename.source) return {};
  KVC_TRY(prepare_rename(tree, rename));
  KVC_ASSIGN(Namespace::Edit old_state, tree.names().edit(rename.parent, rename.name));
  KVC_ASSIGN(Namespace::Edit new_state, tree.names().edit(rename.new_parent, rename.new_name));  // nothing fails from here on
  record_space_->accept(2 * kNameRecordBytes + rename.name.size() + rename.new_name.size());
  move_name(tree, rename, old_state, new_state);
  note_moved(tree, rename);
  settle_links(tree, rename);
  if (rename.target) kill_point("name-replaced");
  return {};
}

// What the two names mean.
Status StoreImpl::resolve_rename(Tree::Write& tree, Rename& rename) {
  KVC_ASSIGN(auto from, tree.names().find(rename.parent, rename.name));
  if (!from) return fail(Code::kNotFound, rename.old_text());
  KVC_ASSIGN(auto to, tree.names().find(rename.new_parent, rename.new_name));
  rename.target_is_seen = to && !tree.is_quarantined(to->child);
  if (rename.mode == RenameMode::kNoReplace && rename.target_is_seen) return fail(Code::kExists, rename.new_text());
  if (rename.exchanges() && !rename.target_is_seen) return fail(Code::kNotFound, rename.new_text());

  ObjectId source_id = from->child;
  const bool several = tree.has_versions(rename.parent, rename.name);
  if (rename.exchanges() && (several || tree.has_versions(rename.new_parent, rename.new_name)))
    return fail(Code::kBusy, fmt::format("{} and {} cannot be exchanged while several write one of them", rename.old_text(),
                                         rename.new_text()));
  if (several) {
    source_id = tree.choose_version(*tree.names().dirty(rename.parent, rename.name), rename.caller.thread_id);
    rename.others_keep_name = true;
  }
  if (to && to->child == source_id && !rename.exchanges()) return {};
  KVC_ASSIGN(ObjectPtr source, tree.get(source_id));
  rename.looked_at.push_back(source);
  KVC_ASSIGN(ObjectPtr into, tree.directory_for_entry(rename.new_parent));
  rename.looked_at.push_back(std::move(into));
  if (to) {
    KVC_ASSIGN(rename.target, tree.get(to->child));
    rename.looked_at.push_back(rename.target);
  }
  rename.source = std::move(source);
  return {};
}

// Everything that can fail, but for the names themselves.
Status StoreImpl::prepare_rename(Tree::Write& tree, Rename& rename) {
  const ObjectPtr& source = rename.source;
  {
    const auto object_lock = source->lock();
    if (source->write_error) return std::unexpected(*source->write_error);
    // A version whose record went to another: its body is written anew.
    if (!source->durable && source->is_regular() && !source->content_dirty()) {
      if (!reserve_space(*source, source->size_bytes)) return std::unexpected(no_space(*source, source->size_bytes));
      content_changed(source);
    }
  }
  if (!rename.target_is_seen || rename.mode != RenameMode::kReplace) return {};
  if (source->is_directory() && !rename.target->is_directory())
    return fail(Code::kNotDirectory, rename.new_text());
  if (!source->is_directory() && rename.target->is_directory())
    return fail(Code::kIsDirectory, rename.new_text());
  return source->is_directory() ? tree.clear_directory(rename.target->id) : Status();
}

void StoreImpl::move_name(Tree::Write& tree, Rename& rename, Namespace::Edit& old_state, Namespace::Edit& new_state) {
  const ObjectId source_id = rename.source->id;
  if (rename.exchanges()) {
    old_state->child = rename.target->id;
    old_state->type_bits = rename.target->type_bits;
  } else if (rename.others_keep_name) {
    if (old_state->durable == source_id) old_state->erase_durable = true;
    if (old_state->child == source_id) {
      old_state->child = old_state->older_versions.back();
      old_state->older_versions.pop_back();
    } else {
      std::erase(old_state->older_versions, source_id);
    }
    // The kernel now believes that the new name means the version it knew under the old one.
    const int64_t until_ns = clock_.monotonic_ns() + kRelookupNs;
    if (ObjectPtr other = tree.live(old_state->child)) other->relookup_until_ns.store(until_ns, std::memory_order_relaxed);
    for (ObjectId id : old_state->older_versions)
      if (ObjectPtr other = tree.live(id)) other->relookup_until_ns.store(until_ns, std::memory_order_relaxed);
  } else {
    old_state->child = {};
    old_state->erase_durable = true;
  }
  if (!rename.exchanges()) rename.dropped_versions = std::move(new_state->older_versions);
  new_state->older_versions.clear();
  new_state->child = source_id;
  new_state->type_bits = rename.source->type_bits;
}

// The objects, and the tracker of accesses, know of their new names.
void StoreImpl::note_moved(Tree::Write& tree, Rename& rename) {
  const ObjectPtr& source = rename.source;
  const ObjectPtr& target = rename.target;
  uint64_t size_bytes = 0;
  for (const ObjectPtr& moved : {source, rename.exchanges() ? target : ObjectPtr()}) {
    if (!moved || !moved->is_regular()) continue;
    const auto lock = moved->lock();
    moved->named_version = moved->content_version;
    if (moved == source) size_bytes = source->size_bytes;
    if (!moved->durable || moved->journaled_version() < moved->named_version) rename.unsealed.push_back(moved);
  }
  if (source->is_regular() && !source->published && !rename.exchanges()) {
    tree_->temporary_names().renamed(rename.parent, rename.name, rename.new_parent, rename.new_name);
    source->temporary = false;
    const auto lock = source->lock();
    forget_in_place(tree, source);
    // From here on it is a file of its own, whatever the other versions of its temporary name become.
    if (!source->locked) source->lock_identity = source->id;
  }
  source->published = true;
  source->moved_ns.store(clock_.monotonic_ns(), std::memory_order_relaxed);
  source->relookup_until_ns.store(0, std::memory_order_relaxed);
  if (source->is_directory())
    accesses_->directory_named(rename.caller.thread_id, rename.new_parent, rename.new_name, source->id);
  else
    accesses_->published(rename.caller.thread_id, rename.new_parent, rename.new_name, source->id, source->origin, size_bytes);
  tree.change_links(source, 0);
  if (target) target->published = true;
}

// What was replaced loses its name, and the directories count who is in them.
void StoreImpl::settle_links(Tree::Write& tree, Rename& rename) {
  const ObjectPtr& source = rename.source;
  const ObjectPtr& target = rename.target;
  const bool target_is_directory = target && target->is_directory();
  int old_parent_links = source->is_directory() ? -1 : 0;
  int new_parent_links = source->is_directory() ? +1 : 0;
  if (rename.exchanges()) {
    old_parent_links += target_is_directory ? +1 : 0;
    new_parent_links -= target_is_directory ? 1 : 0;
    tree.change_links(target, 0);
  } else if (target_is_directory) {
    new_parent_links -= 1;
    tree.drop_directory(target);
  } else if (target) {
    source->replaced = target->id;
    {
      const auto source_lock = source->lock();
      source->replaces = true;
    }
    tree.change_links(target, -1);
    if (target->nlink == 0 && !tree.linger(target)) tree.forget_if_idle(target);
  }
  for (ObjectId id : rename.dropped_versions)
    if (ObjectPtr version = tree.live(id)) {
      tree.change_links(version, -1);
      tree.forget_if_idle(version);
    }
  auto adjust = [&](ObjectId directory, int by) {
    if (by == 0) return;
    if (auto object = tree.get(directory)) tree.change_links(*object, by);
  };
  if (rename.parent == rename.new_parent) {
    adjust(rename.parent, old_parent_links + new_parent_links);
  } else {
    adjust(rename.parent, old_parent_links);
    adjust(rename.new_parent, new_parent_links);
    tree.touch_directory(rename.new_parent);
  }
  tree.touch_directory(rename.parent);
}

void StoreImpl::rename(ObjectId parent, std::string_view name, ObjectId new_parent, std::string_view new_name,
                       RenameMode mode, const Caller& caller, StatusCompletion done) {
  if (read_only_) return done(fail(Code::kReadOnly, "the mount is read-only"));
  probes_.stored(caller.thread_id, new_parent, new_name);
  Rename rename{parent, std::string(name), new_parent, std::string(new_name), mode, caller};
  auto finish = [this](Rename asked, StatusCompletion reply) {
    if (Status status = rename_now(asked); !status) {
      for (const ObjectPtr& object : asked.looked_at) tree_->forget_when_idle(object);
      return reply(std::move(status));
    }
    dirty_.wake();
    if (!options_.durable_close()) return reply({});
    make_all_durable(std::move(asked.unsealed), options_.durable_sync(), std::move(reply));
  };
  if (!options_.durable_close()) return finish(std::move(rename), std::move(done));

  // The body first: if it cannot be written the old name, and what it would replace, stay as they are.
  const ObjectPtr source = object_to_rename(parent, name, caller);
  if (!source || !source->is_regular()) return finish(std::move(rename), std::move(done));
  make_durable(source, options_.durable_sync(), [finish, rename = std::move(rename), done = std::move(done)](Status status) mutable {
    if (!status) return done(std::unexpected(std::move(status).error()));
    finish(std::move(rename), std::move(done));
  });
}

// Null if there is none.
ObjectPtr StoreImpl::object_to_rename(ObjectId parent, std::string_view name, const Caller& caller) {
  const KnownProcesses processes(tree_->writers_of(parent, name, caller.thread_id));
  Tree::Write tree = tree_->write();
  auto found = tree.names().find(parent, name);
  if (!found || !*found) return nullptr;
  ObjectId id = (*found)->child;
  if (tree.has_versions(parent, name)) id = tree.choose_version(*tree.names().dirty(parent, name), caller.thread_id);
  return tree.get(id).value_or(nullptr);
}

}  // namespace kvcachefs

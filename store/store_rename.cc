// Rename: of one name, over another, of two with each other, and of one of several versions of a temporary name.
#include <fmt/format.h>

#include "store/base/kill_point.h"
#include "store/store_impl.h"
#include "store/store_names.h"

namespace kvcachefs {

namespace {

// After a rename of one version of several: how long the kernel may take another for it.
constexpr int64_t kRelookupNs = 1'000'000'000;

}  // namespace

// `unsealed`: what got a name and is not journaled yet, so that the name cannot be either. `looked_at`: what is to be forgotten
// if it comes to nothing.
Status StoreImpl::rename_now(ObjectId parent, std::string_view name, ObjectId new_parent, std::string_view new_name,
                             RenameMode mode, const Caller& caller, std::vector<ObjectPtr>* unsealed,
                             std::vector<ObjectPtr>* looked_at) {
  if (new_name.size() > kMaxNameBytes)
    return fail(Code::kNameTooLong, fmt::format("a name of {} bytes; at most {}", new_name.size(), kMaxNameBytes));
  std::unique_lock lock(names_mutex_);
  KVC_ASSIGN(auto from, names_->find(parent, name));
  if (!from) return fail(Code::kNotFound, entry_text(parent, name));
  KVC_ASSIGN(auto to, names_->find(new_parent, new_name));
  const bool to_is_seen = to && !is_quarantined(to->child);
  if (mode == RenameMode::kNoReplace && to_is_seen) return fail(Code::kExists, entry_text(new_parent, new_name));
  if (mode == RenameMode::kExchange && !to_is_seen) return fail(Code::kNotFound, entry_text(new_parent, new_name));

  ObjectId source_id = from->child;
  bool others_keep_name = false;
  const auto has_versions = [&](ObjectId directory, std::string_view entry) {
    const NameState* state = names_->dirty(directory, entry);
    return state != nullptr && !state->older_versions.empty();
  };
  if (mode == RenameMode::kExchange && (has_versions(parent, name) || has_versions(new_parent, new_name)))
    return fail(Code::kBusy, fmt::format("{} and {} cannot be exchanged while several write one of them",
                                         entry_text(parent, name), entry_text(new_parent, new_name)));
  if (has_versions(parent, name)) {
    source_id = choose_version(*names_->dirty(parent, name), caller.thread_id);
    others_keep_name = true;
  }
  if (to && to->child == source_id && mode != RenameMode::kExchange) return {};  // two names of one object: nothing
  KVC_ASSIGN(ObjectPtr source, get_locked(source_id));
  looked_at->push_back(source);
  KVC_ASSIGN(ObjectPtr into, directory_for_entry(new_parent));
  looked_at->push_back(std::move(into));
  ObjectPtr target;
  if (to) {
    KVC_ASSIGN(target, get_locked(to->child));
    looked_at->push_back(target);
  }
  const bool source_is_directory = source->is_directory();
  {
    std::lock_guard object_lock(source->mutex);
    if (source->write_error) return std::unexpected(*source->write_error);
    // A version whose record went to another: its body is written anew.
    if (!source->durable && source->is_regular() && !source->content_dirty()) {
      if (!reserve_space(*source, source->size_bytes)) return std::unexpected(no_space(*source, source->size_bytes));
      content_changed(source);
    }
  }
  if (to_is_seen && mode == RenameMode::kReplace) {
    if (source_is_directory && !target->is_directory())
      return fail(Code::kNotDirectory, entry_text(new_parent, new_name));
    if (!source_is_directory && target->is_directory())
      return fail(Code::kIsDirectory, entry_text(new_parent, new_name));
    if (source_is_directory) KVC_TRY(clear_directory(target->id));
  }

  KVC_ASSIGN(Namespace::Edit old_state, names_->edit(parent, name));
  KVC_ASSIGN(Namespace::Edit new_state, names_->edit(new_parent, new_name));  // nothing fails from here on
  if (mode == RenameMode::kExchange) {
    old_state->child = target->id;
    old_state->type_bits = target->type_bits;
  } else if (others_keep_name) {
    if (old_state->durable == source_id) old_state->erase_durable = true;
    if (old_state->child == source_id) {
      old_state->child = old_state->older_versions.back();
      old_state->older_versions.pop_back();
    } else {
      std::erase(old_state->older_versions, source_id);
    }
    // The kernel now believes that the new name means the version it knew under the old one.
    const int64_t until_ns = clock_.monotonic_ns() + kRelookupNs;
    if (ObjectPtr other = live(old_state->child)) other->relookup_until_ns.store(until_ns, std::memory_order_relaxed);
    for (ObjectId id : old_state->older_versions)
      if (ObjectPtr other = live(id)) other->relookup_until_ns.store(until_ns, std::memory_order_relaxed);
  } else {
    old_state->child = {};
    old_state->erase_durable = true;
  }
  std::vector<ObjectId> dropped_versions;
  if (mode != RenameMode::kExchange) dropped_versions = std::move(new_state->older_versions);
  new_state->older_versions.clear();
  new_state->child = source_id;
  new_state->type_bits = source->type_bits;

  if (!source->durable && source->is_regular()) unsealed->push_back(source);
  if (mode == RenameMode::kExchange && !target->durable && target->is_regular()) unsealed->push_back(target);
  source->published = true;
  source->moved_ns.store(clock_.monotonic_ns(), std::memory_order_relaxed);
  source->relookup_until_ns.store(0, std::memory_order_relaxed);
  if (source_is_directory)
    prefetcher_->directory_named(caller.thread_id, new_parent, new_name, source_id);
  else
    prefetcher_->published(caller.thread_id, new_parent, new_name, source_id, source->origin);
  change_links(source, 0);
  if (target) target->published = true;
  const bool target_is_directory = target && target->is_directory();
  int old_parent_links = source_is_directory ? -1 : 0;
  int new_parent_links = source_is_directory ? +1 : 0;
  if (mode == RenameMode::kExchange) {
    old_parent_links += target_is_directory ? +1 : 0;
    new_parent_links -= target_is_directory ? 1 : 0;
    change_links(target, 0);
  } else if (target_is_directory) {
    new_parent_links -= 1;
    drop_directory(target);
  } else if (target) {
    source->replaced = target->id;
    {
      std::lock_guard source_lock(source->mutex);
      source->replaces = true;
    }
    change_links(target, -1);
    if (target->nlink == 0 && !linger(target)) forget_if_idle(target);
  }
  for (ObjectId id : dropped_versions)
    if (ObjectPtr version = live(id)) {
      change_links(version, -1);
      forget_if_idle(version);
    }
  auto adjust = [&](ObjectId directory, int by) {
    if (by == 0) return;
    if (auto object = get_locked(directory)) change_links(*object, by);
  };
  if (parent == new_parent) {
    adjust(parent, old_parent_links + new_parent_links);
  } else {
    adjust(parent, old_parent_links);
    adjust(new_parent, new_parent_links);
    touch_directory(new_parent);
  }
  touch_directory(parent);
  if (target) kill_point("name-replaced");
  return {};
}

void StoreImpl::rename(ObjectId parent, std::string_view name, ObjectId new_parent, std::string_view new_name,
                       RenameMode mode, const Caller& caller, StatusCompletion done) {
  if (read_only_) return done(fail(Code::kReadOnly, "the mount is read-only"));
  auto finish = [this, parent, new_parent, mode, caller](const std::string& from, const std::string& to,
                                                         StatusCompletion reply) {
    std::vector<ObjectPtr> unsealed;
    std::vector<ObjectPtr> looked_at;
    if (Status status = rename_now(parent, from, new_parent, to, mode, caller, &unsealed, &looked_at); !status) {
      for (const ObjectPtr& object : looked_at) forget_when_idle(object);
      return reply(std::move(status));
    }
    kick_bulk();
    if (!durable_close()) return reply({});
    make_all_durable(std::move(unsealed), durable_sync(), std::move(reply));
  };
  if (!durable_close()) return finish(std::string(name), std::string(new_name), std::move(done));

  // The body first: if it cannot be written the old name, and what it would replace, stay as they are.
  ObjectPtr source;
  {
    std::unique_lock lock(names_mutex_);
    auto found = names_->find(parent, name);
    if (found && *found) {
      ObjectId id = (*found)->child;
      if (const NameState* state = names_->dirty(parent, name); state != nullptr && !state->older_versions.empty())
        id = choose_version(*state, caller.thread_id);
      if (auto object = get_locked(id)) source = *object;
    }
  }
  if (!source || !source->is_regular()) return finish(std::string(name), std::string(new_name), std::move(done));
  make_durable(source, durable_sync(),
               [finish, from = std::string(name), to = std::string(new_name), done = std::move(done)](Status status) mutable {
                 if (!status) return done(std::unexpected(std::move(status).error()));
                 finish(from, to, std::move(done));
               });
}

}  // namespace kvcachefs

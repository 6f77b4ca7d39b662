// Names: lookup, create, link, unlink, list, as clients ask for them; what they do to names is done by the Tree. Durable answers
// wait for the committer (make_durable) after the change was made.
#include <sys/stat.h>

#include <algorithm>

#include <fmt/format.h>

#include "store/base/kill_point.h"
#include "store/base/limits.h"
#include "store/store_impl.h"
#include "store/tree/writer_processes.h"

namespace kvcachefs {

// --- new entries ---

// Gives a new object its first name.
Result<ObjectPtr> StoreImpl::new_directory_entry(ObjectId parent, std::string_view name, ObjectPtr object) {
  if (read_only_) return fail(Code::kReadOnly, "the mount is read-only");
  if (auto gone = refusals_.is_gone() ? refusals_.lasting() : std::nullopt) return std::unexpected(*std::move(gone));
  Tree::Write tree = tree_->write();
  KVC_TRY(tree.check_new_name(parent, name));
  KVC_ASSIGN(ObjectPtr directory, tree.directory_for_entry(parent));
  if (room_for_records_->is_full()) return room_for_records_->refuse(entry_text(parent, name));
  KVC_TRY(tree.make_entry(directory, name, object));
  return object;
}

Result<Stat> StoreImpl::make_directory(ObjectId parent, std::string_view name, uint32_t mode, const Caller& caller) {
  KVC_ASSIGN(ObjectPtr object, new_directory_entry(parent, name, new_objects_->make((mode & 07777) | S_IFDIR, 0, caller)));
  accesses_->directory_named(caller.thread_id, parent, name, object->id);
  probes_.stored(caller.thread_id, parent, name);
  dirty_.wake();
  return stat(object->id);
}

Result<Stat> StoreImpl::make_node(ObjectId parent, std::string_view name, uint32_t mode, uint32_t rdev,
                                  const Caller& caller) {
  if ((mode & S_IFMT) == 0) mode |= S_IFREG;
  KVC_ASSIGN(ObjectPtr object, new_directory_entry(parent, name, new_objects_->make(mode, rdev, caller)));
  probes_.stored(caller.thread_id, parent, name);
  if (object->is_regular()) {  // not before: a lane passes over what has neither name nor handle
    const auto lock = object->lock();
    changes_->content_changed(object);
    object->last_write_ns = 0;  // nobody is writing it
  }
  dirty_.wake();
  return stat(object->id);
}

Result<Stat> StoreImpl::make_symlink(ObjectId parent, std::string_view name, std::string_view target,
                                     const Caller& caller) {
  if (target.empty() || target.size() >= 4096)
    return fail(Code::kNameTooLong, fmt::format("a link target of {} bytes; 1 to 4095", target.size()));
  ObjectPtr object = new_objects_->make(0777 | S_IFLNK, 0, caller);
  object->size_bytes = target.size();
  object->base.size_bytes = target.size();
  object->base.version = 1;
  const ByteSpan bytes = as_bytes(target);
  object->base.inline_bytes.assign(bytes.begin(), bytes.end());
  KVC_ASSIGN(object, new_directory_entry(parent, name, object));
  probes_.stored(caller.thread_id, parent, name);
  dirty_.wake();
  return stat(object->id);
}

Result<std::string> StoreImpl::read_symlink(ObjectId id) {
  auto target_of = [&](uint32_t type_bits, const Body& body) -> Result<std::string> {
    if (type_bits != S_IFLNK) return fail(Code::kInvalid, fmt::format("object {} is not a symbolic link", id.value));
    return std::string(as_text(body.inline_bytes));
  };
  if (ObjectPtr object = tree_->find(id)) {
    const auto lock = object->lock();
    return target_of(object->type_bits, object->base);
  }
  KVC_ASSIGN(auto record, tree_->read().record(id));
  if (!record) return fail(Code::kNotFound, fmt::format("object {} is gone", id.value));
  return target_of(record->attributes.mode & S_IFMT, record->body);
}

Result<std::pair<Stat, Handle*>> StoreImpl::create(ObjectId parent, std::string_view name, uint32_t mode,
                                                   const OpenRequest& request, const Caller& caller) {
  ObjectPtr object = new_objects_->make((mode & 07777) | S_IFREG, 0, caller);
  object->writer_thread = caller.thread_id;
  auto handle = std::make_unique<Handle>();
  handle->object = object;
  handle->request = request;
  handle->thread_id = caller.thread_id;
  {
    const auto lock = object->lock();
    object->handles = 1;
    object->opens = 1;
    if (request.write) {
      object->write_handles = object->unflushed_handles = 1;
      handle->unflushed = true;
    }
    changes_->content_changed(object);
  }
  probes_.stored(caller.thread_id, parent, name);
  ChainOrigin origin = accesses_->created(caller.thread_id, parent, name, object->id, clock_.monotonic_ns());
  object->origin = origin;
  {
    const uint64_t guessed_bytes = file_policy_->guess_size(object->origin.stem, caller.thread_id);
    const auto lock = object->lock();
    object->size_key = object->origin.stem;
    file_policy_->expect_size(*object, guessed_bytes);
  }
  if (auto entered = new_directory_entry(parent, name, object); !entered) {
    const auto lock = object->lock();
    object->handles = object->write_handles = object->unflushed_handles = 0;  // a lane drops it from the queue
    return std::unexpected(std::move(entered).error());
  }
  if (ObjectPtr kept = stale_opens_.looked_again(caller.thread_id, nullptr).kept) versions_->let_go({std::move(kept)});  // its repeated open became this
  if (origin.announced) accesses_->published(caller.thread_id, parent, name, object->id, origin, 0);  // written in place
  counters_.open_handles.fetch_add(1, std::memory_order_relaxed);
  counters_.opens.fetch_add(1, std::memory_order_relaxed);
  const Tree::Read tree = tree_->read();
  const auto object_lock = object->lock();
  return std::pair{tree.stat_of(*object), handle.release()};
}

// --- removal ---

void StoreImpl::unlink(ObjectId parent, std::string_view name, const Caller& caller, StatusCompletion done) {
  if (read_only_) return done(fail(Code::kReadOnly, "the mount is read-only"));
  auto remove = [&] {
    const KnownProcesses processes(tree_->writers_of(parent, name, caller.thread_id));
    return tree_->write().unlink(parent, name, caller.thread_id);
  };
  if (Status status = remove(); !status) return done(std::move(status));
  if (!options_.durable_close()) {
    dirty_.wake();
    return done({});
  }
  urgent_->make_durable(nullptr, options_.durable_sync(), std::move(done));
}

void StoreImpl::remove_directory(ObjectId parent, std::string_view name, StatusCompletion done) {
  if (read_only_) return done(fail(Code::kReadOnly, "the mount is read-only"));
  if (Status status = tree_->write().remove_directory(parent, name); !status) return done(std::move(status));
  dirty_.wake();
  if (!options_.durable_close()) return done({});
  urgent_->make_durable(nullptr, options_.durable_sync(), std::move(done));
}

// --- link ---

void StoreImpl::link(ObjectId id, ObjectId parent, std::string_view name, const Caller& caller, Completion<Stat> done) {
  if (read_only_) return done(fail(Code::kReadOnly, "the mount is read-only"));
  ObjectPtr object;
  auto add = [&]() -> Status {
    Tree::Write tree = tree_->write();
    KVC_ASSIGN(object, tree.get(id));
    if (object->is_directory()) return fail(Code::kPermission, fmt::format("object {} is a directory", id.value));
    if (object->nlink == 0) return fail(Code::kNotFound, fmt::format("object {} was removed", id.value));
    KVC_TRY(tree.check_own(*object, fmt::format("object {}", id.value)));
    {
      const auto object_lock = object->lock();
      if (object->write_error) return std::unexpected(*object->write_error);
    }
    KVC_TRY(tree.check_new_name(parent, name));
    KVC_TRY(tree.directory_for_entry(parent));
    if (room_for_records_->is_full()) return room_for_records_->refuse(entry_text(parent, name));
    KVC_TRY(tree.give_name(parent, name, object));
    object->published = true;
    uint64_t size_bytes = 0;
    {
      const auto object_lock = object->lock();
      object->named_version = object->content_version;
      size_bytes = object->size_bytes;
    }
    accesses_->published(caller.thread_id, parent, name, id, object->origin, size_bytes);
    tree.change_links(object, +1);
    tree.touch_directory(parent);
    return {};
  };
  if (Status status = add(); !status) {
    if (object) tree_->forget_when_idle(object);
    return done(std::unexpected(std::move(status).error()));
  }
  dirty_.wake();
  if (!options_.durable_close()) return done(stat(id));
  urgent_->make_durable(object, options_.durable_sync(), [this, id, done = std::move(done)](Status status) mutable {
    if (!status) return done(std::unexpected(std::move(status).error()));
    done(stat(id));
  });
}

}  // namespace kvcachefs

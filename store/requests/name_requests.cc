#include "store/requests/name_requests.h"

#include <sys/stat.h>

#include <fmt/format.h>

#include "store/tree/writer_processes.h"

namespace kvcachefs {

// --- new entries ---

// Gives a new object its first name. Returns the answer of a lookup of it.
Result<Stat> NameRequests::new_directory_entry(ObjectId parent, std::string_view name, const ObjectPtr& object) {
  if (parts_.read_only) return fail(Code::kReadOnly, "the mount is read-only");
  if (auto gone = parts_.refusals.is_gone() ? parts_.refusals.lasting() : std::nullopt) return std::unexpected(*std::move(gone));
  Tree::Write tree = parts_.tree.write();
  KVC_TRY(tree.check_new_name(parent, name));
  KVC_ASSIGN(ObjectPtr directory, tree.directory_for_entry(parent));
  const Tree::ForgetAfter forget(tree, directory);
  if (parts_.room.is_full()) return parts_.room.refuse(entry_text(parent, name));
  // The targets of links can be long: the index shows that.
  const bool is_link = object->type_bits == S_IFLNK;
  if (!object->is_regular() && parts_.records.bodiless_have_their_part())
    return fail(Code::kNoSpace, entry_text(parent, name) + ": directories, links and empty files have their part of the capacity in the index; remove some");
  if (is_link && parts_.records.index_has_its_part())
    return fail(Code::kNoSpace, entry_text(parent, name) + ": links and attributes have their part of the capacity in the index; remove some");
  KVC_TRY(tree.make_entry(directory, name, object));
  const bool brief = tree.is_brief(parent, name, object->id);
  const auto object_lock = object->lock();
  Stat stat = tree.stat_of(*object);
  stat.brief = brief;
  return stat;
}

Result<Stat> NameRequests::make_directory(ObjectId parent, std::string_view name, uint32_t mode, const Caller& caller) {
  KVC_ASSIGN(Stat made, new_directory_entry(parent, name, parts_.new_objects.make((mode & 07777) | S_IFDIR, 0, caller)));
  parts_.accesses.directory_named(caller.thread_id, parent, name, made.id);
  parts_.probes.stored(caller.thread_id, parent, name);
  parts_.dirty.wake();
  return made;
}

Result<Stat> NameRequests::make_node(ObjectId parent, std::string_view name, uint32_t mode, uint32_t rdev,
                                     const Caller& caller) {
  if ((mode & S_IFMT) == 0) mode |= S_IFREG;
  const ObjectPtr object = parts_.new_objects.make(mode, rdev, caller);
  KVC_ASSIGN(Stat made, new_directory_entry(parent, name, object));
  parts_.probes.stored(caller.thread_id, parent, name);
  if (object->is_regular()) {  // not before it has its name: a lane passes over an object with neither name nor handle
    const auto lock = object->lock();
    parts_.changes.mark_content_dirty(object);  // no client is writing it
  }
  parts_.dirty.wake();
  return made;
}

Result<Stat> NameRequests::make_symlink(ObjectId parent, std::string_view name, std::string_view target,
                                        const Caller& caller) {
  if (target.empty() || target.size() >= 4096)
    return fail(Code::kNameTooLong, fmt::format("a link target of {} bytes; 1 to 4095", target.size()));
  ObjectPtr object = parts_.new_objects.make(0777 | S_IFLNK, 0, caller);
  object->size_bytes = target.size();
  object->base.size_bytes = target.size();
  object->base.version = 1;
  const ByteSpan bytes = as_bytes(target);
  object->base.inline_bytes.assign(bytes.begin(), bytes.end());
  KVC_ASSIGN(Stat made, new_directory_entry(parent, name, object));
  parts_.probes.stored(caller.thread_id, parent, name);
  parts_.dirty.wake();
  return made;
}

Result<std::string> NameRequests::read_symlink(ObjectId id) {
  auto target_of = [&](uint32_t type_bits, const Body& body) -> Result<std::string> {
    if (type_bits != S_IFLNK) return fail(Code::kInvalid, fmt::format("object {} is not a symbolic link", id.value));
    return std::string(as_text(body.inline_bytes));
  };
  if (ObjectPtr object = parts_.tree.find(id)) {
    const auto lock = object->lock();
    return target_of(object->type_bits, object->base);
  }
  KVC_ASSIGN(auto record, parts_.tree.read().record(id));
  if (!record) return fail(Code::kNotFound, fmt::format("object {} is gone", id.value));
  return target_of(record->attributes.mode & S_IFMT, record->body);
}

Result<std::pair<Stat, Handle*>> NameRequests::create(ObjectId parent, std::string_view name, uint32_t mode,
                                                      const OpenRequest& request, const Caller& caller) {
  ObjectPtr object = parts_.new_objects.make((mode & 07777) | S_IFREG, 0, caller);
  {
    const KnownProcess process(caller.thread_id);
    note_writer(*object, caller.thread_id);
  }
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
    parts_.changes.content_changed(object);
  }
  parts_.probes.stored(caller.thread_id, parent, name);
  ChainOrigin origin = parts_.accesses.created(caller.thread_id, parent, name, object->id, parts_.clock.monotonic_ns());
  object->origin = origin;
  {
    const uint64_t guessed_bytes = parts_.file_policy.guess_size(object->origin.stem, caller.thread_id);
    const auto lock = object->lock();
    object->size_key = object->origin.stem;
    parts_.file_policy.expect_size(*object, guessed_bytes);
  }
  auto entered = new_directory_entry(parent, name, object);
  if (!entered) {
    const auto lock = object->lock();
    object->handles = object->write_handles = object->unflushed_handles = 0;  // a lane drops it from the queue
    return std::unexpected(std::move(entered).error());
  }
  // The open that the thread was to repeat became this create.
  parts_.versions.end_repetition(caller);
  if (origin.announced) parts_.accesses.published(caller.thread_id, parent, name, object->id, origin, 0);  // it is written under its final name
  parts_.counters.open_handles.fetch_add(1, std::memory_order_relaxed);
  parts_.counters.opens.fetch_add(1, std::memory_order_relaxed);
  return std::pair{*std::move(entered), handle.release()};
}

// --- removal ---

void NameRequests::unlink(ObjectId parent, std::string_view name, const Caller& caller, StatusCompletion done) {
  if (parts_.read_only) return done(fail(Code::kReadOnly, "the mount is read-only"));
  auto remove = [&] {
    const KnownProcess process(caller.thread_id, parts_.tree.asks_for_process(parent, name));
    return parts_.tree.write().unlink(parent, name, caller.thread_id);
  };
  if (Status status = remove(); !status) return done(std::move(status));
  if (!parts_.options.durable_close()) {
    parts_.dirty.wake();
    return done({});
  }
  parts_.urgent.make_durable(nullptr, parts_.options.durable_sync(), std::move(done));
}

void NameRequests::remove_directory(ObjectId parent, std::string_view name, StatusCompletion done) {
  if (parts_.read_only) return done(fail(Code::kReadOnly, "the mount is read-only"));
  if (Status status = parts_.tree.write().remove_directory(parent, name); !status) return done(std::move(status));
  parts_.dirty.wake();
  if (!parts_.options.durable_close()) return done({});
  parts_.urgent.make_durable(nullptr, parts_.options.durable_sync(), std::move(done));
}

// --- link ---

void NameRequests::link(ObjectId id, ObjectId parent, std::string_view name, const Caller& caller, Completion<Stat> done) {
  if (parts_.read_only) return done(fail(Code::kReadOnly, "the mount is read-only"));
  ObjectPtr object;
  auto add = [&]() -> Status {
    Tree::Write tree = parts_.tree.write();
    KVC_ASSIGN(object, tree.get(id));
    const Tree::ForgetAfter forget(tree, object);
    if (object->is_directory()) return fail(Code::kPermission, fmt::format("object {} is a directory", id.value));
    if (object->nlink == 0) return fail(Code::kNotFound, fmt::format("object {} was removed", id.value));
    const bool is_of_another = id.is_foreign() || (object->temporary && !object->published && object->writer_thread != caller.thread_id);
    if (is_of_another && tree.lost_name_to(caller.thread_id, id))
      return fail(Code::kAbsentForNow, fmt::format("object {} is of another writer: another node took the name that this program's file had", id.value));
    KVC_TRY(tree.check_own(*object, fmt::format("object {}", id.value)));
    {
      const auto object_lock = object->lock();
      if (object->write_error) return std::unexpected(*object->write_error);
    }
    KVC_TRY(tree.check_new_name(parent, name));
    KVC_ASSIGN(ObjectPtr directory, tree.directory_for_entry(parent));
    const Tree::ForgetAfter forget_directory(tree, std::move(directory));
    if (parts_.room.is_full()) return parts_.room.refuse(entry_text(parent, name));
    KVC_TRY(tree.give_name(parent, name, object));
    object->published = true;
    uint64_t size_bytes = 0;
    {
      const auto object_lock = object->lock();
      object->named_version = object->content_version;
      size_bytes = object->size_bytes;
    }
    parts_.accesses.published(caller.thread_id, parent, name, id, object->origin, size_bytes);
    tree.change_links(object, +1);
    tree.touch_directory(parent);
    return {};
  };
  if (Status status = add(); !status) return done(std::unexpected(std::move(status).error()));
  parts_.dirty.wake();
  if (!parts_.options.durable_close()) return done(stat(id));
  parts_.urgent.make_durable(object, parts_.options.durable_sync(), [this, id, done = std::move(done)](Status status) mutable {
    if (!status) return done(std::unexpected(std::move(status).error()));
    done(stat(id));
  });
}

}  // namespace kvcachefs

#include "store/requests/rename_requests.h"

#include <memory>
#include <utility>

#include <fmt/format.h>

#include "store/base/limits.h"
#include "store/tree/writer_processes.h"

namespace kvcachefs {

Status RenameRequests::rename_now(Attempt& attempt) {
  Rename& rename = attempt.asked;
  if (rename.new_name.size() > kMaxNameBytes)
    return fail(Code::kNameTooLong, fmt::format("a name of {} bytes; at most {}", rename.new_name.size(), kMaxNameBytes));
  const KnownProcess process(rename.thread_id, parts_.tree.asks_for_process(rename.parent, rename.name));
  Tree::Write tree = parts_.tree.write();
  const Status resolved = tree.resolve_rename(rename);
  const bool is_another = resolved ? !rename.source || rename.source->id != attempt.waited_for : resolved.error().code == Code::kOtherNode;
  if (attempt.waited_for.valid() && is_another) return fail(Code::kNoSpace, rename.old_text() + ": no room for its file, which has lost the name while the call waited");
  KVC_TRY(resolved);
  if (!rename.source) return {};
  KVC_TRY(prepare_rename(tree, attempt));
  return tree.rename(rename);
}

// Checks that the body is whole, and that it will be journaled as it is now.
Status RenameRequests::prepare_rename(Tree::Write&, Attempt& attempt) {
  const ObjectPtr& source = attempt.asked.source;
  const bool is_lost = attempt.asked.was_lost;
  const auto lock = source->lock();
  if (source->write_error) return std::unexpected(*source->write_error);
  // A version whose record went to another version, or which no lane wrote while it had no name: its body is written anew.
  if (source->is_regular() && (is_lost && source->content_dirty() ? !source->sealing : !source->durable && !source->content_dirty())) {
    attempt.lacks_room = !parts_.changes.reserve_space(*source, source->size_bytes);
    if (attempt.lacks_room) return std::unexpected(parts_.writes.no_space(*source, source->size_bytes));
    parts_.changes.mark_content_dirty(source);
  }
  return {};
}

void RenameRequests::rename(ObjectId parent, std::string_view name, ObjectId new_parent, std::string_view new_name,
                            RenameMode mode, const Caller& caller, StatusCompletion done) {
  if (parts_.read_only) return done(fail(Code::kReadOnly, "the mount is read-only"));
  parts_.probes.stored(caller.thread_id, new_parent, new_name);
  Rename rename{parent, std::string(name), new_parent, std::string(new_name), mode, caller.thread_id};
  const auto forget = [this](const Rename& asked) {  // drops objects that were fetched for the rename and have not changed
    for (const ObjectPtr& object : asked.looked_at) parts_.tree.forget_when_idle(object);
  };
  auto finish = [this, forget](Rename asked, StatusCompletion reply) {
    auto last = std::make_shared<std::pair<Attempt, Status>>();
    const auto attempt = [this, forget, last, asked = std::move(asked)]() -> Status {
      const ObjectId waited_for = last->first.lacks_room ? last->first.asked.source->id : ObjectId{};
      last->first = {asked, false, waited_for};
      last->second = rename_now(last->first);
      if (!last->second || !last->first.asked.source) forget(last->first.asked);
      return last->first.lacks_room ? last->second : Status{};  // a write that failed for want of room is no reason to wait
    };
    parts_.space_waiters.with_room(attempt, [this, last, reply = std::move(reply)](const Status& waited) mutable {
      if (!waited || !last->second) return reply(waited ? std::move(last->second) : waited);
      parts_.dirty.wake();
      if (!parts_.options.durable_close()) return reply({});
      parts_.urgent.make_all_durable(std::move(last->first.asked.unsealed), parts_.options.durable_sync(), std::move(reply));
    });
  };
  if (!parts_.options.durable_close()) return finish(std::move(rename), std::move(done));

  // The body first: if it cannot be written, the old name and the object that it would replace stay as they are.
  const ObjectPtr source = object_to_rename(parent, name, caller);
  if (source) rename.looked_at.push_back(source);
  if (!source || !source->is_regular()) return finish(std::move(rename), std::move(done));
  parts_.urgent.make_durable(source, parts_.options.durable_sync(), [finish, forget, rename = std::move(rename), done = std::move(done)](Status status) mutable {
    if (!status) {
      forget(rename);
      return done(std::unexpected(std::move(status).error()));
    }
    finish(std::move(rename), std::move(done));
  });
}

// The object that the name means to the caller; null if there is none, or nothing of it was kept.
ObjectPtr RenameRequests::object_to_rename(ObjectId parent, std::string_view name, const Caller& caller) {
  const KnownProcess process(caller.thread_id, parts_.tree.asks_for_process(parent, name));
  Tree::Write tree = parts_.tree.write();
  auto found = tree.names().find(parent, name);
  if (!found) return nullptr;
  if (const auto lost = tree.lost_version(parent, name, *found, caller.thread_id)) return lost->object;
  if (!*found) return nullptr;
  ObjectId id = (*found)->child;
  if (tree.has_versions(parent, name)) id = tree.choose_version(*tree.names().dirty(parent, name), caller.thread_id);
  return tree.get(id).value_or(nullptr);
}

}  // namespace kvcachefs

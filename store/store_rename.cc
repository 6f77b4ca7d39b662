// Rename, as clients ask for it: what it needs of the body first, and when it is durable. What it does to names is done by the Tree.
#include <fmt/format.h>

#include "store/base/limits.h"
#include "store/store_impl.h"
#include "store/tree/rename.h"
#include "store/tree/writer_processes.h"

namespace kvcachefs {

Status StoreImpl::rename_now(Rename& rename) {
  if (rename.new_name.size() > kMaxNameBytes)
    return fail(Code::kNameTooLong, fmt::format("a name of {} bytes; at most {}", rename.new_name.size(), kMaxNameBytes));
  const KnownProcesses processes(tree_->writers_of(rename.parent, rename.name, rename.thread_id));
  Tree::Write tree = tree_->write();
  KVC_TRY(tree.resolve_rename(rename));
  if (!rename.source) return {};
  KVC_TRY(prepare_rename(tree, rename.source));
  return tree.rename(rename);
}

// The body is whole, or will be journaled as it is.
Status StoreImpl::prepare_rename(Tree::Write&, const ObjectPtr& source) {
  const auto lock = source->lock();
  if (source->write_error) return std::unexpected(*source->write_error);
  // A version whose record went to another: its body is written anew.
  if (!source->durable && source->is_regular() && !source->content_dirty()) {
    if (!changes_->reserve_space(*source, source->size_bytes)) return std::unexpected(no_space(*source, source->size_bytes));
    changes_->content_changed(source);
  }
  return {};
}

void StoreImpl::rename(ObjectId parent, std::string_view name, ObjectId new_parent, std::string_view new_name,
                       RenameMode mode, const Caller& caller, StatusCompletion done) {
  if (read_only_) return done(fail(Code::kReadOnly, "the mount is read-only"));
  probes_.stored(caller.thread_id, new_parent, new_name);
  Rename rename{parent, std::string(name), new_parent, std::string(new_name), mode, caller.thread_id};
  auto finish = [this](Rename asked, StatusCompletion reply) {
    if (Status status = rename_now(asked); !status) {
      for (const ObjectPtr& object : asked.looked_at) tree_->forget_when_idle(object);
      return reply(std::move(status));
    }
    dirty_.wake();
    if (!options_.durable_close()) return reply({});
    urgent_->make_all_durable(std::move(asked.unsealed), options_.durable_sync(), std::move(reply));
  };
  if (!options_.durable_close()) return finish(std::move(rename), std::move(done));

  // The body first: if it cannot be written the old name, and what it would replace, stay as they are.
  const ObjectPtr source = object_to_rename(parent, name, caller);
  if (!source || !source->is_regular()) return finish(std::move(rename), std::move(done));
  urgent_->make_durable(source, options_.durable_sync(), [finish, rename = std::move(rename), done = std::move(done)](Status status) mutable {
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

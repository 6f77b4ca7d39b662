// A temporary name that a peer's file took from a file of this node between its close and its rename: the writer's rename moves its own file.
#include <algorithm>
#include <utility>
#include <vector>

#include "store/tree/tree.h"
#include "store/tree/tree_times.h"
#include "store/tree/writer_processes.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kPartOfCapacity = 16, kPartOfMemory = 8;  // for the bytes of all such files

// Closed under a temporary name a moment ago, and not renamed yet.
bool will_be_renamed(const Object& object, int64_t now_ns) {
  if (!object.temporary || object.published || !object.is_regular() || object.locked.load(std::memory_order_relaxed)) return false;
  if (object.writer_thread == 0 || has_ended(object.writer_thread)) return false;
  const auto lock = object.lock();
  return !object.raw && !object.base.quarantined && !object.forgotten && object.last_write_ns != 0 && now_ns - object.last_write_ns < kAboutToRenameNs;
}

// The journal may have removed the object since it lost its name.
void note_record(const Index& index, Object& object) {
  const auto record = index.find_object_summary(object.id);
  if (record && !*record) object.durable = false;
}

}  // namespace

bool Tree::View::hides_version(ObjectId parent, std::string_view name, ObjectId seen) const {
  if (tree_->lost_.has_name(parent, name)) return true;
  if (!seen.is_foreign()) return false;
  const auto own = names().own_child(parent, name);
  return own && own->valid() && !own->is_foreign();
}

// A peer's file has the name now, or a peer removed it. A file that is kept has no link from now on, but stays in the table; that it has lost its last
// link is noted only once it is not kept any more.
void Tree::Write::lose_name(const ObjectPtr& object, ObjectId parent, std::string_view name, bool may_be_kept) {
  const Parts& parts = tree().parts_;
  LostVersions::Lost lost{.object = object, .parent = parent, .name = std::string(name), .bytes = 0, .until_ns = 0};
  const uint64_t most_bytes = parts.space.limit_bytes() / kPartOfCapacity, most_bytes_in_ram = parts.pool.limit_bytes() / kPartOfMemory;
  {
    const auto lock = object->lock();
    lost.bytes = object->size_bytes;
    lost.until_ns = object->last_write_ns + kAboutToRenameNs;
    lost.only_in_ram = object->content_dirty();  // no lane writes a file without a name
  }
  const bool fits = lost.bytes <= most_bytes && (!lost.only_in_ram || lost.bytes <= most_bytes_in_ram);
  if (!may_be_kept || object->nlink != 1 || !fits || !will_be_renamed(*object, parts.clock.monotonic_ns())) {
    change_links(object, -1);
    return forget_if_idle(object);
  }
  writer_process(*object);
  while (const auto older = tree().lost_.take_of(parent, name, object->writer_thread)) end_lost(older->object);
  {
    const auto lock = object->lock();
    object->nlink = 0;
  }
  tree().lost_.add(std::move(lost));
  while (const auto oldest = tree().lost_.take_excess(most_bytes, most_bytes_in_ram)) end_lost(oldest->object);
  tree().has_versions_ = true;
}

// `version` was taken from lost_: it loses its link for good.
void Tree::Write::end_lost(const ObjectPtr& version) {
  note_record(tree().parts_.index, *version);
  {
    const auto lock = version->lock();
    version->nlink = 1;
  }
  change_links(version, -1);
  forget_if_idle(version);
  forget_removed(version->id);
}

// The newest of the caller's thread, else of its process; but the file that the name means here goes first if it is as much the caller's.
ObjectPtr Tree::Write::lost_version(ObjectId parent, std::string_view name, const std::optional<Namespace::Found>& seen, uint32_t thread_id) {
  std::vector<ObjectPtr> versions = tree().lost_.of(parent, name);
  if (!seen || seen->child.is_foreign()) {  // a journaled file that a peer's hides still has its name
    const auto own = names().own_child(parent, name);
    const ObjectPtr hidden = own && own->valid() && !own->is_foreign() ? live(*own) : nullptr;
    if (hidden && will_be_renamed(*hidden, tree().parts_.clock.monotonic_ns())) versions.push_back(hidden);
  }
  if (versions.empty() || thread_id == 0) return nullptr;
  const uint32_t process = process_of(thread_id);
  const auto rank = [&](Object& object) { return object.writer_thread == thread_id ? 2 : writer_process(object) == process ? 1 : 0; };
  int best_rank = 0;
  if (seen && !seen->child.is_foreign()) {
    const NameState* const state = names().dirty(parent, name);
    if (const ObjectPtr named = live(state != nullptr ? choose_version(*state, thread_id) : seen->child)) best_rank = rank(*named);
  }
  ObjectPtr best;
  for (const ObjectPtr& version : versions) {
    if (rank(*version) <= best_rank) continue;
    best_rank = rank(*version);
    best = version;
  }
  if (best) note_record(tree().parts_.index, *best);
  return best;
}

// Gives it its link back, or, if it is hidden, takes its name. What peers have under the name stays.
void Tree::Write::take_lost(NameState& state, const ObjectPtr& version) {
  if (tree().lost_.take(version->id)) change_links(version, +1);
  else state.leave_to_peers();
}

}  // namespace kvcachefs

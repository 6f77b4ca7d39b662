// A temporary name that a peer's file took from a file of this node between its close and its rename: the writer's rename moves its own file.
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
  if (object.writer_thread == 0 || writer_has_ended(object)) return false;
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
  if (!seen.is_foreign() || !tree_->may_hide()) return false;
  const auto own = names().own_child(parent, name);
  return own && own->valid() && !own->is_foreign();
}

void Tree::note_may_hide() { may_hide_until_ns_ = parts_.clock.monotonic_ns() + kAboutToRenameNs; }

bool Tree::View::lost_name_to(uint32_t thread_id, ObjectId seen) const {
  for (const LostVersions::Lost* const lost : tree_->lost_.of_writer(thread_id)) {
    const NameState* const state = names().dirty(lost->parent, lost->name);
    if (state != nullptr && state->is_older_version(seen)) return true;
    const auto found = names().find(lost->parent, lost->name);
    if (found && *found && (*found)->child == seen) return true;
  }
  return false;
}

// A peer's file has the name now, or a peer removed it. A file that is kept has no link from now on, but stays in the table; that it has lost its last
// link is noted only once it is not kept any more.
void Tree::Write::lose_name(const ObjectPtr& object, ObjectId parent, std::string_view name, bool may_be_kept) {
  const Parts& parts = tree().parts_;
  LostVersions::Lost lost{.id = object->id, .object = object, .parent = parent, .name = std::string(name), .writer_thread = object->writer_thread,
                          .writer_process = object->writer_process};
  const uint64_t most_bytes = parts.space.limit_bytes() / kPartOfCapacity, most_bytes_in_ram = parts.pool.limit_bytes() / kPartOfMemory;
  {
    const auto lock = object->lock();
    lost.bytes = object->size_bytes;
    lost.until_ns = object->last_write_ns + kAboutToRenameNs;
    lost.only_in_ram = object->content_dirty();  // no lane writes a file without a name
  }
  const bool fits = lost.bytes <= most_bytes && (!lost.only_in_ram || lost.bytes <= most_bytes_in_ram);
  const bool is_wanted = may_be_kept && object->nlink == 1 && will_be_renamed(*object, parts.clock.monotonic_ns());
  if (is_wanted) {
    tree().has_versions_ = true;
    while (const auto older = tree().lost_.take_of(parent, name, object->writer_thread)) end_lost(*older);
  }
  if (!is_wanted || !fits) {
    change_links(object, -1);
    forget_if_idle(object);
    if (is_wanted) tree().lost_.give_up(std::move(lost));
  } else {
    const auto lock = object->lock();
    object->nlink = 0;
    tree().lost_.add(std::move(lost));
  }
  while (auto oldest = tree().lost_.take_excess(most_bytes, most_bytes_in_ram)) {
    end_lost(*oldest);
    tree().lost_.give_up(*std::move(oldest));
  }
}

// `lost` was taken from lost_: it loses its link for good.
void Tree::Write::end_lost(const LostVersions::Lost& lost) {
  const ObjectPtr& version = lost.object;
  if (!version) return;  // it has
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
std::optional<LostVersions::Lost> Tree::Write::lost_version(ObjectId parent, std::string_view name, const std::optional<Namespace::Found>& seen, uint32_t thread_id) {
  const std::vector<const LostVersions::Lost*> versions = tree().lost_.of(parent, name);
  ObjectPtr hidden;
  if (!seen || seen->child.is_foreign()) {  // a journaled file that a peer's hides still has its name
    const auto own = names().own_child(parent, name);
    hidden = own && own->valid() && !own->is_foreign() ? live(*own) : nullptr;
    if (hidden && !will_be_renamed(*hidden, tree().parts_.clock.monotonic_ns())) hidden = nullptr;
  }
  if ((versions.empty() && !hidden) || thread_id == 0) return std::nullopt;
  const uint32_t process = process_of(thread_id);
  const auto rank = [&](const auto& written) { return written.writer_thread == thread_id ? 2 : written.writer_process == process ? 1 : 0; };
  int best_rank = 0;
  if (seen && !seen->child.is_foreign()) {
    const NameState* const state = names().dirty(parent, name);
    if (const ObjectPtr named = live(state != nullptr ? choose_version(*state, thread_id) : seen->child)) best_rank = rank(*named);
  }
  std::optional<LostVersions::Lost> best;
  for (const LostVersions::Lost* const version : versions) {
    const int its_rank = rank(*version);
    if (its_rank <= best_rank) continue;
    best_rank = its_rank;
    best = *version;
  }
  if (hidden && rank(*hidden) > best_rank) best = LostVersions::Lost{.id = hidden->id, .object = hidden, .parent = parent, .name = std::string(name)};
  if (best && best->object) note_record(tree().parts_.index, *best->object);
  return best;
}

// Gives it its link back, or, if it is hidden, takes its name. What peers have under the name stays.
void Tree::Write::take_lost(NameState& state, const ObjectPtr& version) {
  const bool was_hidden = !tree().lost_.take(version->id);
  if (!was_hidden) change_links(version, +1);
  const bool is_free = !state.child.valid() && state.overridden.empty();  // else a client here has given the name anew, or removed what peers have
  if (was_hidden || is_free) state.leave_to_peers();
}

}  // namespace kvcachefs

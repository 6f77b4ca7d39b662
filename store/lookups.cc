#include "store/lookups.h"

#include <sys/stat.h>

#include <string>

#include <fmt/format.h>

#include "store/base/limits.h"
#include "store/tree/temporary_names.h"
#include "store/tree/writer_processes.h"

namespace kvcachefs {

// --- lookup ---

Result<Stat> Lookups::stat_entry(ObjectId parent, std::string_view name, ObjectId id) {
  // The kernel would answer later probes of the name by itself, and the Evictor could evict a file that a client was told of just then.
  if (parts_.evictor.gives_leases()) return fail(Code::kNotFound, {});
  const Tree::Read tree = parts_.tree.read();
  KVC_ASSIGN(auto found, tree.find_name(parent, name));
  const bool to_be_adopted = found && found->type_bits == S_IFDIR && found->child.is_foreign();  // by a lookup
  if (!found || found->child != id || to_be_adopted || tree.has_versions(parent, name) || tree.is_brief(parent, name, id))
    return fail(Code::kNotFound, entry_text(parent, name));
  if (found->type_bits == S_IFREG) parts_.peer_leases.listed(parent, id);
  return tree.stat(id);
}

Result<Stat> Lookups::lookup(ObjectId parent, std::string_view name, const Caller& caller) {
  if (name.size() > kMaxNameBytes)
    return fail(Code::kNameTooLong, fmt::format("a name of {} bytes; at most {}", name.size(), kMaxNameBytes));
  bool to_be_written = false;
  {
    Tree::Read tree = parts_.tree.read();
    const auto told = parts_.stale_opens.told(caller.thread_id);
    const bool unknown = caller.thread_id == 0 && parts_.stale_opens.unknown_was_told();
    const bool versions = unknown || told || tree.has_versions(parent, name) || tree.hides_version(parent, name, {});
    if (!versions) {
      KVC_ASSIGN(auto found, tree.find_name(parent, name));
      if (found && found->type_bits == S_IFDIR && found->child.is_foreign()) {
        tree.unlock();
        KVC_TRY(parts_.tree.write().adopt_directory(parent, name, parts_.new_objects.next_id()));
        return lookup(parent, name, caller);
      }
      const ObjectId child = found ? found->child : ObjectId{};
      Result<Stat> stat = found ? tree.stat(child) : fail(Code::kNotFound, entry_text(parent, name));
      if (stat) stat->brief = tree.is_brief(parent, name, child) || (child.is_foreign() && parts_.stale_opens.has_stand_in(parent, name));
      const auto body = tree.body_probed_by(parent, name, found.has_value());
      if (stat && found->type_bits == S_IFREG) stat->brief |= will_be_told(parent, child, caller);
      if (body) parts_.peer_leases.told(parent, body->id);
      tree.unlock();  // others wait for the tracker's lock, too
      // A temporary name that is absent is about to be created, and says nothing of chunks.
      const bool teaches = found || !parts_.tree.temporary_names().is_expected_to_be_renamed(parent, name);
      if (teaches)
        parts_.accesses.probed(caller.thread_id, parent, name, child, found && found->type_bits == S_IFDIR,
                               stat ? stat->size_bytes : 0, parts_.clock.monotonic_ns());
      if (teaches && body) parts_.accesses.probed(caller.thread_id, parent, body->name, body->id, false, body->size_bytes, parts_.clock.monotonic_ns());
      if (!found) parts_.probes.missed(caller.thread_id, parent, name, why_absent(parent, name));
      else if (found->type_bits != S_IFDIR) parts_.probes.hit();
      return stat;
    }
    to_be_written = told && told->truncate;
  }
  const KnownProcess process(caller.thread_id, to_be_written || parts_.tree.asks_for_process(parent, name));
  Tree::Write tree = parts_.tree.write();
  KVC_ASSIGN(auto found, tree.find_name(parent, name));
  StaleOpens::Released released;
  const auto told = parts_.stale_opens.note_lookup(caller.thread_id, parent, name, found.has_value(), released);
  tree.let_go(released);
  if (found && found->type_bits == S_IFDIR && found->child.is_foreign()) {
    KVC_ASSIGN(const ObjectPtr directory, tree.adopt_directory(parent, name, parts_.new_objects.next_id()));
    found->child = directory->id;
  }
  if (!found) {
    // For its writer: else the kernel would refuse its rename without asking. A repeated open is to create the name anew.
    if (const auto lost = told ? std::nullopt : tree.lost_version(parent, name, found, caller.thread_id); lost && lost->object) {
      KVC_ASSIGN(Stat stat, tree.stat(lost->id));
      stat.nlink = 1;
      stat.brief = true;
      return stat;
    }
    const Code absent = tree.hides_version(parent, name, {}) ? Code::kAbsentForNow : Code::kNotFound;  // its writer's rename is to come here
    tree.unlock();
    parts_.probes.missed(caller.thread_id, parent, name, why_absent(parent, name));
    return fail(absent, entry_text(parent, name));
  }
  const NameState* state = tree.names().dirty(parent, name);
  const bool several = state != nullptr && !state->older_versions.empty();
  ObjectId chosen = several ? tree.choose_version_to_read(*state, caller.thread_id) : found->child;
  bool brief = several;
  if (told && told->truncate) {
    // The thread wants to write the name anew while another thread is writing it: it gets a version of its own.
    auto own = parts_.versions.version_to_write(tree, parent, name, chosen, caller);
    if (!own) {  // the open ends with this error: the thread's next open is no repetition of it
      released.clear();
      if (auto repeated = parts_.stale_opens.looked_again(caller.thread_id, nullptr); repeated.kept) released.push_back(std::move(repeated.kept));
      tree.let_go(released);
      return std::unexpected(std::move(own).error());
    }
    brief |= (*own)->id != chosen;
    chosen = (*own)->id;
  }
  if (found->type_bits == S_IFREG) brief |= will_be_told(parent, chosen, caller);
  if (found->type_bits != S_IFDIR) parts_.probes.hit();
  tree.keep_for_repeat(parts_.stale_opens, caller.thread_id, chosen);
  KVC_ASSIGN(Stat stat, tree.stat(chosen));
  if (told && told->open && !S_ISREG(stat.mode) && !S_ISDIR(stat.mode) && !S_ISLNK(stat.mode)) {  // the kernel opens a FIFO by itself: the call is over here
    if (auto over = parts_.stale_opens.looked_again(caller.thread_id, nullptr); over.kept) tree.let_go({std::move(over.kept)});
  }
  if (told && told->truncate && chosen.is_foreign() && S_ISREG(stat.mode)) {
    stat.id = parts_.stale_opens.stand_in(caller.thread_id, {parts_.new_objects.next_id(), chosen, parent, std::string(name)});
    brief = true;
  }
  stat.brief = brief || tree.is_brief(parent, name, chosen) || (chosen.is_foreign() && parts_.stale_opens.has_stand_in(parent, name));
  stat.to_be_written = told && told->write;
  return stat;
}

// Caller holds the lock of the Tree. As Evictor::will_be_told(); leases files of other nodes as well.
bool Lookups::will_be_told(ObjectId parent, ObjectId id, const Caller& caller) {
  parts_.peer_leases.told(parent, id);
  return parts_.evictor.will_be_told(id, caller.thread_id);
}

// Call with no lock held.
ProbeCounts::Miss Lookups::why_absent(ObjectId parent, std::string_view name) const {
  if (parts_.tree.has_quarantined()) {
    const Tree::Read tree = parts_.tree.read();
    if (const auto found = tree.names().find(parent, name); found && *found) return ProbeCounts::Miss::kQuarantined;
  }
  return parts_.evictor.was_evicted(parent, name) ? ProbeCounts::Miss::kEvicted : ProbeCounts::Miss::kNeverSeen;
}

// --- listing ---

Result<std::vector<DirectoryItem>> Lookups::list(ObjectId directory, uint64_t after, size_t limit) {
  const Tree::Read tree = parts_.tree.read();
  auto listed = tree.list(directory, after, limit);
  if (!listed) return listed;
  for (const DirectoryItem& item : *listed)
    if (item.type_bits == S_IFREG) parts_.peer_leases.listed(directory, item.id);
  if (!parts_.evictor.gives_leases()) return listed;
  std::vector<ObjectId> files;
  for (const DirectoryItem& item : *listed)
    if (item.type_bits == S_IFREG) files.push_back(item.id);
  parts_.evictor.will_be_listed(files);
  return listed;
}

}  // namespace kvcachefs

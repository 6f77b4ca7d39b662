// What clients are told of names, and what is promised by telling them: lookup, and entries of listings.
#include <sys/stat.h>

#include <fmt/format.h>

#include "store/base/limits.h"
#include "store/store_impl.h"
#include "store/tree/writer_processes.h"

namespace kvcachefs {

// --- lookup ---

Result<Stat> StoreImpl::stat_entry(ObjectId parent, std::string_view name, ObjectId id) {
  const Tree::Read tree = tree_->read();
  KVC_ASSIGN(auto found, tree.find_name(parent, name));
  const bool to_be_adopted = found && found->type_bits == S_IFDIR && found->child.is_foreign();  // by a lookup
  if (!found || found->child != id || to_be_adopted || tree.has_versions(parent, name) || tree.is_one_of_several(id))
    return fail(Code::kNotFound, entry_text(parent, name));
  KVC_ASSIGN(Stat stat, tree.stat(id));
  // The kernel would answer probes of it unheard: what they were told of could be evicted at once.
  stat.brief = evictor_->gives_leases();
  evictor_->will_be_listed({&id, 1});
  if (found->type_bits == S_IFREG) peer_leases_.listed(parent, id);
  return stat;
}

Result<Stat> StoreImpl::lookup(ObjectId parent, std::string_view name, const Caller& caller) {
  if (name.size() > kMaxNameBytes)
    return fail(Code::kNameTooLong, fmt::format("a name of {} bytes; at most {}", name.size(), kMaxNameBytes));
  bool to_be_written = false;
  {
    Tree::Read tree = tree_->read();
    const auto told = stale_opens_.told(caller.thread_id);
    const bool unknown = caller.thread_id == 0 && stale_opens_.unknown_was_told();
    const bool versions = unknown || told || tree.has_versions(parent, name);
    if (!versions) {
      KVC_ASSIGN(auto found, tree.find_name(parent, name));
      if (found && found->type_bits == S_IFDIR && found->child.is_foreign()) {
        tree.unlock();
        KVC_TRY(tree_->write().adopt_directory(parent, name, new_objects_->next_id()));
        return lookup(parent, name, caller);
      }
      const ObjectId child = found ? found->child : ObjectId{};
      Result<Stat> stat = found ? tree.stat(child) : fail(Code::kNotFound, entry_text(parent, name));
      if (stat) stat->brief = tree.is_one_of_several(child);
      const auto body = tree.body_probed_by(parent, name, found.has_value());
      if (stat && found->type_bits == S_IFREG) stat->brief |= will_be_told(parent, child, caller);
      if (body) peer_leases_.told(parent, body->id);
      tree.unlock();  // others wait for the tracker's lock, too
      accesses_->probed(caller.thread_id, parent, name, child, found && found->type_bits == S_IFDIR,
                          stat ? stat->size_bytes : 0, clock_.monotonic_ns());
      if (body) accesses_->probed(caller.thread_id, parent, body->name, body->id, false, body->size_bytes, clock_.monotonic_ns());
      if (!found) probes_.missed(caller.thread_id, parent, name, why_absent(parent, name));
      else if (found->type_bits != S_IFDIR) probes_.hit();
      return stat;
    }
    to_be_written = told && told->truncate;
  }
  const KnownProcesses processes(tree_->writers_of(parent, name, caller.thread_id, to_be_written));
  Tree::Write tree = tree_->write();
  KVC_ASSIGN(auto found, tree.find_name(parent, name));
  StaleOpens::Released released;
  const auto told = stale_opens_.note_lookup(caller.thread_id, parent, name, found.has_value(), released);
  tree.let_go(released);
  if (found && found->type_bits == S_IFDIR && found->child.is_foreign()) {
    KVC_ASSIGN(const ObjectPtr directory, tree.adopt_directory(parent, name, new_objects_->next_id()));
    found->child = directory->id;
  }
  if (!found) {
    tree.unlock();
    probes_.missed(caller.thread_id, parent, name, why_absent(parent, name));
    return fail(Code::kNotFound, entry_text(parent, name));
  }
  const NameState* state = tree.names().dirty(parent, name);
  const bool several = state != nullptr && !state->older_versions.empty();
  ObjectId chosen = several ? tree.choose_version_to_read(*state, caller.thread_id) : found->child;
  bool brief = several;
  if (told && told->truncate) {
    // It wants to write the name anew while another is at it: it gets a version of its own.
    auto own = versions_->version_to_write(tree, parent, name, chosen, told->object, caller);
    if (!own) {  // the open ends with that: what the thread opens next is no repetition of it
      released.clear();
      if (auto repeated = stale_opens_.looked_again(caller.thread_id, nullptr); repeated.kept) released.push_back(std::move(repeated.kept));
      tree.let_go(released);
      return std::unexpected(std::move(own).error());
    }
    brief |= (*own)->id != chosen;
    chosen = (*own)->id;
  }
  if (found->type_bits == S_IFREG) brief |= will_be_told(parent, chosen, caller);
  if (found->type_bits != S_IFDIR) {
    probes_.hit();
    tree.keep_for_repeat(stale_opens_, caller.thread_id, chosen);
  }
  KVC_ASSIGN(Stat stat, tree.stat(chosen));
  // A rename moves the kernel's entry, with its time-out, to the new name, where another version may be meant.
  stat.brief = brief || tree.is_one_of_several(chosen);
  stat.to_be_written = told && told->write;
  return stat;
}

// Under the lock of the Tree. As Evictor says; what other nodes have is leased as well.
bool StoreImpl::will_be_told(ObjectId parent, ObjectId id, const Caller& caller) {
  peer_leases_.told(parent, id);
  return evictor_->will_be_told(id, caller.thread_id);
}

// No lock held.
ProbeCounts::Miss StoreImpl::why_absent(ObjectId parent, std::string_view name) const {
  if (tree_->has_quarantined()) {
    const Tree::Read tree = tree_->read();
    if (const auto found = tree.names().find(parent, name); found && *found) return ProbeCounts::Miss::kQuarantined;
  }
  return evictor_->was_evicted(parent, name) ? ProbeCounts::Miss::kEvicted : ProbeCounts::Miss::kNeverSeen;
}

// --- listing ---

Result<std::vector<DirectoryItem>> StoreImpl::list(ObjectId directory, uint64_t after, size_t limit) {
  const Tree::Read tree = tree_->read();
  auto listed = tree.list(directory, after, limit);
  if (!listed) return listed;
  for (const DirectoryItem& item : *listed)
    if (item.type_bits == S_IFREG) peer_leases_.listed(directory, item.id);
  if (!evictor_->gives_leases()) return listed;
  std::vector<ObjectId> files;
  for (const DirectoryItem& item : *listed)
    if (item.type_bits == S_IFREG) files.push_back(item.id);
  evictor_->will_be_listed(files);
  return listed;
}

}  // namespace kvcachefs

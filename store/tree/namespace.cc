#include "store/tree/namespace.h"

#include <sys/stat.h>

#include <algorithm>

#include <fmt/format.h>

namespace kvcachefs {

std::string entry_text(ObjectId parent, std::string_view name) {
  return fmt::format("'{}' in directory {}", name, parent.value);
}

const NameState* Namespace::dirty(ObjectId parent, std::string_view name) const {
  auto directory = directories_.find(parent);
  if (directory == directories_.end()) return nullptr;
  auto found = directory->second.find(LocalName{name_cookie(name), std::string(name)});
  return found == directory->second.end() ? nullptr : &found->second;
}

Result<std::optional<Namespace::Found>> Namespace::find(ObjectId parent, std::string_view name) const {
  if (const NameState* state = dirty(parent, name)) {
    if (state->left_to_peers) return found_of_peers(parent, name);
    if (!state->child.valid()) return std::nullopt;
    return Found{state->child, state->type_bits};
  }
  KVC_ASSIGN(auto entry, view_.find_name(parent, name));
  if (!entry) return std::nullopt;
  return Found{entry->child, entry->type_bits};
}

Result<std::optional<Namespace::Found>> Namespace::found_of_peers(ObjectId parent, std::string_view name) const {
  KVC_ASSIGN(const auto entry, view_.find_name_of_peers(parent, name));
  if (!entry) return std::nullopt;
  return Found{entry->child, entry->type_bits};
}

Result<ObjectId> Namespace::own_child(ObjectId parent, std::string_view name) const {
  if (const NameState* state = dirty(parent, name)) return state->child;
  KVC_ASSIGN(const auto entry, index_.find_name(parent, name));
  return entry ? entry->child : ObjectId{};
}

Result<Namespace::Edit> Namespace::edit(ObjectId parent, std::string_view name) { return edit_name(parent, name, false); }
Result<Namespace::Edit> Namespace::edit_own(ObjectId parent, std::string_view name) { return edit_name(parent, name, true); }

Result<Namespace::Edit> Namespace::edit_name(ObjectId parent, std::string_view name, bool own) {
  LocalName key{name_cookie(name), std::string(name)};
  Directory& directory = directories_[parent];
  auto found = directory.find(key);
  if (found == directory.end()) {
    auto entry = index_.find_name(parent, name);
    auto seen = !entry || own || view_.is_alone() ? entry : view_.find_name(parent, name);
    if (!entry || !seen) {
      if (directory.empty()) directories_.erase(parent);
      return std::unexpected(entry ? std::move(seen).error() : std::move(entry).error());
    }
    NameState fresh;
    if (*entry) fresh.durable = (*entry)->child;
    if (*seen) {
      fresh.child = (*seen)->child;
      fresh.type_bits = (*seen)->type_bits;
    }
    if (*entry && (*entry)->type_bits != S_IFDIR && fresh.child != fresh.durable) fresh.hidden = fresh.durable;
    found = directory.emplace(key, std::move(fresh)).first;
  }
  NameState& state = found->second;
  if (state.left_to_peers && !own) {
    KVC_ASSIGN(const auto seen, found_of_peers(parent, name));
    state.left_to_peers = false;
    if (seen) {
      state.child = seen->child;
      state.type_bits = seen->type_bits;
    }
  }
  state.evicted = false;
  list_pending(state, {parent, std::move(key)});
  return Edit(this, &state);
}

Result<bool> Namespace::adopt(ObjectId parent, std::string_view name, ObjectId child, uint32_t type_bits) {
  if (dirty(parent, name) != nullptr) return false;
  KVC_ASSIGN(const auto own, index_.find_name(parent, name));
  if (own) return false;
  DirtyName adopted{parent, {name_cookie(name), std::string(name)}};
  NameState& state = directories_[parent][adopted.key];
  state.child = child;
  state.type_bits = type_bits;
  park(std::move(adopted), child);
  note_mentions(state);
  return true;
}

std::optional<DirtyName> Namespace::parked_name(ObjectId child) const {
  const auto first = parked_.lower_bound({child, {}});
  if (first == parked_.end() || first->first != child) return std::nullopt;
  return first->second;
}

void Namespace::forget_mentions(NameState& state) {
  for (ObjectId id : state.mentioned)
    if (auto found = mentions_.find(id); found != mentions_.end() && --found->second == 0) mentions_.erase(found);
  state.mentioned.clear();
}

// An object that lost the name may get it back from a client: nothing that was decided about it before counts then.
void Namespace::end_edit(NameState& state) {
  if (state.child != state.taken_later && !state.is_older_version(state.taken_later)) state.taken_later = {};
  if (state.child != state.written) state.written = {};
  note_mentions(state);
}

void Namespace::note_mentions(NameState& state) {
  forget_mentions(state);
  state.mentioned = state.older_versions;
  if (state.child.valid()) state.mentioned.push_back(state.child);
  if (state.durable.valid() && state.durable != state.child) state.mentioned.push_back(state.durable);
  for (ObjectId id : state.mentioned) ++mentions_[id];
}

Result<std::vector<NameEntry>> Namespace::list(ObjectId parent, uint64_t after, size_t limit) const {
  return merge(parent, after, limit, [&](uint64_t from) { return view_.list(parent, from, limit); },
               [&](std::string_view name) { return found_of_peers(parent, name); });
}

Result<std::vector<NameEntry>> Namespace::list_own(ObjectId parent, uint64_t after, size_t limit) const {
  return merge(parent, after, limit, [&](uint64_t from) { return index_.list(parent, from, limit); },
               [](std::string_view) -> Result<std::optional<Found>> { return std::nullopt; });
}

std::optional<std::string> Namespace::own_name(ObjectId parent, uint64_t cookie, ObjectId child) const {
  auto page = list_own(parent, cookie - 1, 1);
  if (!page) return std::nullopt;
  for (NameEntry& entry : *page)
    if (entry.cookie == cookie && entry.child == child) return std::move(entry.name);
  return std::nullopt;
}

Result<std::vector<NameEntry>> Namespace::merge(ObjectId parent, uint64_t after, size_t limit, const JournaledFrom& journaled_from,
                                                const LeftToPeers& left_to_peers) const {
  auto changed = directories_.find(parent);
  if (changed == directories_.end()) return journaled_from(after);

  const Directory& directory = changed->second;
  std::vector<NameEntry> merged;
  uint64_t cut = after;  // everything up to here was looked at
  while (merged.empty() && cut != UINT64_MAX) {  // a range of removed names yields nothing: look further
    const uint64_t from = cut;
    KVC_ASSIGN(auto indexed, journaled_from(from));
    cut = indexed.empty() ? UINT64_MAX : indexed.back().cookie;
    auto first = directory.upper_bound(LocalName{from, std::string(256, '\xff')});
    auto end = first;
    for (size_t taken = 0; end != directory.end() && end->first.cookie <= cut; ++end, ++taken)
      if (taken >= limit && end->first.cookie != std::prev(end)->first.cookie) {
        cut = std::prev(end)->first.cookie;
        break;
      }
    for (auto& entry : indexed) {
      if (entry.cookie > cut) break;
      if (!directory.contains(LocalName{entry.cookie, entry.name})) merged.push_back(std::move(entry));
    }
    for (auto each = first; each != end; ++each) {
      std::optional<Found> now;
      if (each->second.child.valid()) now = Found{each->second.child, each->second.type_bits};
      if (each->second.left_to_peers) {
        KVC_ASSIGN(now, left_to_peers(each->first.name));
      }
      if (now) merged.push_back({each->first.name, now->child, now->type_bits, each->first.cookie});
    }
  }
  std::sort(merged.begin(), merged.end(), [](const NameEntry& a, const NameEntry& b) {
    return a.cookie != b.cookie ? a.cookie < b.cookie : a.name < b.name;
  });
  return merged;
}

std::vector<DirtyName> Namespace::take_pending() {
  std::vector<DirtyName> taken = std::move(pending_);
  pending_.clear();
  for (const DirtyName& name : taken)
    if (NameState* known = state(name)) known->pending = false;
  return taken;
}

void Namespace::put_back_pending(DirtyName name) {
  NameState* const known = state(name);
  if (known == nullptr) return;
  known->on_its_way = {};
  list_pending(*known, std::move(name));
}

void Namespace::list_pending(NameState& state, DirtyName name) {
  if (state.pending) return;
  if (state.parked.valid()) parked_.erase({std::exchange(state.parked, {}), name});
  state.pending = true;
  pending_.push_back(std::move(name));
}

void Namespace::park(DirtyName name, ObjectId child) {
  NameState* known = state(name);
  if (known == nullptr || known->pending) return;
  known->parked = child;
  parked_.emplace(child, std::move(name));
}

void Namespace::unpark(ObjectId child) {
  for (auto first = parked_.lower_bound({child, {}}); first != parked_.end() && first->first == child;) {
    const DirtyName name = first->second;
    ++first;  // advance before this entry is erased
    put_back_pending(name);
  }
}

NameState* Namespace::state(const DirtyName& name) {
  auto directory = directories_.find(name.parent);
  if (directory == directories_.end()) return nullptr;
  auto found = directory->second.find(name.key);
  return found == directory->second.end() ? nullptr : &found->second;
}

bool Namespace::may_be_journaled(ObjectId parent, std::string_view name, ObjectId child) const {
  const NameState* const known = dirty(parent, name);
  return known != nullptr && known->on_its_way == child && known->durable != child;
}

void Namespace::settle(const DirtyName& name, ObjectId durable) {
  auto directory = directories_.find(name.parent);
  if (directory == directories_.end()) return;
  auto found = directory->second.find(name.key);
  if (found == directory->second.end()) return;
  NameState& state = found->second;
  state.durable = durable;
  state.on_its_way = {};
  if (!state.pending) state.overridden.clear();
  const ObjectId own = state.child.is_foreign() ? ObjectId{} : state.child;
  if (own != durable || state.has_versions() || state.pending || state.parked.valid()) return note_mentions(state);
  forget_mentions(state);
  directory->second.erase(found);
  if (directory->second.empty()) directories_.erase(directory);
}

Namespace::Overridden Namespace::overridden() const {
  Overridden found;
  for (const auto& [parent, directory] : directories_)
    for (const auto& [key, state] : directory)
      for (const ObjectId child : state.overridden) found.emplace(child, key.name);
  return found;
}

void Namespace::for_each_dirty(const std::function<void(const NameState&)>& visit) const {
  for (const auto& [parent, directory] : directories_)
    for (const auto& [key, state] : directory) visit(state);
}

void Namespace::for_each_dirty_of(ObjectId durable, const std::function<void(const NameState&)>& visit) const {
  if (!mentions_.contains(durable)) return;
  for (const auto& [parent, directory] : directories_)
    for (const auto& [key, state] : directory)
      if (state.durable == durable) visit(state);
}

void Namespace::for_each_dirty_with(ObjectId version, const std::function<void(const NameState&)>& visit) const {
  if (!mentions_.contains(version)) return;
  for (const auto& [parent, directory] : directories_)
    for (const auto& [key, state] : directory)
      if (state.child == version || state.is_older_version(version)) visit(state);
}

void Namespace::for_each_dirty_in(ObjectId parent, const std::function<void(const NameState&)>& visit) const {
  auto directory = directories_.find(parent);
  if (directory == directories_.end()) return;
  for (const auto& [key, state] : directory->second) visit(state);
}

void Namespace::for_each_with_versions(const std::function<void(const DirtyName&, NameState&)>& visit) {
  std::erase_if(several_, [&](const DirtyName& name) {
    NameState* known = state(name);
    if (known == nullptr || !known->has_versions()) return true;
    visit(name, *known);
    note_mentions(*known);
    return !known->has_versions();
  });
}

}  // namespace kvcachefs

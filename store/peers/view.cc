#include "store/peers/view.h"

#include <sys/stat.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "store/peers/removal.h"
#include "store/peers/tree_walk.h"

namespace kvcachefs {
namespace {

constexpr size_t kNamesInPage = 256;

}  // namespace

NameView::NameView(Part own, DirectoryClasses& classes, bool shared) : shared_(shared), classes_(classes) { parts_.push_back(std::move(own)); }

void NameView::set_peers(std::vector<Part> peers) {
  parts_.resize(1);
  std::ranges::move(peers, std::back_inserter(parts_));
  std::sort(parts_.begin() + 1, parts_.end(), [](const Part& a, const Part& b) { return a.ordinal < b.ordinal; });
  ++as_of_;
}

Status NameView::change(uint32_t ordinal, const Batch& batch, const std::function<Status()>& work) {
  const Part* const part = part_of(ObjectId::make(ordinal, 0, 0));
  if (part == nullptr || is_alone()) return work();
  const auto changes = changes_directories(batch, *part);
  if (!changes || *changes) ++as_of_;
  return work();
}

const Part* NameView::part_of(ObjectId id) const {
  const auto found = std::ranges::find(parts_, id.node_ordinal(), &Part::ordinal);
  return found == parts_.end() ? nullptr : &*found;
}

std::optional<uint32_t> NameView::ordinal_of(std::string_view node) const {
  const auto found = std::ranges::find(parts_, node, &Part::node);
  if (found == parts_.end()) return std::nullopt;
  return found->ordinal;
}

// --- directories ---

// Each with its node's ordinal: only here are the roots of the nodes told apart.
std::vector<ObjectId> NameView::roots() const {
  std::vector<ObjectId> ids;
  for (const Part& part : parts_) ids.push_back(ObjectId::make(part.ordinal, kRootId.epoch(), kRootId.number()));
  return ids;
}

Result<std::vector<ObjectId>> NameView::members(ObjectId directory) const {
  if (is_alone()) return std::vector{directory};
  if (directory == kRootId) return roots();
  // Goes up to a directory that is known, or the root, then down again; no recursion, for a tree may be deeper than the stack.
  std::vector<std::pair<ObjectId, DirectoryClasses::Directory>> outdated;
  std::vector<ObjectId> found;
  for (ObjectId at = directory;;) {
    if (at == kRootId) {
      found = roots();
      break;
    }
    auto known = classes_.find(at);
    if (!known && !at.is_foreign()) {  // its place is not known: it has the names this node gave in it
      found = {at};
      break;
    }
    if (!known || outdated.size() > classes_.count())
      return fail(Code::kStale, fmt::format("directory {} is to be looked up again", at.value));
    if (known->as_of == as_of_) {
      found = std::move(known->members);
      break;
    }
    const ObjectId above = known->parent;
    outdated.emplace_back(at, std::move(*known));
    at = above;
  }
  while (!outdated.empty()) {
    const auto [at, known] = std::move(outdated.back());
    outdated.pop_back();
    auto resolved = resolve(at, known, found);
    if (!resolved && resolved.error().code == Code::kNotFound)
      for (const auto& [below, its] : outdated)
        if (!its.held.valid()) classes_.drop(below);
    KVC_TRY(resolved);
    found = std::move(*resolved);
  }
  return found;
}

// The current members of the class, given its parent's members `above`.
Result<std::vector<ObjectId>> NameView::resolve(ObjectId directory, const DirectoryClasses::Directory& known, const std::vector<ObjectId>& above) const {
  KVC_ASSIGN(auto found, directories_at(above, known.name));
  leave_out_what_lies_in_itself(known.parent, found);
  if (known.held.valid()) {  // the held directory replaces any that this node's index still has there
    std::erase_if(found, [](ObjectId id) { return !id.is_foreign(); });
    found.insert(found.begin(), known.held);
  }
  if (found.empty()) {
    classes_.drop(directory);
    return fail(Code::kNotFound, fmt::format("directory {} is gone", directory.value));
  }
  // Another directory has its path now.
  if (classes_.note(known.parent, known.name, found, as_of_) != directory)
    return fail(Code::kNotFound, fmt::format("directory {} is gone", directory.value));
  return found;
}

// No daemon makes a directory that lies within itself, but a peer's journal may say so, and this node would make each level of it. If the
// directory returns only after more levels than are checked, clients see those levels over and over.
void NameView::leave_out_what_lies_in_itself(ObjectId parent, std::vector<ObjectId>& directories) const {
  constexpr int kLevels = 64;
  const auto is_foreign = [](ObjectId id) { return id.is_foreign(); };
  for (int level = 0; level < kLevels && std::ranges::any_of(directories, is_foreign); ++level) {
    const auto above = parent == kRootId ? std::nullopt : classes_.find(parent);
    const std::vector<ObjectId> members = parent == kRootId ? roots() : above ? above->members : std::vector<ObjectId>();
    std::erase_if(directories, [&](ObjectId id) { return id.is_foreign() && std::ranges::find(members, id) != members.end(); });
    if (!above) return;
    parent = above->parent;
  }
}

void NameView::hold_new(ObjectId parent, std::string_view name, ObjectId id) {
  if (!shared_) return;
  classes_.hold(parent, name, id, id);
  classes_.note(parent, name, {id}, as_of_);
}

Result<bool> NameView::has_foreign_member(ObjectId directory) const {
  KVC_ASSIGN(const auto ids, members(directory));
  return std::ranges::any_of(ids, [](ObjectId id) { return id.node_ordinal() != 0; });
}

Result<std::optional<ObjectId>> NameView::own_member(ObjectId directory) const {
  KVC_ASSIGN(const auto ids, members(directory));
  if (ids.front().node_ordinal() != 0) return std::nullopt;
  return ids.front();
}

Result<std::vector<ObjectId>> NameView::directories_at(const std::vector<ObjectId>& members, std::string_view name) const {
  KVC_ASSIGN(const auto there, live(members, name));
  std::vector<ObjectId> ids;
  for (const Live& each : there)
    if (is_directory(each.entry)) ids.push_back(id_here(each.part->ordinal, each.entry.child));
  return ids;
}

// --- names ---

Result<bool> NameView::is_hidden(const Part& part, ObjectId directory, const NameEntry& entry) const {
  for (const Part& by : parts_) {
    if (&by == &part) continue;
    KVC_ASSIGN(const bool removed, is_removed(by, part, directory, entry));
    if (!removed) continue;
    if (&part != &own() || !own_has_) return true;
    KVC_ASSIGN(const bool has, own_has_(directory, entry));
    return !has;
  }
  return false;
}

Result<std::vector<NameView::Live>> NameView::live(const std::vector<ObjectId>& members, std::string_view name) const {
  std::vector<Live> found;
  for (const ObjectId member : members) {
    const Part* const part = part_of(member);
    if (part == nullptr) continue;
    const ObjectId directory = id_there(member);
    KVC_ASSIGN(auto entry, part->index->find_name(directory, name));
    if (!entry) continue;
    KVC_ASSIGN(const bool hidden, is_hidden(*part, directory, *entry));
    if (!hidden) found.push_back({part, directory, std::move(*entry)});
  }
  return found;
}

Result<std::optional<NameEntry>> NameView::find_name(ObjectId directory, std::string_view name) const {
  if (is_alone()) {
    KVC_ASSIGN(auto entry, own().index->find_name(directory, name));
    if (shared_ && entry && is_directory(*entry)) classes_.note(directory, name, {entry->child}, as_of_);  // for when there are peers
    return entry;
  }
  KVC_ASSIGN(const auto ids, members(directory));
  if (const auto known = classes_.find_as_of(directory, name, as_of_))
    return NameEntry{std::string(name), *known, S_IFDIR, name_cookie(name)};
  KVC_ASSIGN(const auto there, live(ids, name));
  return there.empty() ? leased_.find(ids, name) : choose(directory, there, true);
}

Result<std::optional<NameEntry>> NameView::find_name_of_peers(ObjectId directory, std::string_view name) const {
  if (is_alone()) return std::nullopt;
  KVC_ASSIGN(const auto ids, members(directory));
  KVC_ASSIGN(auto there, live(ids, name));
  std::erase_if(there, [this](const Live& each) { return each.part == &own(); });
  return there.empty() ? leased_.find(ids, name) : choose(directory, there, true);
}

// What clients see where these bindings are. `note`: clients know the directory by this id from now on.
Result<std::optional<NameEntry>> NameView::choose(ObjectId directory, const std::vector<Live>& live, bool note) const {
  if (live.empty()) return std::nullopt;
  std::vector<ObjectId> directories;
  for (const Live& each : live)
    if (is_directory(each.entry)) directories.push_back(id_here(each.part->ordinal, each.entry.child));
  const bool none = directories.empty();
  leave_out_what_lies_in_itself(directory, directories);
  if (directories.empty() && !none) return std::nullopt;
  if (none) {
    KVC_ASSIGN(const Live* const chosen, last_born(live));
    NameEntry entry = chosen->entry;
    entry.child = id_here(chosen->part->ordinal, entry.child);
    return entry;
  }
  NameEntry entry = live.front().entry;
  entry.type_bits = S_IFDIR;
  if (note) {
    entry.child = classes_.note(directory, entry.name, std::move(directories), as_of_);
  } else {
    entry.child = classes_.id_of(directory, entry.name, directories);
  }
  return entry;
}

// The binding born last. A quarantined object, or one that is missing, gives way to one that can be served.
Result<const NameView::Live*> NameView::last_born(const std::vector<Live>& live) const {
  const Live* last = &live.front();
  if (live.size() == 1) return last;
  std::optional<std::tuple<bool, int64_t, std::string_view>> greatest;
  for (const Live& each : live) {
    KVC_ASSIGN(const auto object, each.part->index->find_object_summary(each.entry.child));
    if (!object) continue;
    const auto rank = std::tuple(!object->body.quarantined, object->attributes.btime_ns, std::string_view(each.part->node));
    if (greatest && rank < *greatest) continue;
    greatest = rank;
    last = &each;
  }
  return last;
}

Result<std::vector<NameEntry>> NameView::list(ObjectId directory, uint64_t after, size_t limit) const {
  if (is_alone()) return own().index->list(directory, after, limit);
  KVC_ASSIGN(const auto ids, members(directory));
  std::vector<NameEntry> merged;
  for (bool more = true; more && merged.empty();) {  // a page of hidden names yields nothing: look further
    more = false;
    uint64_t covered = UINT64_MAX;
    std::map<std::pair<uint64_t, std::string>, std::vector<Live>> names;
    for (const ObjectId member : ids) {
      const Part* const part = part_of(member);
      if (part == nullptr) continue;
      KVC_ASSIGN(auto page, part->index->list(id_there(member), after, limit));
      if (page.size() >= limit && !page.empty()) {
        more = true;
        covered = std::min(covered, page.back().cookie);
      }
      for (NameEntry& entry : page) {
        if (entry.cookie > covered) break;
        KVC_ASSIGN(const bool hidden, is_hidden(*part, id_there(member), entry));
        std::pair key(entry.cookie, entry.name);
        if (!hidden) names[std::move(key)].push_back({part, id_there(member), std::move(entry)});
      }
    }
    for (NameEntry& entry : leased_.list(ids, after, covered)) names[std::pair(entry.cookie, std::move(entry.name))];
    for (const auto& [key, there] : names) {
      if (key.first > covered) break;
      KVC_ASSIGN(auto entry, choose(directory, there, false));
      if (there.empty()) entry = leased_.find(ids, key.second);
      if (entry) merged.push_back(std::move(*entry));
    }
    after = covered;
  }
  return merged;
}

Result<bool> NameView::is_empty(ObjectId directory) const {
  KVC_ASSIGN(const auto first, list(directory, 0, is_alone() ? 1 : kNamesInPage));
  return first.empty();
}

Result<std::vector<NameView::Binding>> NameView::bindings(ObjectId directory, std::string_view name) const {
  KVC_ASSIGN(const auto ids, members(directory));
  std::vector<Binding> found;
  for (const ObjectId member : ids) {
    const Part* const part = part_of(member);
    if (part == nullptr) continue;
    KVC_ASSIGN(auto entry, part->index->find_name(id_there(member), name));
    if (!entry) continue;
    KVC_ASSIGN(const bool hidden, is_hidden(*part, id_there(member), *entry));
    entry->child = id_here(part->ordinal, entry->child);
    found.push_back({member, std::move(*entry), hidden});
  }
  return found;
}

// --- leased names ---

Result<bool> NameView::has_name(uint32_t ordinal, const UnnameRecord& name) const {
  const Part* const part = peer(ordinal);
  if (part == nullptr) return false;
  KVC_ASSIGN(const auto entry, part->index->find_name(name.parent, name.name));
  if (!entry || entry->child != name.child || is_directory(*entry)) return false;
  KVC_ASSIGN(const bool hidden, is_hidden(*part, name.parent, *entry));
  return !hidden;
}

NameView::LeasedPlaces NameView::leased_places() const {
  LeasedPlaces places;
  std::unordered_map<ObjectId, std::vector<ObjectId>> members_of;
  leased_.for_each([&](const std::string& name, const LeasedNames::Lease& lease) {
    const auto [known, is_new] = members_of.try_emplace(lease.directory);
    if (is_new && lease.directory.valid()) known->second = members(lease.directory).value_or(std::vector<ObjectId>());
    std::vector<ObjectId>& ids = known->second;
    if (ids.empty()) places[ObjectId{}].emplace(name, lease.child);  // the class is not known: it may be in any directory
    for (const ObjectId member : ids)
      if (member != lease.member) places[member].emplace(name, lease.child);
    places[lease.member].emplace(name, lease.child);
  });
  return places;
}

// --- objects ---

Result<std::optional<ObjectRecord>> NameView::find_object(ObjectId id) const { return read(id, &Index::find_object); }
Result<std::optional<ObjectRecord>> NameView::find_object_summary(ObjectId id) const { return read(id, &Index::find_object_summary); }

bool NameView::has_quarantined(uint32_t ordinal) const {
  const Part* const part = peer(ordinal);
  return part != nullptr && part->index && part->index->totals().quarantined > 0;
}

bool NameView::is_quarantined_there(ObjectId id) const {
  if (!id.is_foreign() || !has_quarantined(id.node_ordinal())) return false;
  const auto& known = part_of(id)->quarantined;
  if (known && !known->may_contain(id_there(id))) return false;
  const auto object = part_of(id)->index->find_object_summary(id_there(id));
  return object && *object && (*object)->body.quarantined;
}

Result<std::optional<ObjectRecord>> NameView::read(ObjectId id, Read how) const {
  if (is_alone()) return ((*own().index).*how)(id);
  if (id == kRootId) return read_directory(id, roots(), how);
  if (classes_.find(id)) {
    auto ids = members(id);
    if (!ids && ids.error().code == Code::kNotFound) return std::nullopt;
    KVC_TRY(ids);
    return read_directory(id, *ids, how);
  }
  const Part* const part = part_of(id);
  if (part == nullptr && id.node_ordinal() != kClassOrdinal) return std::nullopt;
  std::optional<ObjectRecord> object;
  if (part != nullptr) {
    KVC_ASSIGN(object, ((*part->index).*how)(id_there(id)));
    if (!object) return std::nullopt;
  }
  if (!object || S_ISDIR(object->attributes.mode)) return fail(Code::kStale, fmt::format("directory {} is to be looked up again", id.value));
  std::string given_by;
  show_attributes(*part, *object, given_by);
  object->id = id;
  object->body.place = place_here(part->ordinal, object->body.place);
  return object;
}

Result<std::optional<ObjectRecord>> NameView::read_directory(ObjectId id, const std::vector<ObjectId>& members, Read how) const {
  std::optional<ObjectRecord> shown;
  std::string shown_by;
  int64_t mtime_ns = INT64_MIN;
  for (const ObjectId member : members) {
    const Part* const part = part_of(member);
    if (part == nullptr) continue;
    KVC_ASSIGN(auto object, ((*part->index).*how)(id_there(member)));
    if (!object) continue;
    std::string given_by;
    show_attributes(*part, *object, given_by);
    mtime_ns = std::max(mtime_ns, object->attributes.mtime_ns);
    if (shown && !counts_more(object->attributes, given_by, shown->attributes, shown_by)) continue;
    shown = std::move(object);
    shown_by = std::move(given_by);
  }
  if (!shown) return std::nullopt;
  shown->id = id;
  shown->attributes.mtime_ns = mtime_ns;
  if (members.size() > 1 && id != kRootId) shown->nlink = 1;
  return shown;
}

// Shows the attributes that other nodes gave the object, until its node has taken them over.
void NameView::show_attributes(const Part& part, ObjectRecord& object, std::string& given_by) const {
  given_by = part.node;
  for (const Part& by : parts_) {
    if (&by == &part) continue;
    const Attributes* const given = by.statements->attributes(part.node, part.statements->seen(by.node), object.id);
    if (given == nullptr || ((given->mode ^ object.attributes.mode) & S_IFMT) != 0) continue;
    if (!counts_more(*given, by.node, object.attributes, given_by)) continue;
    object.attributes = *given;
    given_by = by.node;
  }
}

Result<std::optional<SuccessorsRecord>> NameView::find_successors(ObjectId id) const {
  const Part* const part = part_of(id);
  if (part == nullptr) return std::nullopt;
  KVC_ASSIGN(auto row, part->index->find_successors(id_there(id)));
  if (!row) return std::nullopt;
  return successors_here(part->ordinal, std::move(*row));
}

// Whether classes of directories may have other members after the batch.
Result<bool> NameView::changes_directories(const Batch& batch, const Part& part) const {
  const bool spoken_of = std::ranges::any_of(parts_, [&part](const Part& by) {
    return by.node != part.node && by.statements->speaks_of(part.node, part.statements->seen(by.node));
  });
  std::unordered_set<ObjectId> made;
  const auto is_one = [&](ObjectId id) -> Result<bool> {
    if (made.contains(id)) return true;
    KVC_ASSIGN(const auto object, part.index->find_object_summary(id));
    return object && S_ISDIR(object->attributes.mode);
  };
  for (const Record& record : batch.records) {
    if (std::holds_alternative<SeenRecord>(record) || is_answered_statement(record)) return true;
    if (const auto* put = std::get_if<PutRecord>(&record); put != nullptr && S_ISDIR(put->object.attributes.mode)) made.insert(put->object.id);
    const auto* name = std::get_if<NameRecord>(&record);
    const auto* gone = std::get_if<UnnameRecord>(&record);
    if (name == nullptr && gone == nullptr) continue;
    if (spoken_of) return true;  // a directory in which no name is left may become hidden
    KVC_ASSIGN(const bool changes, is_one(name != nullptr ? name->child : gone->child));
    if (changes) return true;
    if (name == nullptr) continue;
    KVC_ASSIGN(const auto before, part.index->find_name(name->parent, name->name));
    if (before && S_ISDIR(before->type_bits)) return true;
  }
  return false;
}

}  // namespace kvcachefs

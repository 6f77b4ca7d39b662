#include "store/index/directory_audit.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>

namespace kvcachefs {

namespace {
constexpr size_t kListed = 1000;  // names read per call
constexpr std::string_view kNamelessPrefix = ".kvcachefs-nameless-";  // its names are given and taken in one batch, to remove an object

bool has_subdirectories(const ObjectRecord& directory) { return directory.nlink > 2; }
}  // namespace

void DirectoryAudit::begin() {
  put_.clear();
  names_.clear();
  parents_.clear();
  named_.clear();
  unnamed_.clear();
}

void DirectoryAudit::put(const ObjectRecord& object) { put_[object.id] = S_ISDIR(object.attributes.mode); }

Result<bool> DirectoryAudit::is_directory(ObjectId id) const {
  if (id == kRootId) return true;
  if (const auto put = put_.find(id); put != put_.end()) return put->second;
  KVC_ASSIGN(const auto row, index_.find_object_summary(id));
  return row && S_ISDIR(row->attributes.mode);
}

Result<bool> DirectoryAudit::is_known(ObjectId id) const {
  if (id == kRootId || put_.contains(id)) return true;
  KVC_ASSIGN(const auto row, index_.find_object_summary(id));
  return row.has_value();
}

// What the name leads to so far; no child: the name is free.
Result<DirectoryAudit::Holder> DirectoryAudit::holder(const Spot& spot) const {
  if (const auto changed = names_.find(spot); changed != names_.end()) return changed->second;
  KVC_ASSIGN(const auto entry, index_.find_name(spot.first, spot.second));
  if (!entry) return Holder{};
  return Holder{entry->child, S_ISDIR(entry->type_bits)};
}

Result<bool> DirectoryAudit::has_names_in(ObjectId directory) const {
  if (parents_.contains(directory)) return true;
  KVC_ASSIGN(const bool empty, index_.is_empty(directory));
  return !empty;
}

Result<int> DirectoryAudit::names_before(ObjectId directory) const {
  if (named_.contains(directory)) return 1;
  if (unnamed_.contains(directory)) return 0;
  KVC_ASSIGN(const auto row, index_.find_object_summary(directory));
  return row && row->nlink > 0 ? 1 : 0;
}

Result<DirectoryAudit::Suspect*> DirectoryAudit::suspect(ObjectId directory) {
  const auto known = suspects_.find(directory);
  if (known != suspects_.end()) return &known->second;
  Suspect suspect;
  KVC_ASSIGN(suspect.names, names_before(directory));
  if (const auto first = named_.find(directory); first != named_.end()) suspect.given.push_back(first->second);
  return &suspects_.emplace(directory, std::move(suspect)).first->second;
}

Status DirectoryAudit::gave(ObjectId directory, const Spot& spot) {
  if (!suspects_.contains(directory)) {
    KVC_ASSIGN(const int names, names_before(directory));
    KVC_ASSIGN(const bool in_use, has_names_in(directory));
    if (names == 0 && !in_use) {
      named_.emplace(directory, spot);
      return {};
    }
  }
  KVC_ASSIGN(Suspect* const found, suspect(directory));
  ++found->names;
  found->given.push_back(spot);
  return {};
}

Status DirectoryAudit::lost(ObjectId directory, const Spot& spot) {
  if (!suspects_.contains(directory)) {
    KVC_ASSIGN(const bool in_use, has_names_in(directory));
    if (!in_use) {
      named_.erase(directory);
      unnamed_.insert(directory);
      return {};
    }
  }
  KVC_ASSIGN(Suspect* const found, suspect(directory));
  --found->names;
  if (!spot.second.starts_with(kNamelessPrefix)) found->taken.push_back(spot);
  return {};
}

Status DirectoryAudit::name(const NameRecord& record) {
  // As in the index: a name of an unknown child, or in an unknown directory, is ignored.
  KVC_ASSIGN(const bool child_known, is_known(record.child));
  KVC_ASSIGN(const bool parent_known, is_known(record.parent));
  if (!child_known || !parent_known) return {};
  Spot spot{record.parent, record.name};
  KVC_ASSIGN(const Holder before, holder(spot));
  KVC_ASSIGN(const bool directory, is_directory(record.child));
  if (before.child != record.child) {
    if (directory) KVC_TRY(gave(record.child, spot));
    if (before.is_directory) KVC_TRY(lost(before.child, spot));
  }
  parents_.insert(record.parent);
  names_[std::move(spot)] = {record.child, directory};
  return {};
}

Status DirectoryAudit::unname(const UnnameRecord& record) {
  Spot spot{record.parent, record.name};
  KVC_ASSIGN(const Holder before, holder(spot));
  if (before.child != record.child) return {};
  if (before.is_directory) KVC_TRY(lost(record.child, spot));
  names_[std::move(spot)] = {};
  return {};
}

// --- repairs ---

Status DirectoryAudit::settle(const Repair& repair) {
  begin();
  // In the order of ids, so that every replay of the same journals ends with the same tree.
  for (auto suspects = std::exchange(suspects_, {}); auto& [directory, suspect] : suspects)
    KVC_TRY(settle(directory, std::move(suspect), repair));
  return {};
}

Status DirectoryAudit::settle(ObjectId directory, Suspect suspect, const Repair& repair) {
  KVC_ASSIGN(const auto row, index_.find_object_summary(directory));
  if (!row) return {};
  std::vector<Spot> given;  // and still there
  std::set<Spot> seen;
  for (Spot& spot : suspect.given) {
    KVC_ASSIGN(const auto entry, index_.find_name(spot.first, spot.second));
    if (entry && entry->child == directory && seen.insert(spot).second) given.push_back(std::move(spot));
  }
  const bool has_older = suspect.names > static_cast<int>(given.size());  // that name is not known here, and valid
  bool named = has_older;
  for (const Spot& spot : given) {
    std::string why;
    if (named) {
      why = "a directory has one name";
    } else {
      KVC_ASSIGN(const bool below, lies_below(spot.first, directory));
      if (below) why = "a directory does not lie below itself";
    }
    if (why.empty())
      named = true;
    else
      KVC_TRY(repair(UnnameRecord{spot.first, spot.second, directory}, why));
  }
  return named ? Status{} : restore(directory, suspect.taken, repair);
}

Status DirectoryAudit::restore(ObjectId directory, const std::vector<Spot>& taken, const Repair& repair) {
  KVC_ASSIGN(const bool empty, index_.is_empty(directory));
  if (empty) return {};
  for (auto spot = taken.rbegin(); spot != taken.rend(); ++spot) {
    const auto& [parent, name] = *spot;
    KVC_ASSIGN(const auto row, index_.find_object_summary(parent));
    KVC_ASSIGN(const auto entry, index_.find_name(parent, name));
    if (entry || !row || !S_ISDIR(row->attributes.mode) || (parent != kRootId && row->nlink == 0)) continue;
    KVC_ASSIGN(const bool below, lies_below(parent, directory));
    if (!below) return repair(NameRecord{parent, name, directory}, "files are in a directory that was removed");
  }
  return {};
}

// Returns true also if the search would take too long.
Result<bool> DirectoryAudit::lies_below(ObjectId directory, ObjectId ancestor) {
  std::vector<ObjectId> open = {ancestor};
  std::unordered_set<ObjectId> seen = {ancestor};
  while (!open.empty()) {
    const ObjectId here = open.back();
    open.pop_back();
    if (here == directory) return true;
    KVC_ASSIGN(const auto row, index_.find_object_summary(here));
    if (!row || !has_subdirectories(*row)) continue;
    for (uint64_t after = 0;;) {
      KVC_ASSIGN(const auto entries, index_.list(here, after, kListed));
      if (entries.empty()) break;
      if (steps_left_ < entries.size()) return true;
      steps_left_ -= entries.size();
      for (const NameEntry& entry : entries)
        if (S_ISDIR(entry.type_bits) && seen.insert(entry.child).second) open.push_back(entry.child);
      after = entries.back().cookie;
    }
  }
  return false;
}

}  // namespace kvcachefs

#include "store/peers/directory_classes.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

namespace kvcachefs {
namespace {

uint64_t path_hash(ObjectId parent, std::string_view name) {
  return std::hash<ObjectId>{}(parent) * 0x9e3779b97f4a7c15ULL ^ std::hash<std::string_view>{}(name);
}

bool share_one(const std::vector<ObjectId>& a, const std::vector<ObjectId>& b) {
  return std::ranges::any_of(a, [&b](ObjectId id) { return std::ranges::find(b, id) != b.end(); });
}

}  // namespace

DirectoryClasses::Entry* DirectoryClasses::entry(ObjectId id) {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : &found->second;
}

DirectoryClasses::Paths::const_iterator DirectoryClasses::path(ObjectId parent, std::string_view name) const {
  const auto [first, last] = paths_.equal_range(path_hash(parent, name));
  const auto found = std::find_if(first, last, [&](const auto& each) {
    const Directory& directory = entries_.at(each.second).directory;
    return directory.parent == parent && directory.name == name;
  });
  return found == last ? paths_.end() : found;
}

std::optional<DirectoryClasses::Directory> DirectoryClasses::find(ObjectId id) {
  std::lock_guard lock(mutex_);
  const Entry* const found = entry(id);
  if (found == nullptr) return std::nullopt;
  by_age_.splice(by_age_.begin(), by_age_, found->age);
  return found->directory;
}

std::optional<ObjectId> DirectoryClasses::find_as_of(ObjectId parent, std::string_view name, uint64_t as_of) {
  std::lock_guard lock(mutex_);
  const auto known = path(parent, name);
  if (known == paths_.end()) return std::nullopt;
  const Entry& found = entries_.at(known->second);
  if (found.directory.as_of != as_of) return std::nullopt;
  by_age_.splice(by_age_.begin(), by_age_, found.age);
  return known->second;
}

ObjectId DirectoryClasses::id_of(ObjectId parent, std::string_view name, const std::vector<ObjectId>& members) const {
  std::lock_guard lock(mutex_);
  const ObjectId id = choose_id(path(parent, name), members);
  return id.valid() ? id : members.front();
}

ObjectId DirectoryClasses::choose_id(Paths::const_iterator known, const std::vector<ObjectId>& members) const {
  const ObjectId now = known == paths_.end() ? ObjectId{} : known->second;
  if (now.valid() && share_one(entries_.at(now).directory.members, members)) return now;
  const auto free = std::ranges::find_if(members, [&](ObjectId id) { return id == now || !entries_.contains(id); });
  return free == members.end() ? ObjectId{} : *free;
}

ObjectId DirectoryClasses::note(ObjectId parent, std::string_view name, std::vector<ObjectId> members, uint64_t as_of) {
  std::lock_guard lock(mutex_);
  const auto known = path(parent, name);
  ObjectId id = choose_id(known, members);
  if (!id.valid()) id = ObjectId::make(kClassOrdinal, 0, ++last_own_id_);
  if (known != paths_.end() && !share_one(entries_.at(known->second).directory.members, members))
    erase(known->second);  // another directory has that path now
  if (entry(id) == nullptr) insert(id, {parent, std::string(name), {}, 0, {}});
  Entry& noted = entries_.at(id);
  noted.directory.members = std::move(members);
  noted.directory.as_of = as_of;
  by_age_.splice(by_age_.begin(), by_age_, noted.age);
  make_room(id);
  return id;
}

void DirectoryClasses::drop(ObjectId id) {
  std::lock_guard lock(mutex_);
  if (entry(id) != nullptr) erase(id);
}

void DirectoryClasses::hold(ObjectId parent, std::string_view name, ObjectId id, ObjectId member) {
  std::lock_guard lock(mutex_);
  if (const auto known = path(parent, name); known != paths_.end() && known->second != id) erase(known->second);
  if (Entry* const known = entry(id)) {
    move(id, *known, parent, name);
  } else {
    insert(id, {parent, std::string(name), {member}, 0, {}});
  }
  Directory& directory = entries_.at(id).directory;
  directory.as_of = 0;  // members are to be worked out anew: other nodes may have the directory, too
  if (!std::exchange(directory.held, member).valid()) use(id);
  make_room(id);
}

void DirectoryClasses::release(ObjectId id) {
  std::lock_guard lock(mutex_);
  Entry* const known = entry(id);
  if (known == nullptr || !std::exchange(known->directory.held, ObjectId{}).valid()) return;
  known->directory.as_of = 0;
  unuse(id);
}

void DirectoryClasses::pin(ObjectId id) {
  std::lock_guard lock(mutex_);
  use(id);
}

void DirectoryClasses::unpin(ObjectId id) {
  std::lock_guard lock(mutex_);
  unuse(id);
}

size_t DirectoryClasses::count() const {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

void DirectoryClasses::use(ObjectId id) { ++uses_[id]; }

void DirectoryClasses::unuse(ObjectId id) {
  if (const auto known = uses_.find(id); known != uses_.end() && --known->second == 0) uses_.erase(known);
}

void DirectoryClasses::insert(ObjectId id, Directory directory) {
  paths_.emplace(path_hash(directory.parent, directory.name), id);
  use(directory.parent);
  by_age_.push_front(id);
  entries_.emplace(id, Entry{std::move(directory), by_age_.begin()});
}

void DirectoryClasses::erase(ObjectId id) {
  const Entry& gone = entries_.at(id);
  if (gone.directory.held.valid()) unuse(id);
  paths_.erase(path(gone.directory.parent, gone.directory.name));
  unuse(gone.directory.parent);
  by_age_.erase(gone.age);
  entries_.erase(id);
}

void DirectoryClasses::move(ObjectId id, Entry& entry, ObjectId parent, std::string_view name) {
  Directory& directory = entry.directory;
  if (directory.parent == parent && directory.name == name) return;
  paths_.erase(path(directory.parent, directory.name));
  unuse(directory.parent);
  directory.parent = parent;
  directory.name = name;
  paths_.emplace(path_hash(parent, name), id);
  use(parent);
}

void DirectoryClasses::make_room(ObjectId keep) {
  for (size_t looks = entries_.size(); entries_.size() > most_ && looks > 0; --looks) {
    const ObjectId id = by_age_.back();
    if (id != keep && !uses_.contains(id)) {
      erase(id);
    } else {
      by_age_.splice(by_age_.begin(), by_age_, std::prev(by_age_.end()));
    }
  }
}

}  // namespace kvcachefs

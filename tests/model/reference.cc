#include "tests/model/reference.h"

#include <algorithm>
#include <set>

namespace kvcachefs::testing {

namespace {

bool lies_in(const Entity* inner, const Entity* outer) {
  for (; inner != nullptr; inner = inner->parent)
    if (inner == outer) return true;
  return false;
}

void drop(const EntityPtr& entity, const EntityPtr& directory, int64_t start) {
  if (entity->is_directory()) {
    entity->nlink = 0;
    entity->parent = nullptr;
    --directory->nlink;
  } else {
    --entity->nlink;
    entity->ctime.since(start);
  }
}

void moved(const EntityPtr& entity, const EntityPtr& from, const EntityPtr& to, int64_t start) {
  entity->ctime.since(start);
  if (!entity->is_directory()) return;
  entity->parent = to.get();
  --from->nlink;
  ++to->nlink;
}

}  // namespace

Reference::Reference() : root_(std::make_shared<Entity>()) {
  root_->id = kRootId;
  root_->mode = S_IFDIR | 0755;
  root_->nlink = 2;
}

EntityPtr Reference::find(const EntityPtr& directory, const std::string& name) {
  auto found = directory->names.find(name);
  return found == directory->names.end() ? nullptr : found->second;
}

EntityPtr Reference::add(const EntityPtr& directory, const std::string& name, uint32_t mode, int64_t start) {
  auto entity = std::make_shared<Entity>();
  entity->mode = mode;
  if (directory->mode & S_ISGID) {
    entity->gid = directory->gid;
    if (entity->is_directory()) entity->mode |= S_ISGID;
  }
  entity->nlink = entity->is_directory() ? 2 : 1;
  entity->atime.since(start);
  entity->btime.since(start);
  entity->changed(start);
  directory->names[name] = entity;
  directory->changed(start);
  if (entity->is_directory()) {
    ++directory->nlink;
    entity->parent = directory.get();
  }
  return entity;
}

void Reference::link(const EntityPtr& entity, const EntityPtr& directory, const std::string& name, int64_t start) {
  directory->names[name] = entity;
  directory->changed(start);
  ++entity->nlink;
  entity->ctime.since(start);
}

Code Reference::check_new(const EntityPtr& directory, const std::string& name) {
  if (name.size() > 255) return Code::kNameTooLong;
  return find(directory, name) ? Code::kExists : kGood;
}

Code Reference::check_unlink(const EntityPtr& directory, const std::string& name) {
  EntityPtr entity = find(directory, name);
  if (!entity) return Code::kNotFound;
  return entity->is_directory() ? Code::kIsDirectory : kGood;
}

Code Reference::check_rmdir(const EntityPtr& directory, const std::string& name) {
  EntityPtr entity = find(directory, name);
  if (!entity) return Code::kNotFound;
  if (!entity->is_directory()) return Code::kNotDirectory;
  return entity->names.empty() ? kGood : Code::kNotEmpty;
}

Code Reference::check_rename(const EntityPtr& from, const std::string& name, const EntityPtr& to,
                             const std::string& new_name, RenameMode mode) {
  if (new_name.size() > 255) return Code::kNameTooLong;
  EntityPtr source = find(from, name);
  EntityPtr target = find(to, new_name);
  if (!source) return Code::kNotFound;
  if (mode == RenameMode::kNoReplace) return target ? Code::kExists : kGood;
  if (mode == RenameMode::kExchange) return target ? kGood : Code::kNotFound;
  if (!target || target == source) return kGood;
  if (source->is_directory() && !target->is_directory()) return Code::kNotDirectory;
  if (!source->is_directory() && target->is_directory()) return Code::kIsDirectory;
  return target->is_directory() && !target->names.empty() ? Code::kNotEmpty : kGood;
}

void Reference::unlink(const EntityPtr& directory, const std::string& name, int64_t start) {
  drop(find(directory, name), directory, start);
  directory->names.erase(name);
  directory->changed(start);
}

void Reference::rmdir(const EntityPtr& directory, const std::string& name, int64_t start) {
  unlink(directory, name, start);
}

void Reference::rename(const EntityPtr& from, const std::string& name, const EntityPtr& to, const std::string& new_name,
                       RenameMode mode, int64_t start) {
  EntityPtr source = find(from, name);
  EntityPtr target = find(to, new_name);
  if (source == target && mode != RenameMode::kExchange) return;  // two names of one file
  if (mode == RenameMode::kExchange) {
    from->names[name] = target;
    moved(target, to, from, start);
  } else {
    if (target) drop(target, to, start);
    from->names.erase(name);
  }
  to->names[new_name] = source;
  moved(source, from, to, start);
  from->changed(start);
  to->changed(start);
}

bool Reference::rename_is_possible(const EntityPtr& from, const std::string& name, const EntityPtr& to,
                                   const std::string& new_name, RenameMode mode) {
  EntityPtr source = find(from, name);
  EntityPtr target = find(to, new_name);
  if (source && source->is_directory() && lies_in(to.get(), source.get())) return false;
  if (target && target->is_directory() && lies_in(from.get(), target.get())) return false;
  return mode != RenameMode::kExchange || source != target;
}

std::vector<EntityPtr> Reference::reachable() const {
  std::vector<EntityPtr> all{root_};
  std::set<const Entity*> seen{root_.get()};
  for (size_t i = 0; i < all.size(); ++i) {
    const EntityPtr each = all[i];
    for (const auto& [name, child] : each->names)
      if (seen.insert(child.get()).second) all.push_back(child);
  }
  return all;
}

std::vector<EntityPtr> Reference::directories() const {
  std::vector<EntityPtr> all = reachable();
  std::erase_if(all, [](const EntityPtr& entity) { return !entity->is_directory(); });
  return all;
}

}  // namespace kvcachefs::testing

// Random changes of attributes and extended attributes.
#include <algorithm>

#include <fmt/format.h>

#include "tests/model/random_client.h"
#include "tests/model/random_client_wait.h"

namespace kvcachefs::testing {

void RandomClient::change_attributes() {
  auto all = reference_.reachable();
  EntityPtr entity = all[below(all.size())];
  if (entity->id == kRootId) return;  // its owner is whoever made the volume
  SetAttributes change;
  if (one_in(3)) change.mode = static_cast<uint32_t>(below(01000));
  if (one_in(4)) change.atime_ns = static_cast<int64_t>(below(1'700'000'000)) * 1'000'000'000 + 11;
  if (one_in(2)) change.mtime_ns = static_cast<int64_t>(below(1'700'000'000)) * 1'000'000'000 + 7;
  if (!change.mtime_ns && one_in(3)) change.mtime_now = true;
  if (one_in(6) && change.mode) change.uid = static_cast<uint32_t>(below(3) * 1000), change.gid = static_cast<uint32_t>(below(3) * 100);
  note(fmt::format("set attributes of {}: mode {:o} mtime {} uid {}", entity->id.value, change.mode.value_or(0),
                   change.mtime_ns.value_or(0), change.uid.value_or(0)));
  auto done = wait<Stat>([&](auto reply) { store_->set_attributes(entity->id, nullptr, change, caller(), std::move(reply)); });
  if (!same_code(code_of(done), Reference::kGood)) return;
  if (change.mode) entity->mode = (entity->mode & S_IFMT) | *change.mode;
  if (change.uid) entity->uid = *change.uid;
  if (change.gid) entity->gid = *change.gid;
  if (change.atime_ns) {
    entity->atime.exactly(*change.atime_ns);
    entity->atime_is_of_open = false;
  }
  if (change.mtime_ns) entity->mtime.exactly(*change.mtime_ns);
  if (change.mtime_now) entity->mtime.since(start_ns_);
  entity->ctime.since(start_ns_);
  compare_stat(*entity, *done);
}

void RandomClient::change_xattr() {
  auto all = reference_.reachable();
  EntityPtr entity = all[below(all.size())];
  const std::string name = "user.attribute" + std::to_string(below(4));
  const bool there = entity->xattrs.contains(name);
  if (one_in(3)) {
    note(fmt::format("remove xattr {} of {}", name, entity->id.value));
    Status status = store_->remove_xattr(entity->id, name);
    if (!same_code(code_of(status), there ? Reference::kGood : Code::kNoAttribute) || !there) return;
    entity->xattrs.erase(name);
  } else {
    const Store::XattrMode modes[] = {Store::XattrMode::kAny, Store::XattrMode::kCreate, Store::XattrMode::kReplace};
    const Store::XattrMode mode = modes[below(3)];
    const std::string value = random_bytes(below(one_in(10) ? 5'000 : 40));
    note(fmt::format("set xattr {} of {}, {} bytes, mode {}", name, entity->id.value, value.size(), static_cast<int>(mode)));
    Code expected = Reference::kGood;
    if (there && mode == Store::XattrMode::kCreate) expected = Code::kExists;
    if (!there && mode == Store::XattrMode::kReplace) expected = Code::kNoAttribute;
    Status status = store_->set_xattr(entity->id, name, value, mode);
    if (!allowed(code_of(status), expected)) return;
    entity->xattrs[name] = value;
  }
  entity->ctime.since(start_ns_);
  compare_xattrs(*entity);
}

void RandomClient::compare_xattrs(const Entity& entity) {
  auto listed = store_->list_xattrs(entity.id);
  if (!same_code(code_of(listed), Reference::kGood)) return;
  std::sort(listed->begin(), listed->end());
  if (listed->size() != entity.xattrs.size())
    return differ(fmt::format("object {} lists {} xattrs, expected {}", entity.id.value, listed->size(), entity.xattrs.size()));
  for (const auto& [name, value] : entity.xattrs) {
    auto seen = store_->get_xattr(entity.id, name);
    if (!same_code(code_of(seen), Reference::kGood)) return;
    if (*seen != value) return differ(fmt::format("xattr {} of object {} has another value", name, entity.id.value));
  }
  same_code(code_of(store_->get_xattr(entity.id, "user.never set")), Code::kNoAttribute);
}

}  // namespace kvcachefs::testing

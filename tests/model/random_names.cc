// Random calls on names.
#include <algorithm>

#include <fmt/format.h>

#include "tests/model/random_client.h"
#include "tests/model/random_client_wait.h"

namespace kvcachefs::testing {

void RandomClient::create_file() {
  EntityPtr directory = random_directory();
  const std::string name = random_name();
  OpenRequest request{.read = !one_in(3), .write = true};
  const uint32_t mode = one_in(4) ? 0600 : 0644;
  note(fmt::format("create {} in {}", name, directory->id.value));
  auto made = store_->create(directory->id, name, mode, request, caller());
  if (!allowed(code_of(made), Reference::check_new(directory, name))) return;
  EntityPtr entity = reference_.add(directory, name, S_IFREG | mode, start_ns_);
  adopt(entity, made->first);
  open_.push_back({made->second, entity, request});
}

// What engines do: a temporary name, the whole body, rename. Sometimes with the bytes that are there already.
void RandomClient::publish() {
  EntityPtr directory = random_directory();
  const std::string name = "name" + std::to_string(below(setting_.names));
  const std::string temporary = name + ".tmp";
  if (Reference::find(directory, temporary)) return;
  EntityPtr old = Reference::find(directory, name);
  if (old && old->is_directory()) return;
  std::string content = old && old->is_regular() && one_in(2) ? old->bytes : random_bytes(random_size());
  note(fmt::format("publish {} in {}, {} bytes", name, directory->id.value, content.size()));
  const OpenRequest request{.read = false, .write = true};
  auto made = store_->create(directory->id, temporary, 0644, request, caller());
  if (!allowed(code_of(made), Reference::kGood)) return;
  EntityPtr entity = reference_.add(directory, temporary, S_IFREG | 0644, start_ns_);
  adopt(entity, made->first);
  open_.push_back({made->second, entity, request});
  const size_t piece = one_in(2) ? kLargestRequestBytes : 1 + below(300'000);
  for (size_t at = 0; at < content.size() && !failed(); at += piece) put(open_.back(), at, content.substr(at, piece));
  if (failed()) return;
  if (one_in(2)) {
    release(open_.back());
    open_.pop_back();
  }
  auto renamed = wait<void>([&](auto done) {
    store_->rename(directory->id, temporary, directory->id, name, RenameMode::kReplace, caller(), std::move(done));
  });
  const Code expected = expected_of(*entity, entity->write_failed, code_of(renamed));
  if (same_code(code_of(renamed), expected) && expected == Reference::kGood)
    Reference::rename(directory, temporary, directory, name, RenameMode::kReplace, start_ns_);
}

void RandomClient::make_directory() {
  EntityPtr directory = random_directory();
  const std::string name = random_name();
  const uint32_t mode = one_in(8) ? 02775 : 0755;
  note(fmt::format("mkdir {} in {}", name, directory->id.value));
  auto made = store_->make_directory(directory->id, name, mode, caller());
  if (!allowed(code_of(made), Reference::check_new(directory, name))) return;
  adopt(reference_.add(directory, name, S_IFDIR | mode, start_ns_), *made);
}

void RandomClient::make_node() {
  EntityPtr directory = random_directory();
  const std::string name = random_name();
  const uint32_t kinds[] = {S_IFIFO, S_IFSOCK, S_IFREG, S_IFCHR};
  const uint32_t mode = kinds[below(4)] | 0640;
  const uint32_t rdev = S_ISCHR(mode) ? 0x103 : 0;
  note(fmt::format("mknod {} in {}, {:o}", name, directory->id.value, mode));
  auto made = store_->make_node(directory->id, name, mode, rdev, caller());
  if (!allowed(code_of(made), Reference::check_new(directory, name))) return;
  EntityPtr entity = reference_.add(directory, name, mode, start_ns_);
  entity->rdev = rdev;
  adopt(entity, *made);
}

void RandomClient::make_symlink() {
  EntityPtr directory = random_directory();
  const std::string name = random_name();
  const std::string target(1 + below(one_in(10) ? 4095 : 60), 't');
  note(fmt::format("symlink {} in {}", name, directory->id.value));
  auto made = store_->make_symlink(directory->id, name, target, caller());
  if (!allowed(code_of(made), Reference::check_new(directory, name))) return;
  EntityPtr entity = reference_.add(directory, name, S_IFLNK | 0777, start_ns_);
  entity->bytes = target;
  adopt(entity, *made);
}

void RandomClient::link() {
  EntityPtr entity = random_file(), directory = random_directory();
  if (!entity) return;
  const std::string name = random_name();
  note(fmt::format("link {} as {} in {}", entity->id.value, name, directory->id.value));
  auto linked =
      wait<Stat>([&](auto done) { store_->link(entity->id, directory->id, name, caller(), std::move(done)); });
  const Code expected = expected_of(*entity, entity->write_failed, code_of(linked), Reference::check_new(directory, name));
  if (!same_code(code_of(linked), expected) || expected != Reference::kGood) return;
  Reference::link(entity, directory, name, start_ns_);
  compare_stat(*entity, *linked);
}

void RandomClient::unlink() {
  EntityPtr directory = random_directory();
  std::string name = random_name();
  if (!directory->names.empty() && !one_in(8)) name = std::next(directory->names.begin(), static_cast<ptrdiff_t>(below(directory->names.size())))->first;
  note(fmt::format("unlink {} in {}", name, directory->id.value));
  const Code expected = Reference::check_unlink(directory, name);
  auto done = wait<void>([&](auto reply) { store_->unlink(directory->id, name, caller(), std::move(reply)); });
  if (same_code(code_of(done), expected) && expected == Reference::kGood) Reference::unlink(directory, name, start_ns_);
}

void RandomClient::remove_directory() {
  EntityPtr directory = random_directory();
  std::string name = random_name();
  for (const auto& [each, entity] : directory->names)
    if (entity->is_directory() && one_in(2)) name = each;
  note(fmt::format("rmdir {} in {}", name, directory->id.value));
  const Code expected = Reference::check_rmdir(directory, name);
  auto done = wait<void>([&](auto reply) { store_->remove_directory(directory->id, name, std::move(reply)); });
  if (same_code(code_of(done), expected) && expected == Reference::kGood) Reference::rmdir(directory, name, start_ns_);
}

void RandomClient::rename() {
  EntityPtr from = random_directory(), to = one_in(2) ? from : random_directory();
  std::string name = random_name();
  if (!from->names.empty() && !one_in(8)) name = std::next(from->names.begin(), static_cast<ptrdiff_t>(below(from->names.size())))->first;
  const std::string new_name = random_name();
  const RenameMode modes[] = {RenameMode::kReplace, RenameMode::kReplace, RenameMode::kNoReplace, RenameMode::kExchange};
  const RenameMode mode = modes[below(4)];
  if (!Reference::rename_is_possible(from, name, to, new_name, mode)) return;
  note(fmt::format("rename {} in {} to {} in {}, mode {}", name, from->id.value, new_name, to->id.value, static_cast<int>(mode)));
  Code expected = Reference::check_rename(from, name, to, new_name, mode);
  EntityPtr source = Reference::find(from, name);
  auto done = wait<void>([&](auto reply) {
    store_->rename(from->id, name, to->id, new_name, mode, caller(), std::move(reply));
  });
  const Code seen = code_of(done);
  // What failed to be written cannot be published; which of two reasons to refuse is told first does not matter.
  if (source && source->write_failed && seen == Code::kNoSpace) return;
  if (source && source->write_failed && expected == Reference::kGood && Reference::find(to, new_name) != source)
    expected = expected_of(*source, true, seen);
  if (same_code(seen, expected) && expected == Reference::kGood)
    Reference::rename(from, name, to, new_name, mode, start_ns_);
}

void RandomClient::look_up() {
  EntityPtr directory = random_directory();
  const std::string name = random_name();
  note(fmt::format("lookup {} in {}", name, directory->id.value));
  EntityPtr entity = Reference::find(directory, name);
  auto found = store_->lookup(directory->id, name, caller());
  const Code absent = name.size() > 255 ? Code::kNameTooLong : Code::kNotFound;
  if (!same_code(code_of(found), entity ? Reference::kGood : absent) || !entity) return;
  compare_stat(*entity, *found);
  if (S_ISLNK(entity->mode)) {
    auto target = store_->read_symlink(entity->id);
    if (same_code(code_of(target), Reference::kGood) && *target != entity->bytes) differ("another link target");
  }
}

void RandomClient::list_some() {
  EntityPtr directory = random_directory();
  note(fmt::format("list {}", directory->id.value));
  compare_directory(directory);
}

// All names, in pages of a random size; going on in the middle gives the same rest.
void RandomClient::compare_directory(const EntityPtr& directory) {
  std::vector<DirectoryItem> all;
  const size_t limit = 1 + below(20);
  for (uint64_t after = 0;;) {
    auto page = store_->list(directory->id, after, limit);
    if (!same_code(code_of(page), Reference::kGood) || page->empty()) break;
    for (DirectoryItem& item : *page) {
      if (item.cookie <= after) differ("a cookie that is not past the one asked for");
      all.push_back(std::move(item));
    }
    after = all.back().cookie;
  }
  if (failed()) return;
  if (all.size() != directory->names.size())
    return differ(fmt::format("directory {} lists {} names, expected {}", directory->id.value, all.size(), directory->names.size()));
  for (const DirectoryItem& item : all) {
    EntityPtr entity = Reference::find(directory, item.name);
    if (!entity) return differ(fmt::format("directory {} lists '{}', which is not there", directory->id.value, item.name));
    if (item.id != entity->id || item.type_bits != (entity->mode & S_IFMT))
      return differ(fmt::format("'{}' is listed with id {} type {:o}, expected {} {:o}", item.name, item.id.value,
                                item.type_bits, entity->id.value, entity->mode & S_IFMT));
  }
  if (all.empty()) return;
  const size_t middle = below(all.size());
  auto rest = store_->list(directory->id, all[middle].cookie, all.size());
  if (!same_code(code_of(rest), Reference::kGood)) return;
  const auto past = static_cast<size_t>(std::count_if(all.begin(), all.end(), [&](const DirectoryItem& item) { return item.cookie > all[middle].cookie; }));
  if (past > 0 && (rest->empty() || rest->front().name != all[all.size() - past].name))
    differ(fmt::format("directory {}: going on after '{}' gives another name next", directory->id.value, all[middle].name));
}

}  // namespace kvcachefs::testing

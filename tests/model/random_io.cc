// Random calls on bytes.
#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "tests/model/random_client.h"
#include "tests/model/random_client_wait.h"

namespace kvcachefs::testing {

// --- open and close ---

// As the kernel opens: told kStale, it looks the name up and tries once more.
Handle* RandomClient::open_handle(const EntityPtr& entity, const OpenRequest& request) {
  auto opened = store_->open(entity->id, request, caller());
  if (code_of(opened) == Code::kStale && look_up_again(entity)) opened = store_->open(entity->id, request, caller());
  if (!same_code(code_of(opened), Reference::kGood)) return nullptr;
  entity->atime_is_of_open = true;
  return *opened;
}

bool RandomClient::look_up_again(const EntityPtr& entity) {
  for (const EntityPtr& directory : reference_.directories())
    for (const auto& [name, child] : directory->names) {
      if (child != entity) continue;
      auto found = store_->lookup(directory->id, name, caller());
      if (!same_code(code_of(found), Reference::kGood)) return false;
      if (found->id != entity->id) differ(fmt::format("'{}' means object {} now, expected {}", name, found->id.value, entity->id.value));
      return !failed();
    }
  return false;
}

void RandomClient::open_file() {
  constexpr size_t kMostOpen = 24;
  if (open_.size() >= kMostOpen) return;
  EntityPtr entity = random_file();
  if (!entity) return;
  OpenRequest request{.read = true, .write = !one_in(3)};
  request.truncate = request.write && one_in(5);
  note(fmt::format("open {}{}{}", entity->id.value, request.write ? " for writing" : "", request.truncate ? ", truncate" : ""));
  Handle* handle = open_handle(entity, request);
  if (handle == nullptr) return;
  if (request.truncate) {
    note_emptied(*entity);
    entity->perhaps_changed(start_ns_);
  }
  open_.push_back({handle, entity, request});
}

void RandomClient::release(OpenFile& file) {
  auto flushed = wait<void>([&](auto done) { store_->flush(file.handle, std::move(done)); });
  const Code seen = code_of(flushed);
  same_code(seen, expected_of(*file.entity, file.entity->lacks_a_write && file.request.write, seen));
  store_->release(file.handle);
  adopt_undone(file, /*released=*/true);
}

// --- what did not fit ---

// Whether what was written since a write failed makes up for it is not followed.
Code RandomClient::expected_of(Entity& entity, bool fails, Code seen, Code otherwise) {
  if (!fails) return otherwise;
  if (!entity.perhaps_mended || seen != otherwise) return Code::kNoSpace;
  entity.write_failed = entity.lacks_a_write = false;
  return otherwise;
}

void RandomClient::note_failed_write(Entity& entity) {
  entity.write_failed = entity.lacks_a_write = true;
  entity.perhaps_mended = false;
}

void RandomClient::note_content(Entity& entity) {
  entity.perhaps_mended = true;
  if (setting_.tight) entity.past.insert(std::hash<std::string>()(entity.bytes));
}

void RandomClient::note_emptied(Entity& entity) {
  entity.bytes.clear();
  entity.write_failed = entity.lacks_a_write = false;
  entity.may_be_emptied = true;
}

// When its writers are done with it, it is one of the versions before, or empty if none of them was journaled.
void RandomClient::adopt_undone(const OpenFile& file, bool released) {
  Entity& entity = *file.entity;
  if (!entity.lacks_a_write || failed()) return;
  auto writes = [&](const OpenFile& each) { return each.entity == file.entity && each.request.write; };
  const bool last = released && file.request.write && std::count_if(open_.begin(), open_.end(), writes) == 1;
  if (last) entity.lacks_a_write = entity.perhaps_mended = false;
  auto stat = store_->stat(entity.id);
  if (!stat) return;  // one without a name is gone with its last handle
  if (stat->size_bytes == 0) {
    if (!entity.may_be_emptied && !entity.bytes.empty()) return differ("a journaled version was emptied");
    entity.bytes.clear();
    return entity.perhaps_changed(start_ns_);
  }
  if (!last) return;
  auto reader = std::find_if(open_.begin(), open_.end(),
                             [&](const OpenFile& each) { return each.entity == file.entity && each.handle != file.handle; });
  Handle* handle = reader != open_.end() ? reader->handle : open_handle(file.entity, {});
  if (handle == nullptr) return;
  entity.bytes = read_bytes(handle, 0, stat->size_bytes);
  if (reader == open_.end()) store_->release(handle);
  if (!entity.past.contains(std::hash<std::string>()(entity.bytes))) differ("what it went back to was never its content");
  entity.perhaps_changed(start_ns_);
}

void RandomClient::release_all() {
  while (!open_.empty()) {
    release(open_.back());
    open_.pop_back();
  }
}

void RandomClient::close_file() {
  if (open_.empty()) return;
  std::swap(open_[below(open_.size())], open_.back());
  note(fmt::format("close {}", open_.back().entity->id.value));
  release(open_.back());
  open_.pop_back();
}

void RandomClient::flush() {
  if (open_.empty()) return;
  OpenFile& file = open_[below(open_.size())];
  note(fmt::format("flush {}", file.entity->id.value));
  auto flushed = wait<void>([&](auto done) { store_->flush(file.handle, std::move(done)); });
  const Code seen = code_of(flushed);
  same_code(seen, expected_of(*file.entity, file.entity->lacks_a_write && file.request.write, seen));
  adopt_undone(file, /*released=*/false);
}

void RandomClient::fsync() {
  if (open_.empty()) return;
  OpenFile& file = open_[below(open_.size())];
  note(fmt::format("fsync {}", file.entity->id.value));
  auto synced = wait<void>([&](auto done) { store_->fsync(file.handle, std::move(done)); });
  const Code seen = code_of(synced);
  same_code(seen, expected_of(*file.entity, file.entity->lacks_a_write, seen));
}

// --- write ---

Code RandomClient::write_code(Handle* handle, uint64_t offset, const std::string& bytes) {
  auto written = wait<size_t>([&](auto done) { store_->write(handle, offset, std::as_bytes(std::span(bytes)), std::move(done)); });
  if (written && *written != bytes.size()) differ(fmt::format("{} of {} bytes written", *written, bytes.size()));
  return code_of(written);
}

void RandomClient::put(const OpenFile& file, uint64_t offset, const std::string& bytes) {
  const Code code = write_code(file.handle, offset, bytes);
  if (!allowed(code, Reference::kGood)) {
    note_failed_write(*file.entity);
    return;
  }
  if (bytes.empty()) return;
  std::string& content = file.entity->bytes;
  if (content.size() < offset + bytes.size()) content.resize(offset + bytes.size());
  content.replace(offset, bytes.size(), bytes);
  note_content(*file.entity);
  file.entity->changed(start_ns_);
}

void RandomClient::write() {
  OpenFile* file = random_open(true);
  if (file == nullptr) return;
  const uint64_t offset = random_offset(file->entity->bytes.size());
  const std::string bytes = random_bytes(random_size());
  if (std::max(offset, file->entity->bytes.size()) + bytes.size() > 2 * setting_.largest_file_bytes) return;
  note(fmt::format("write {} bytes at {} of {} (size {})", bytes.size(), offset, file->entity->id.value, file->entity->bytes.size()));
  put(*file, offset, bytes);
}

// More than fits in memory, unfinished all the time.
void RandomClient::write_big() {
  OpenFile* file = random_open(true);
  if (file == nullptr || file->entity->bytes.size() > 8 * kMiB) return;
  note(fmt::format("write much to {} (size {})", file->entity->id.value, file->entity->bytes.size()));
  const uint64_t end = file->entity->bytes.size() + (one_in(4) ? 28 : 8) * kMiB;
  for (uint64_t at = file->entity->bytes.size(); at < end && !failed() && !file->entity->lacks_a_write; at += kLargestRequestBytes)
    put(*file, at, random_bytes(kLargestRequestBytes));
}

// --- read ---

std::string RandomClient::read_bytes(Handle* handle, uint64_t offset, size_t length) {
  auto reply = wait<ReadReply>([&](auto done) { store_->read(handle, offset, length, std::move(done)); });
  if (!reply) {
    differ(fmt::format("read of {} bytes at {} failed: {}", length, offset, reply.error().message));
    return {};
  }
  std::string bytes;
  for (const iovec& piece : reply->pieces) bytes.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
  if (bytes.size() != reply->bytes) differ(fmt::format("{} bytes in a reply that says {}", bytes.size(), reply->bytes));
  return bytes;
}

void RandomClient::read() {
  OpenFile* file = random_open(false);
  if (file == nullptr) return;
  const std::string& content = file->entity->bytes;
  const uint64_t offset = random_offset(content.size());
  const size_t length = random_size();
  note(fmt::format("read {} bytes at {} of {} (size {})", length, offset, file->entity->id.value, content.size()));
  const std::string seen = read_bytes(file->handle, offset, length);
  if (failed()) return;
  compare_bytes(file->entity, offset, seen, offset < content.size() ? content.substr(offset, length) : std::string());
  if (failed()) return;
  auto stat = store_->stat(file->entity->id);
  if (same_code(code_of(stat), Reference::kGood)) compare_stat(*file->entity, *stat);
}

void RandomClient::compare_content(const EntityPtr& entity) {
  Handle* handle = open_handle(entity, {});
  if (handle == nullptr) return;
  const size_t piece = 1 + below(kLargestRequestBytes);
  for (uint64_t at = 0; at <= entity->bytes.size() && !failed(); at += piece)
    compare_bytes(entity, at, read_bytes(handle, at, piece), entity->bytes.substr(at, piece));
  store_->release(handle);
}

// --- size and holes ---

void RandomClient::truncate() {
  OpenFile* file = one_in(2) ? random_open(true) : nullptr;
  EntityPtr entity = file != nullptr ? file->entity : random_file();
  if (!entity) return;
  SetAttributes change;
  change.size_bytes = one_in(4) ? 0 : one_in(3) ? below(setting_.largest_file_bytes) : below(entity->bytes.size() + 1);
  note(fmt::format("truncate {} from {} to {}{}", entity->id.value, entity->bytes.size(), *change.size_bytes,
                   file != nullptr ? " by handle" : ""));
  auto done = wait<Stat>([&](auto reply) {
    store_->set_attributes(entity->id, file != nullptr ? file->handle : nullptr, change, caller(), std::move(reply));
  });
  if (!allowed(code_of(done), Reference::kGood)) return;
  // By a handle it may count as the kernel's own after a write that failed, and to the size that it has it clears nothing.
  const bool may_stay = entity->write_failed && (file != nullptr || entity->bytes.size() == *change.size_bytes);
  const bool lacked = entity->lacks_a_write;
  if (entity->bytes.size() != *change.size_bytes) {
    entity->changed(start_ns_);
  } else {
    entity->perhaps_changed(start_ns_);
  }
  entity->bytes.resize(*change.size_bytes);
  note_content(*entity);
  if (*change.size_bytes == 0) note_emptied(*entity);
  if (may_stay) {
    entity->write_failed = true;
    entity->lacks_a_write = lacked;
  }
  compare_stat(*entity, *done);
}

void RandomClient::allocate() {
  OpenFile* file = random_open(true);
  if (file == nullptr) return;
  std::string& content = file->entity->bytes;
  const Store::AllocateMode modes[] = {Store::AllocateMode::kExtend, Store::AllocateMode::kKeepSize,
                                       Store::AllocateMode::kPunchHole, Store::AllocateMode::kPunchHole,
                                       Store::AllocateMode::kZeroRange};
  const Store::AllocateMode mode = modes[below(5)];
  const uint64_t offset = random_offset(content.size());
  const uint64_t length = one_in(30) ? 0 : 1 + below(one_in(3) ? setting_.largest_file_bytes : 50'000);
  note(fmt::format("allocate mode {} {} bytes at {} of {} (size {})", static_cast<int>(mode), length, offset,
                   file->entity->id.value, content.size()));
  file->entity->allocated_to = std::max(file->entity->allocated_to, offset + length);
  auto done = wait<void>([&](auto reply) { store_->allocate(file->handle, mode, offset, length, std::move(reply)); });
  const bool zeroes = mode == Store::AllocateMode::kPunchHole || mode == Store::AllocateMode::kZeroRange;
  const bool extends = mode == Store::AllocateMode::kExtend || mode == Store::AllocateMode::kZeroRange;
  const uint64_t new_size = extends ? std::max<uint64_t>(content.size(), offset + length) : content.size();
  if (!allowed(code_of(done), length == 0 ? Code::kInvalid : Reference::kGood)) {
    if (length > 0) adopt_partly_zeroed(*file, offset, zeroes ? length : 0, new_size);
    return;
  }
  content.resize(new_size);
  if (zeroes && offset < new_size) std::fill_n(content.begin() + static_cast<ptrdiff_t>(offset), std::min(length, new_size - offset), '\0');
  note_content(*file->entity);
  file->entity->changed(start_ns_);
}

// A refused call on a range may have done a part of its work, but nothing else.
void RandomClient::adopt_partly_zeroed(const OpenFile& file, uint64_t offset, uint64_t length, uint64_t new_size) {
  Entity& entity = *file.entity;
  auto stat = store_->stat(entity.id);
  if (failed() || !same_code(code_of(stat), Reference::kGood)) return;
  if (stat->size_bytes != entity.bytes.size() && stat->size_bytes != new_size) return differ("a third size");
  entity.bytes.resize(stat->size_bytes);
  const std::string seen = read_bytes(file.handle, 0, entity.bytes.size());
  if (seen.size() != entity.bytes.size()) return differ("a short read");
  for (uint64_t at = 0; at < seen.size(); ++at)
    if (seen[at] != entity.bytes[at] && (seen[at] != 0 || at < offset || at - offset >= length))
      return differ(fmt::format("byte {} changed in a call that was refused", at));
  entity.bytes = seen;
  note_content(entity);
  entity.perhaps_changed(start_ns_);
  if (length > 0) {
    // Whether this counts as a write that failed is told by the next flush; from then on it is known.
    auto flushed = wait<void>([&](auto done) { store_->flush(file.handle, std::move(done)); });
    if (!flushed && flushed.error().code == Code::kNoSpace) note_failed_write(entity);
    adopt_undone(file, /*released=*/false);
  }
}

void RandomClient::seek() {
  OpenFile* file = random_open(false);
  if (file == nullptr) return;
  const std::string& content = file->entity->bytes;
  const uint64_t offset = random_offset(content.size());
  note(fmt::format("seek from {} in {} (size {})", offset, file->entity->id.value, content.size()));
  auto first_byte = [&](uint64_t from) { return std::min(content.find_first_not_of('\0', from), content.size()); };
  auto data = store_->seek_data(file->handle, offset);
  if (!data) {
    if (!same_code(code_of(data), Code::kNoData)) return;
    if (offset < content.size() && first_byte(offset) < content.size()) differ("no data said where there is some");
  } else if (*data < offset || *data >= content.size() || first_byte(offset) < *data) {
    differ(fmt::format("data said from {}, there is some from {}", *data, first_byte(offset)));
  }
  auto hole = store_->seek_hole(file->handle, offset);
  if (offset >= content.size()) {
    same_code(code_of(hole), Code::kNoData);
  } else if (same_code(code_of(hole), Reference::kGood)) {
    if (*hole < offset || *hole > content.size()) return differ(fmt::format("hole said at {}", *hole));
    if (*hole < content.size() && content[*hole] != 0) differ(fmt::format("hole said at {}, where there is data", *hole));
  }
}

}  // namespace kvcachefs::testing

#include "store/space/reserve.h"

#include <algorithm>
#include <array>
#include <random>
#include <utility>

namespace kvcachefs {

namespace {

// Where blocks cannot be allocated without bytes: writes random bytes, which no file system stores in less room.
Status write_noise(File& file, uint64_t from, uint64_t to) {
  std::array<std::byte, 64 << 10> noise;
  std::minstd_rand random(static_cast<uint32_t>(from) + 1);
  for (uint64_t at = from; at < to; at += noise.size()) {
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random() >> 8);
    const std::span<const std::byte> pieces[] = {std::span(noise).first(std::min<uint64_t>(noise.size(), to - at))};
    KVC_TRY(file.write(pieces, at));
  }
  return file.sync_data();  // a network file system reports only then whether there is room
}

}  // namespace

Reserve::Reserve(std::shared_ptr<Volume> volume, std::string path) : volume_(std::move(volume)), path_(std::move(path)) {
  if (auto info = volume_->info(path_)) held_bytes_ = std::min(info->size_bytes, info->allocated_bytes);
}

bool Reserve::give(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  const uint64_t held = held_bytes_, left = held - std::min(held, bytes);
  if (held == 0) return false;
  cut_ = true;
  auto file = volume_->open(path_, {.writable = true});
  if (file && (*file)->truncate(left)) {
    held_bytes_ = left;
    return true;
  }
  held_bytes_ = 0;  // refill() looks anew
  return volume_->remove_file(path_).has_value();  // btrfs keeps room of its own for removals, also at a quota, but not for truncation
}

Status Reserve::refill(uint64_t bytes, uint64_t available_bytes) {
  constexpr uint64_t kTimes = 4;
  const uint64_t held = held_bytes();
  if (held >= bytes || available_bytes / kTimes < bytes - held) return {};
  std::lock_guard lock(mutex_);
  Status grown = grow_to(bytes);
  if (!grown && held == 0) static_cast<void>(volume_->remove_file(path_));  // leaves no file whose size says nothing
  return grown;
}

Status Reserve::shrink(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (held_bytes_ <= bytes) return {};
  KVC_ASSIGN(const FilePtr file, volume_->open(path_, {.writable = true}));
  KVC_TRY(file->truncate(bytes));
  held_bytes_ = bytes;
  return {};
}

Status Reserve::give_back() {
  std::lock_guard lock(mutex_);
  Status removed = volume_->remove_file(path_);
  if (!removed && removed.error().code != Code::kNotFound) return removed;
  held_bytes_ = 0;
  cut_ = true;
  return {};
}

Status Reserve::grow_to(uint64_t bytes) {
  auto file = volume_->open(path_, {.create_exclusive = true});
  if (!file && file.error().code == Code::kExists) file = volume_->open(path_, {.writable = true});
  if (!file) return std::unexpected(std::move(file).error());
  const uint64_t held = held_bytes_;
  Status grown = (*file)->truncate(held);
  if (grown) grown = (*file)->allocate(held, bytes - held);
  if (!grown && grown.error().code == Code::kUnsupported) grown = write_noise(**file, held, bytes);
  if (!grown) {
    static_cast<void>((*file)->truncate(held));
    return grown;
  }
  held_bytes_ = bytes;
  cut_ = false;
  return {};
}

}  // namespace kvcachefs

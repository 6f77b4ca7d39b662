#include "store/cache/waiting_bytes.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "store/base/checksum.h"
#include "store/base/units.h"

namespace kvcachefs {

// Maps the memory separately: a heap would not return all the memory of so many large pieces to the machine.
Status WaitingBytes::Kept::take_memory() {
  void* data = mmap(nullptr, align_up(size_, kBlockBytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return fail_errno(ENOMEM, fmt::format("memory for a write of {} that has to wait", format_size(size_)));
  data_ = static_cast<std::byte*>(data);
  return {};
}

void WaitingBytes::Kept::drop_memory() {
  if (data_ == nullptr) return;
  munmap(std::exchange(data_, nullptr), align_up(size_, kBlockBytes));
  std::lock_guard lock(of_.mutex_);
  of_.memory_bytes_ -= size_;
}

WaitingBytes::Kept::~Kept() {
  drop_memory();
  if (slot_ == UINT64_MAX) return;
  FilePtr empty;
  {
    std::lock_guard lock(of_.mutex_);
    of_.free_slots_.push_back(slot_);
    if (--of_.slots_used_ > 0) return;
    of_.free_slots_.clear();
    of_.room_.release(std::exchange(of_.slots_, 0) * kSlotBytes);
    empty = std::move(of_.file_);  // it has no name: closing it, after the lock, frees its space
  }
}

void WaitingBytes::Kept::unload() {
  if (slot_ != UINT64_MAX) drop_memory();
}

Status WaitingBytes::Kept::load() {
  if (data_ != nullptr) return {};
  FilePtr file;
  {
    std::lock_guard lock(of_.mutex_);
    of_.memory_bytes_ += size_;
    file = of_.file_;
  }
  Status status = take_memory();
  if (!status) {
    std::lock_guard lock(of_.mutex_);
    of_.memory_bytes_ -= size_;
    return status;
  }
  auto got = file->read({data_, size_}, slot_ * kSlotBytes);
  if (got && (*got < size_ || checksum(bytes()) != checksum_))
    status = fail(Code::kCorrupt, fmt::format("{}: a write that waited there came back with other bytes", file->path()));
  if (!got) status = std::unexpected(std::move(got).error());
  if (!status) drop_memory();
  return status;
}

bool WaitingBytes::add_memory(uint64_t bytes, uint64_t most_bytes) {
  std::lock_guard lock(mutex_);
  if (memory_bytes_ + bytes > most_bytes) return false;
  memory_bytes_ += bytes;
  return true;
}

Result<FilePtr> WaitingBytes::file() {
  {
    std::lock_guard lock(mutex_);
    if (file_) return file_;
  }
  const auto make = [this] {
    static_cast<void>(volume_->remove_file(path_));  // left by a daemon that died in between
    return volume_->open(path_, {.writable = true, .create_exclusive = true});
  };
  auto made = make();
  if (!made && made.error().code == Code::kExists) made = make();  // another thread has just made it and not removed its name yet
  if (made) {
    static_cast<void>(volume_->remove_file(path_));
    std::lock_guard lock(mutex_);
    if (!file_) file_ = *made;
    return file_;
  }
  std::lock_guard lock(mutex_);
  if (file_) return file_;  // another thread was faster
  return std::unexpected(std::move(made).error());
}

Status WaitingBytes::park(Kept& kept, std::span<const std::byte> bytes) {
  if (bytes.size() > kSlotBytes) return fail(Code::kTooBig, "more than a request has");
  uint64_t slot = 0;
  {
    std::lock_guard lock(mutex_);
    if (free_slots_.empty()) {
      if (room_.room_bytes() < (slots_ + 2) * kSlotBytes || !room_.try_reserve(kSlotBytes))
        return fail(Code::kNoSpace, fmt::format("{} of writes wait, for which there is no room", format_size(slots_ * kSlotBytes)));
      slot = slots_++;
    } else {
      slot = free_slots_.back();
      free_slots_.pop_back();
    }
    ++slots_used_;  // from here on the file stays
  }
  kept.slot_ = slot;
  KVC_ASSIGN(const FilePtr file, this->file());
  KVC_TRY(file->write({&bytes, 1}, slot * kSlotBytes));
  kept.checksum_ = checksum(bytes);
  return {};
}

Result<std::unique_ptr<WaitingBytes::Kept>> WaitingBytes::keep(std::span<const std::byte> bytes) {
  if (!add_memory(bytes.size(), most_bytes_)) {
    auto parked = std::make_unique<Kept>(*this, bytes.size());
    const Status status = park(*parked, bytes);
    if (status) return parked;
    if (!add_memory(bytes.size(), std::max(most_bytes_, most_unparked_bytes_)))
      return status.error().code == Code::kNoSpace
                 ? std::unexpected(status.error())
                 : fail_errno(ENOMEM, fmt::format("{} of writes wait, and the volume takes none of it meanwhile", format_size(memory_bytes())));
  }
  auto kept = std::make_unique<Kept>(*this, bytes.size());
  if (Status status = kept->take_memory(); !status) {
    std::lock_guard lock(mutex_);
    memory_bytes_ -= bytes.size();
    return std::unexpected(std::move(status).error());
  }
  std::memcpy(kept->data_, bytes.data(), bytes.size());
  return kept;
}

uint64_t WaitingBytes::memory_bytes() const {
  std::lock_guard lock(mutex_);
  return memory_bytes_;
}

uint64_t WaitingBytes::parked_bytes() const {
  std::lock_guard lock(mutex_);
  return slots_used_ * kSlotBytes;
}

}  // namespace kvcachefs

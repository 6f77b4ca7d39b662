#include "tools/load/slot.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "store/base/units.h"
#include "tools/load/bus_guard.h"
#include "tools/load/payload.h"

namespace kvcachefs {

Slot::Slot(Slot&& other) noexcept
    : buffer_(std::exchange(other.buffer_, {})),
      content_(std::exchange(other.content_, {})),
      name_(std::exchange(other.name_, nullptr)),
      mapping_(std::exchange(other.mapping_, nullptr)) {}

void Slot::hold(const ChunkName& name, size_t bytes) {
  clear();
  name_ = &name;
  content_ = buffer_.first(bytes);
}

void Slot::hold_mapping(const ChunkName& name, void* memory, size_t bytes) {
  clear();
  name_ = &name;
  mapping_ = memory;
  content_ = {static_cast<const std::byte*>(memory), bytes};
}

void Slot::clear() {
  if (mapping_ != nullptr) ::munmap(mapping_, content_.size());
  mapping_ = nullptr;
  content_ = {};
  name_ = nullptr;
}

bool Slot::sample_matches() const {
  if (name_ == nullptr) return true;
  bool matches = false;
  return survives_bus_error([&] { matches = Payload(name_->payload_seed).sample_matches(content_); }) && matches;
}

Status Slot::verify() const {
  if (name_ == nullptr) return {};
  std::optional<uint64_t> wrong;
  if (!survives_bus_error([&] { wrong = Payload(name_->payload_seed).first_mismatch(content_); })) {
    return fail_errno(EIO, name_->path + ": read of the mapping (SIGBUS)");
  }
  if (!wrong) return {};
  return fail(Code::kCorrupt, fmt::format("{}: wrong byte at offset {} of {}: what was read is not what was written",
                                          name_->path, *wrong, content_.size()));
}

Result<SlotPool> SlotPool::create(size_t slot_bytes, size_t slots, size_t min_slots, size_t max_bytes) {
  const size_t stride = align_up(std::max<size_t>(slot_bytes, 1), kBlockBytes);
  const size_t count = std::max({std::min(slots, max_bytes / stride), min_slots, size_t{1}});
  SlotPool pool;
  KVC_ASSIGN(pool.arena_, Arena::create(stride * count));
  pool.slots_.reserve(count);
  for (size_t i = 0; i < count; ++i) pool.slots_.emplace_back(pool.arena_.span().subspan(i * stride, stride));
  return pool;
}

Status SlotPool::verify_and_clear(unsigned threads) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  Status outcome;
  auto work = [&] {
    for (size_t i = next++; i < slots_.size(); i = next++) {
      Status checked = slots_[i].verify();
      slots_[i].clear();
      if (checked) continue;
      std::lock_guard lock(mutex);
      if (outcome) outcome = std::move(checked);
    }
  };
  std::vector<std::jthread> helpers;
  for (unsigned i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  helpers.clear();
  return outcome;
}

void SlotPool::clear() {
  for (Slot& slot : slots_) slot.clear();
}

}  // namespace kvcachefs

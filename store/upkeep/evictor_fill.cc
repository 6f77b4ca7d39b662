// Filling the evictor with the objects that a volume already has, and the pins.
#include <algorithm>

#include <fmt/format.h>

#include "store/base/units.h"
#include "store/upkeep/evictor.h"

namespace kvcachefs {

using evict::kNoSlot;
using evict::UnitKey;

namespace {
constexpr uint32_t kListedAtOnce = 8192;  // entries in one piece of building
constexpr size_t kPublishedAtOnce = 512;
}  // namespace

// --- filling ---

uint64_t Evictor::filling() const {
  std::lock_guard lock(mutex_);
  return state_ == State::kFilling || searching_ ? number_ : 0;
}

void Evictor::found_directory(ObjectId parent, std::string_view name, ObjectId id, bool pinned) {
  std::lock_guard lock(mutex_);
  if (state_ != State::kFilling && !searching_) return;
  if (parent.valid()) table_.name_directory(parent, name, id);
  evict::UnitTable::Directory& directory = table_.directory_at(table_.directory(id));
  if (pinned && !std::exchange(directory.pinned, true)) ++pins_;
}

void Evictor::found(const Found& file) {
  const int64_t age_ms = std::max<int64_t>(0, (clock_.realtime_ns() - file.used_ns) / 1'000'000);
  constexpr int64_t kOldestMs = 300LL * 24 * 3600 * 1000;  // the range of ticks
  const int64_t now = now_ms();
  std::lock_guard lock(mutex_);
  if (state_ != State::kFilling && !searching_) return;
  const bool known = table_.find(file.id) != kNoSlot;  // it was used since filling began
  const uint32_t directory = table_.directory(file.parent);
  const uint32_t slot = enter(directory, file.name, table_.name_of(directory, file.name), file.id, file.size_bytes);
  Entry& entry = table_.at(slot);
  if (!known) entry.used = tick(now - std::min(age_ms, kOldestMs));
  if (file.pinned && !entry.is(kOwnPin)) {
    entry.set(kOwnPin, true);
    ++pins_;
  }
  if (pins_ > 0) settle_pin(entry);
  if (!file.follows.valid() || searching_) return;
  if (follows_.size() <= slot) follows_.resize(std::max<size_t>(slot + 1, follows_.size() * 2));
  follows_[slot] = file.follows;
}

// Publishes its present predecessors in the chain first.
void Evictor::publish_chain(uint32_t slot, std::vector<uint32_t>& stack) {
  constexpr size_t kMostDeep = 4096;
  const auto predecessor = [&](uint32_t at) {
    return at < follows_.size() && follows_[at].valid() ? table_.find(follows_[at]) : kNoSlot;
  };
  stack.clear();
  for (uint32_t at = slot; at != kNoSlot && stack.size() < kMostDeep && !table_.at(at).is(kBuilt); at = predecessor(at)) {
    table_.at(at).set(kBuilt, true);
    stack.push_back(at);
  }
  for (; !stack.empty(); stack.pop_back()) {
    Entry& entry = table_.at(stack.back());
    const uint32_t before = predecessor(stack.back());
    const UnitKey follows = before == kNoSlot ? UnitKey{} : table_.at(before).unit;
    const int64_t used_ms = origin_ms_ + int64_t{static_cast<int32_t>(entry.used)} * kTickMs;
    policy_->publish({entry.unit, follows == entry.unit ? UnitKey{} : follows, table_.stem(entry), true}, {used_ms});
  }
}

bool Evictor::build(uint64_t number) {
  Building& work = building_;
  if (work.number != number) {
    work = {};
    work.number = number;
  }
  std::unique_lock lock(mutex_);
  if (number_ != number) return true;
  if (state_ == State::kFilling && !work.sorted) {
    const uint32_t end = std::min(table_.slots(), work.listed + kListedAtOnce);
    for (; work.listed < end; ++work.listed) {
      const Entry& entry = table_.at(work.listed);
      if (entry.id.valid() && !entry.is(kYoung | kAside)) work.order.emplace_back(static_cast<int32_t>(entry.used), work.listed);
    }
    if (work.listed < table_.slots()) return false;
    lock.unlock();
    std::sort(work.order.begin(), work.order.end());
    work.sorted = true;
    return false;
  }
  if (state_ == State::kFilling) {
    std::vector<uint32_t> stack;
    for (size_t n = 0; n < kPublishedAtOnce && work.published < work.order.size(); ++n, ++work.published) {
      const uint32_t slot = work.order[work.published].second;
      if (table_.at(slot).id.valid() && !table_.at(slot).is(kYoung | kAside)) publish_chain(slot, stack);
    }
    if (work.published < work.order.size()) return false;
    follows_ = {};
    state_ = State::kReady;
    return false;
  }
  // Then entries that came or were used meanwhile.
  const uint32_t end = std::min(table_.slots(), work.checked + kListedAtOnce);
  const int64_t now = now_ms();
  for (; work.checked < end; ++work.checked) {
    Entry& entry = table_.at(work.checked);
    if (!entry.id.valid() || entry.is(kYoung | kAside)) continue;
    if (!entry.is(kBuilt)) publish(work.checked, {}, true, now);
    else if (!searching_ && static_cast<int32_t>(entry.used) > 0) policy_->read(entry.unit, {now});
  }
  if (work.checked < table_.slots()) return false;
  work = {};
  searching_ = false;
  return true;
}

bool Evictor::search_for_lost() {
  constexpr int64_t kPauseMs = 60'000;
  const int64_t now = now_ms();
  std::lock_guard lock(mutex_);
  if (lost_ == 0 || state_ != State::kReady || searching_ || now < next_search_ms_) return false;
  lost_ = 0;
  searching_ = true;
  ++number_;
  next_search_ms_ = now + kPauseMs;
  return true;
}

// --- pins ---

void Evictor::count_pin(Entry& entry, bool pinned) {
  const uint64_t bytes = entry.blocks * kBlockBytes;
  entry.set(kPinned, pinned);
  if (pinned) {
    ++counted_.pinned_objects;
    counted_.pinned_bytes += bytes;
  } else {
    --counted_.pinned_objects;
    counted_.pinned_bytes -= bytes;
  }
}

// An object below a pinned directory is pinned while the limit of pinned bytes leaves room for it. One that is pinned itself always is: the
// client was told so, and the limit may have become lower since.
void Evictor::settle_pin(Entry& entry) {
  const bool wanted = entry.is(kOwnPin) || table_.below_pinned(entry.directory);
  if (wanted == entry.is(kPinned)) return;
  if (wanted && !entry.is(kOwnPin) && counted_.pinned_bytes + entry.blocks * kBlockBytes > settings_.most_pinned_bytes) return;
  count_pin(entry, wanted);
}

void Evictor::settle_all_pins() {
  ++counted_.pin_passes;
  for (uint32_t slot = 0; slot < table_.slots(); ++slot)
    if (table_.at(slot).id.valid()) settle_pin(table_.at(slot));
}

Status Evictor::pin(ObjectId id, bool directory, bool pinned, uint64_t size_bytes) {
  std::lock_guard lock(mutex_);
  const auto refuse = [&](uint64_t bytes) {
    return fail(Code::kNoSpace, fmt::format("object {}: {} more would be pinned, beside {}; at most {}, half of the capacity, may be",
                                            id.value, format_size(bytes), format_size(counted_.pinned_bytes + pins_while_off_.bytes),
                                            format_size(settings_.most_pinned_bytes)));
  };
  if (state_ == State::kOff) {  // the filling reads the pins when eviction is switched on
    if (directory) return {};
    if (!pinned) {
      pins_while_off_.remove(id);
      return {};
    }
    const uint64_t bytes = div_ceil(size_bytes, kBlockBytes) * kBlockBytes;
    if (pins_while_off_.files.contains(id)) return {};
    if (pins_while_off_.bytes + bytes > settings_.most_pinned_bytes) return refuse(bytes);
    pins_while_off_.add(id, bytes);
    pinned_while_off_.store(true, std::memory_order_relaxed);
    return {};
  }
  hopeless_until_ms_.store(INT64_MIN, std::memory_order_relaxed);
  if (!directory) {
    const uint32_t slot = table_.find(id);
    if (slot == kNoSlot) return {};
    Entry& entry = table_.at(slot);
    if (entry.is(kOwnPin) == pinned) return {};
    if (pinned && !entry.is(kPinned) && counted_.pinned_bytes + entry.blocks * kBlockBytes > settings_.most_pinned_bytes)
      return refuse(entry.blocks * kBlockBytes);
    entry.set(kOwnPin, pinned);
    pinned ? ++pins_ : --pins_;
    settle_pin(entry);
    return {};
  }
  evict::UnitTable::Directory& at = table_.directory_at(table_.directory(id));
  if (at.pinned == pinned) return {};
  at.pinned = pinned;
  if (pinned) {
    uint64_t more = 0;
    for (uint32_t slot = 0; slot < table_.slots(); ++slot) {
      const Entry& entry = table_.at(slot);
      if (entry.id.valid() && !entry.is(kPinned) && table_.below_pinned(entry.directory)) more += entry.blocks * kBlockBytes;
    }
    if (counted_.pinned_bytes + more > settings_.most_pinned_bytes) {
      at.pinned = false;
      return refuse(more);
    }
  }
  pinned ? ++pins_ : --pins_;
  settle_all_pins();
  return {};
}

Evictor::Pinned Evictor::pinned() const {
  std::lock_guard lock(mutex_);
  return {counted_.pinned_bytes, settings_.most_pinned_bytes, number_};
}

bool Evictor::is_pinned(ObjectId id) const {
  std::lock_guard lock(mutex_);
  if (const uint32_t slot = table_.find(id); slot != kNoSlot) return table_.at(slot).is(kPinned);
  const uint32_t directory = table_.find_directory(id);
  return directory != kNoSlot && table_.below_pinned(directory);
}

}  // namespace kvcachefs

// Figures of the evictor as a whole, and of one object.
#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "store/base/units.h"
#include "store/upkeep/evictor.h"

namespace kvcachefs {

using evict::kNoSlot;

EvictionCounts::Age EvictionCounts::age_of(int64_t unused_ms) {
  constexpr int64_t kMinuteMs = 60'000, kHourMs = 60 * kMinuteMs, kDayMs = 24 * kHourMs;
  if (unused_ms < kMinuteMs) return Age::kBelowMinute;
  if (unused_ms < kHourMs) return Age::kBelowHour;
  return unused_ms < kDayMs ? Age::kBelowDay : Age::kOlder;
}

EvictionCounts Evictor::counts() const {
  std::lock_guard lock(mutex_);
  EvictionCounts counts = counted_;
  counts.ready = state_ == State::kReady;
  counts.objects = table_.objects();
  counts.directories = table_.directories();
  counts.memory_bytes = table_.memory_bytes();
  if (!policy_) return counts;
  const evict::PolicyCounts of_policy = policy_->counts();
  counts.units = of_policy.units;
  counts.remembered_units = gone_.size();
  counts.memory_bytes += of_policy.memory_bytes + gone_.memory_bytes();
  return counts;
}

bool Evictor::was_evicted(ObjectId parent, std::string_view name) const {
  if (!on()) return false;
  std::lock_guard lock(mutex_);
  if (gone_.size() == 0) return false;
  const uint32_t directory = table_.find_directory(parent);
  return directory != kNoSlot && gone_.contains(table_.name_of(directory, name).unit);
}

// Visits all entries, or a sample spread over the table. Releases the lock now and then, because probes wait for it.
template <class See>
void Evictor::see_some(const See& see) const {
  constexpr uint32_t kMost = 8192, kUnderLock = 512;
  std::unique_lock lock(mutex_);
  const uint32_t count = std::min(table_.slots(), kMost);
  for (uint32_t n = 0; n < count; ++n) {
    if (n > 0 && n % kUnderLock == 0) {
      lock.unlock();
      lock.lock();
    }
    if (table_.slots() < count) return;  // the table was restarted
    const Entry& entry = table_.at(static_cast<uint32_t>(uint64_t{n} * table_.slots() / count));
    if (entry.id.valid()) see(entry);
  }
}

EvictionSurvey Evictor::survey() const {
  const int64_t now = now_ms();
  EvictionSurvey survey;
  uint64_t seen = 0, leased = 0;
  see_some([&](const Entry& entry) {
    ++seen;
    const int64_t unused_ms = std::max<int64_t>(0, ms_since(entry.used, now));
    if (entry.is(kLooked) && settings_.lease_ms > 0 && unused_ms < settings_.lease_ms + kKernelKnowsMs) ++leased;
    else if (!entry.is(kPinned | kYoung | kAside)) survey.coldest_ms = std::max(survey.coldest_ms, unused_ms);
  });
  std::lock_guard lock(mutex_);
  if (seen > 0) survey.leased_objects = leased * std::max<uint64_t>(table_.objects(), seen) / seen;
  return survey;
}

std::array<uint64_t, 24> Evictor::bytes_by_age() const {
  constexpr uint64_t kPromisedPart = 16;
  std::array<uint64_t, 24> bytes{};
  if (!on()) return bytes;
  if (filling() != 0) {
    bytes[0] = 1;
    return bytes;
  }
  const int64_t now = now_ms();
  uint64_t seen = 0;
  see_some([&](const Entry& entry) {
    ++seen;
    if (entry.is(kPinned | kAside)) return;
    // A young one is published at once if nothing else can be chosen. Its size may not be known before it is closed.
    const bool young = entry.is(kYoung), promised = young || (entry.is(kLooked) && is_used_lately(entry, now, Leases::kSettled));
    const uint64_t blocks = std::max<uint64_t>(entry.blocks, young ? 1 : 0);
    const auto unused_s = static_cast<uint64_t>(std::max<int64_t>(0, ms_since(entry.used, now)) / 1000);
    bytes[std::min<size_t>(static_cast<size_t>(std::bit_width(unused_s)), bytes.size() - 1)] += blocks * kBlockBytes / (promised ? kPromisedPart : 1);
  });
  const uint64_t objects = counts().objects;
  if (seen > 0 && objects > seen)  // only a sample was seen
    for (uint64_t& each : bytes) each = static_cast<uint64_t>(static_cast<double>(each) * static_cast<double>(objects) / static_cast<double>(seen));
  return bytes;
}

std::optional<EvictionOutlook> Evictor::known(ObjectId id, uint32_t thread_id) const {
  const int64_t now = now_ms();
  EvictionOutlook known;
  uint32_t used = 0;
  {
    std::lock_guard lock(mutex_);
    const uint32_t slot = table_.find(id);
    if (slot == kNoSlot) return std::nullopt;
    Entry entry = table_.at(slot);
    const Look& look = looks_[evict::mix_key(id.value) % kLooks];
    if (look.id == id && look.thread_id == thread_id && ms_since(look.at, now) < kLookMs) {
      entry.used = look.used;
      entry.set(kLooked, look.looked != 0);
    }
    known.hold = hold_of(entry.unit, now, Leases::kBreak, &entry);
    if (known.hold == evict::Hold::kNone && is_promised(entry.unit, now, &entry)) known.hold = evict::Hold::kLeased;
    known.young = entry.is(kYoung);
    used = entry.used;
    known.unused_ms = std::max<int64_t>(0, ms_since(used, now));
  }
  uint64_t seen = 0, since = 0;
  see_some([&](const Entry& other) {
    if (other.id == id) return;
    ++seen;
    since += static_cast<int32_t>(other.used - used) > 0 ? 1 : 0;
  });
  if (seen > 0) known.used_since = static_cast<double>(since) / static_cast<double>(seen);
  return known;
}

std::string Evictor::check() const {
  std::lock_guard lock(mutex_);
  if (!policy_) return {};
  uint64_t pinned_bytes = 0;
  size_t objects = 0;
  for (uint32_t slot = 0; slot < table_.slots(); ++slot) {
    const Entry& entry = table_.at(slot);
    if (!entry.id.valid()) continue;
    ++objects;
    if (entry.is(kPinned)) pinned_bytes += entry.blocks * kBlockBytes;
    if (state_ == State::kReady && !entry.is(kYoung | kAside) && !policy_->holds(entry.unit))
      return fmt::format("the policy does not know unit {:x} of object {}", entry.unit.value, entry.id.value);
  }
  if (objects != table_.objects()) return fmt::format("{} objects counted, {} are there", table_.objects(), objects);
  if (pinned_bytes != counted_.pinned_bytes) return fmt::format("{} pinned bytes counted, {} are", counted_.pinned_bytes, pinned_bytes);
  return policy_->check();
}

}  // namespace kvcachefs

#include "store/api/probe_counts.h"

#include <algorithm>
#include <iterator>
#include <mutex>

#include "store/base/bytes.h"
#include "store/base/checksum.h"

namespace kvcachefs {

namespace {
constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kEveryNs[] = {kSecondNs, 60 * kSecondNs, 24 * 60 * kSecondNs};  // a 60th of a minute, an hour, a day

std::optional<double> ratio(uint64_t part, uint64_t whole) {
  if (whole == 0) return std::nullopt;
  return static_cast<double>(part) / static_cast<double>(whole);
}
size_t place_of(uint32_t thread_id) { return static_cast<size_t>((thread_id * 0x9e3779b97f4a7c15ULL) >> 56); }
uint64_t name_bits(ObjectId parent, std::string_view name) { return checksum(as_bytes(name), parent.value) | 4; }
}  // namespace

std::optional<double> ProbeCounts::Totals::hit_ratio() const { return ratio(hits, hits + misses()); }
std::optional<double> ProbeCounts::Totals::evicted_ratio() const { return ratio(evicted, misses()); }

ProbeCounts::ProbeCounts(int64_t now_ns) {
  for (size_t i = 0; i < samples_.size(); ++i) {
    samples_[i].every_ns = kEveryNs[i];
    samples_[i].ring[0].at_ns = now_ns;
    samples_[i].size = 1;
  }
}

void ProbeCounts::count(uint64_t slot) {
  if (slot != 0) misses_[slot & kWhy].fetch_add(1, std::memory_order_relaxed);
}

void ProbeCounts::missed(uint32_t thread_id, ObjectId parent, std::string_view name, Miss why) {
  const uint64_t slot = (name_bits(parent, name) & ~kWhy) | static_cast<uint64_t>(why);
  count(pending_[place_of(thread_id)].exchange(slot, std::memory_order_relaxed));
}

void ProbeCounts::stored(uint32_t thread_id, ObjectId parent, std::string_view name) {
  std::atomic<uint64_t>& pending = pending_[place_of(thread_id)];
  uint64_t slot = pending.load(std::memory_order_relaxed);
  if (slot == 0 || ((slot ^ name_bits(parent, name)) & ~kWhy) != 0) return;
  if (pending.compare_exchange_strong(slot, 0, std::memory_order_relaxed)) before_store_.fetch_add(1, std::memory_order_relaxed);
}

ProbeCounts::Totals ProbeCounts::totals() {
  for (std::atomic<uint64_t>& pending : pending_)
    if (pending.load(std::memory_order_relaxed) != 0) count(pending.exchange(0, std::memory_order_relaxed));
  Totals totals;
  totals.hits = hits_.load(std::memory_order_relaxed);
  totals.never_seen = misses_[static_cast<size_t>(Miss::kNeverSeen)].load(std::memory_order_relaxed);
  totals.evicted = misses_[static_cast<size_t>(Miss::kEvicted)].load(std::memory_order_relaxed);
  totals.quarantined = misses_[static_cast<size_t>(Miss::kQuarantined)].load(std::memory_order_relaxed);
  totals.before_store = before_store_.load(std::memory_order_relaxed);
  return totals;
}

uint64_t ProbeCounts::lookups() const {
  uint64_t lookups = hits_.load(std::memory_order_relaxed) + before_store_.load(std::memory_order_relaxed);
  for (const std::atomic<uint64_t>& misses : misses_) lookups += misses.load(std::memory_order_relaxed);
  return lookups;
}

void ProbeCounts::sample(int64_t now_ns) {
  std::lock_guard lock(mutex_);
  if (now_ns - samples_[0].ring[samples_[0].newest].at_ns < samples_[0].every_ns) return;
  const Totals now = totals();
  for (Samples& samples : samples_) {
    if (now_ns - samples.ring[samples.newest].at_ns < samples.every_ns) continue;
    samples.newest = (samples.newest + 1) % std::size(samples.ring);
    samples.size = std::min(samples.size + 1, std::size(samples.ring));
    samples.ring[samples.newest] = {now_ns, now};
  }
}

// Counts from the youngest sample that is as old as the window, or else from the oldest sample.
ProbeCounts::Totals ProbeCounts::over(Window window, int64_t now_ns) {
  std::lock_guard lock(mutex_);
  const Samples& samples = samples_[static_cast<size_t>(window)];
  const int64_t window_ns = samples.every_ns * static_cast<int64_t>(kSamples);
  const Totals* since = nullptr;
  for (size_t back = 0; back < samples.size; ++back) {
    const auto& sample = samples.ring[(samples.newest + std::size(samples.ring) - back) % std::size(samples.ring)];
    since = &sample.totals;
    if (now_ns - sample.at_ns >= window_ns) break;
  }
  Totals result = totals();
  result.hits -= since->hits;
  result.never_seen -= since->never_seen;
  result.evicted -= since->evicted;
  result.quarantined -= since->quarantined;
  result.before_store -= since->before_store;
  return result;
}

}  // namespace kvcachefs

// Counts hits of the names that clients probe for, and misses by reason: since the mount, and over the last minute, hour and
// day.
//
// Thread-safe. hit(), missed() and stored() take no lock: they are a few atomic operations.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "store/base/mutex.h"
#include "store/base/types.h"

namespace kvcachefs {

class ProbeCounts {
 public:
  enum class Miss : uint8_t { kNeverSeen = 1, kEvicted, kQuarantined };
  struct Totals {
    uint64_t hits = 0, never_seen = 0, evicted = 0, quarantined = 0;
    uint64_t before_store = 0;  // lookups of absent names right before they were made: no probes
    uint64_t misses() const { return never_seen + evicted + quarantined; }
    // No value if nothing was counted.
    std::optional<double> hit_ratio() const;
    std::optional<double> evicted_ratio() const;  // of the misses
  };

  explicit ProbeCounts(int64_t now_ns);

  void hit() { hits_.fetch_add(1, std::memory_order_relaxed); }
  // The miss counts only when the thread looks up another name, or totals() is called: the kernel also looks a name up before it is made.
  void missed(uint32_t thread_id, ObjectId parent, std::string_view name, Miss why);
  // The thread makes this name, or gives it to a file.
  void stored(uint32_t thread_id, ObjectId parent, std::string_view name);

  Totals totals();
  // Hits and misses counted so far; unlike totals() it does not count pending misses.
  uint64_t lookups() const;
  // Takes a sample for the windows; to be called about once a second.
  void sample(int64_t now_ns);
  enum class Window : uint8_t { kMinute, kHour, kDay };
  // The counts of the last window; of a shorter time if less has passed since the mount.
  Totals over(Window window, int64_t now_ns);

 private:
  static constexpr size_t kThreads = 256;  // slots; if two threads share a slot, a lookup before a store can count as a probe
  static constexpr size_t kSamples = 60;   // of a window
  static constexpr uint64_t kWhy = 3;      // bits of a slot that hold the Miss; the others hold the name
  struct Samples {
    int64_t every_ns = 0;
    struct {
      int64_t at_ns = 0;
      Totals totals;
    } ring[kSamples + 1];
    size_t newest = 0, size = 0;
  };

  void count(uint64_t slot);

  std::atomic<uint64_t> hits_{0}, before_store_{0};
  std::array<std::atomic<uint64_t>, 4> misses_{};  // by Miss
  std::array<std::atomic<uint64_t>, kThreads> pending_{};  // 0: none
  LeafMutex mutex_;  // guards samples_
  std::array<Samples, 3> samples_;
};

}  // namespace kvcachefs

// How often the names that clients probe for are there, and why they are not: since the mount, and over the last minute, hour
// and day.
//
// Thread-safe. hit(), missed() and stored() are some atomic operations and take no lock.
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
    uint64_t before_store = 0;  // absent names that were looked up to be made: not probed for
    uint64_t misses() const { return never_seen + evicted + quarantined; }
    // Nothing where there was nothing.
    std::optional<double> hit_ratio() const;
    std::optional<double> evicted_ratio() const;  // of the misses
  };

  explicit ProbeCounts(int64_t now_ns);

  void hit() { hits_.fetch_add(1, std::memory_order_relaxed); }
  // It counts once the thread looks up another, or at a look at the totals: the kernel also looks a name up before it is made.
  void missed(uint32_t thread_id, ObjectId parent, std::string_view name, Miss why);
  // The thread makes this name, or gives it to a file.
  void stored(uint32_t thread_id, ObjectId parent, std::string_view name);

  Totals totals();
  // Lookups that count by now, of either kind: no look at the totals.
  uint64_t lookups() const;
  // To be called about once a second.
  void sample(int64_t now_ns);
  enum class Window : uint8_t { kMinute, kHour, kDay };
  // Over less where less has passed since the mount.
  Totals over(Window window, int64_t now_ns);

 private:
  static constexpr size_t kThreads = 256;  // told apart; of two that meet in a slot one's lookup before a store counts as a probe
  static constexpr size_t kSamples = 60;   // of a window
  static constexpr uint64_t kWhy = 3;      // bits of a slot; the others are of the name
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
  LeafMutex mutex_;  // a leaf; guards samples_
  std::array<Samples, 3> samples_;
};

}  // namespace kvcachefs

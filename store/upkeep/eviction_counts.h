// Counters that the Evictor reports.
#pragma once

#include <array>
#include <cstdint>

#include "store/evict/policy.h"

namespace kvcachefs {

struct EvictionCounts {
  // Evicted amounts, by the reason for the eviction and by the time since the last use.
  enum class Why : uint8_t { kAhead, kWaitedFor, kLeaseBroken };
  enum class Age : uint8_t { kBelowMinute, kBelowHour, kBelowDay, kOlder };
  struct Amount {
    uint64_t objects = 0, bytes = 0;
  };
  static Age age_of(int64_t unused_ms);

  bool ready = false;
  uint64_t objects = 0, units = 0, directories = 0, memory_bytes = 0;
  uint64_t evicted_objects = 0, evicted_bytes = 0, broken_leases = 0, refused = 0, came_back = 0, remembered_units = 0;
  std::array<Amount, 3> evicted_why{};  // by Why
  std::array<Amount, 4> evicted_age{};  // by Age
  uint64_t pinned_objects = 0, pinned_bytes = 0;
  uint64_t pin_passes = 0;  // passes over all objects to see which lie below a pinned directory; for tests
};

struct EvictionSurvey {
  uint64_t leased_objects = 0;
  int64_t coldest_ms = -1;  // time since the last use of the least recently used object that may be evicted; -1: none may
};

// For one object.
struct EvictionOutlook {
  evict::Hold hold = evict::Hold::kNone;  // of its unit
  bool young = false;                     // created a moment ago and perhaps about to be renamed
  int64_t unused_ms = 0;
  double used_since = 0;  // fraction (0 to 1) of the sampled objects that were used after it
};

}  // namespace kvcachefs

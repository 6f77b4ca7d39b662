// Every prefetched byte ends as used or wasted; `late` ones are the used bytes whose reader had to wait for the load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "store/base/types.h"

namespace kvcachefs {

enum class PrefetchState : uint8_t {
  kNone,     // not prefetched, or no longer in RAM
  kPlanned,  // requested, not there yet
  kAwaited,  // requested, not there yet, and a reader waits for it
  kLoaded,   // in RAM, not read yet
  kUsed,     // in RAM, read
};

struct PrefetchTotals {
  uint64_t read_bytes = 0;    // loaded by prefetch
  uint64_t used_bytes = 0;    // of these: read from RAM
  uint64_t wasted_bytes = 0;  // of these: left RAM unread
  uint64_t late_bytes = 0;    // of the used: the reader came before the load ended
  uint64_t planned_objects = 0;
  uint64_t cancelled_objects = 0;  // planned and given up before they cost a read
  uint64_t skipped_objects = 0;    // planned and not loaded for another reason
  // The rest of read_bytes lies unread in RAM and may still become either.
};

// Keeps one entry for each object that is planned, or in RAM because of prefetch: bounded by the size of RAM, as long as
// removed() is called for every object that leaves it. Not thread-safe.
class PrefetchAccounting {
 public:
  PrefetchState state(ObjectId id) const;

  bool planned(ObjectId id);  // false: it is already planned or in RAM
  void wanted(ObjectId id);   // a reader came for it
  // Returns false if it was not planned (a demand load, or a cancelled one that was forgotten).
  bool loaded(ObjectId id, uint64_t bytes);
  void read(ObjectId id);       // a reader got bytes of it from RAM
  void removed(ObjectId id);    // it left RAM, or was deleted; ignored until its load has ended
  void cancelled(ObjectId id);  // it will not be loaded: no run wants it any more
  void skipped(ObjectId id);    // it will not be loaded: already in RAM, deleted, no room, or failed

  const PrefetchTotals& totals() const { return totals_; }
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    PrefetchState state = PrefetchState::kNone;
    uint64_t bytes = 0;
  };
  std::unordered_map<ObjectId, Entry> entries_;
  PrefetchTotals totals_;
};

}  // namespace kvcachefs

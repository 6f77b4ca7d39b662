// Shared by a simulated volume, its files and its locks: the state, whether calls are still allowed, and the moment of the crash.
#pragma once

#include <cstdint>
#include <memory>
#include <set>

#include "store/base/mutex.h"
#include "store/volume/fault_volume.h"
#include "store/volume/sim_state.h"

namespace kvcachefs {

// Every member is guarded by `mutex`.
struct SimCore {
  SimCore(SimState initial, const SimVolumeOptions& volume_options)
      : state(std::move(initial)), options(volume_options) {}

  enum class Verdict : uint8_t { kGo, kTorn, kFail };
  // Counts a mutating call and decides its outcome.
  Verdict begin_mutating() {
    if (dead || stopped) return Verdict::kFail;
    ++calls;
    if (stop_number == 0 || calls < stop_number) return Verdict::kGo;
    stopped = true;
    return torn_bytes >= 0 ? Verdict::kTorn : Verdict::kFail;
  }
  // For calls that cannot be torn.
  bool may_mutate() { return begin_mutating() == Verdict::kGo; }
  bool alive() const { return !dead && !stopped; }

  InnerMutex mutex;
  SimState state;
  const SimVolumeOptions options;
  std::set<uint64_t> locked;  // inodes
  uint64_t calls = 0;
  uint64_t stop_number = 0;
  int64_t torn_bytes = -1;
  bool stopped = false;
  bool dead = false;  // the state moved to another volume
};
using SimCorePtr = std::shared_ptr<SimCore>;

}  // namespace kvcachefs

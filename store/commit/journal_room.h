// Writes the journal and its companion files on a full file system: gives up the reserved room for them bit by bit.
#pragma once

#include <cstdint>

#include "store/api/counters.h"
#include "store/base/result.h"
#include "store/base/units.h"
#include "store/extent/extents.h"
#include "store/space/reserve.h"

namespace kvcachefs {

// Thread-safe, because its parts are.
class JournalRoom {
 public:
  JournalRoom(Reserve& reserve, Counters& counters) : reserve_(reserve), counters_(counters) {}

  // From now on spare files and cached descriptors of extents are given up as well. Call before other threads start.
  void set_extents(Extents& extents) { extents_ = &extents; }

  // Repeats `attempt`, which returns a Status or a Result, while it fails for lack of room or of files and something can be given up.
  template <class Attempt>
  auto write(Attempt attempt) {
    constexpr uint64_t kBitBytes = kMiB;
    auto result = attempt();
    while (!result && lacks_files(result.error())) {
      if (lacks_descriptors(result.error())) {
        if (extents_ == nullptr || !extents_->give_up_descriptor()) break;
      } else {
        if (!reserve_.give(kBitBytes) && (extents_ == nullptr || !extents_->give_up_spare())) break;
        note_full(result.error());
      }
      result = attempt();
    }
    return result;
  }

 private:
  void note_full(const Error& error);

  Reserve& reserve_;
  Counters& counters_;
  Extents* extents_ = nullptr;
};

}  // namespace kvcachefs

// Writing beside the journal where the file system is full: room is kept for that, and given up for it bit by bit.
#pragma once

#include <cstdint>

#include "store/api/counters.h"
#include "store/base/result.h"
#include "store/base/units.h"
#include "store/extent/extents.h"
#include "store/space/reserve.h"

namespace kvcachefs {

// Thread-safe: what it uses is.
class JournalRoom {
 public:
  JournalRoom(Reserve& reserve, Counters& counters) : reserve_(reserve), counters_(counters) {}

  // From now on spare files of extents, and what is open of extents, are given up as well. Before other threads begin.
  void set_extents(Extents& extents) { extents_ = &extents; }

  // Repeats `attempt`, which answers a Status or a Result, as long as it fails for want of room or of files and some can be given up.
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

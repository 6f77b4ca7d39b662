#include "store/upkeep/peer_holds.h"

#include <algorithm>

#include <fmt/format.h>

#include "store/base/units.h"

namespace kvcachefs {

bool PeerHolds::holds(const FreedPlace& freed) {
  if (freed.given_up_at == JournalPosition{}) return false;
  if (known_ && std::ranges::binary_search(known_->pinned, freed.object)) {
    read_bytes_ += align_up(freed.place.length, kBlockBytes);
    return true;
  }
  if (impatient_at_) return false;
  return !known_ || known_->position < freed.given_up_at;
}

std::string PeerHolds::waits_for() const {
  if (!known_) return "nodes that are not known yet";
  return known_->reason.empty() ? known_->by : fmt::format("{} ({})", known_->by, known_->reason);
}

}  // namespace kvcachefs

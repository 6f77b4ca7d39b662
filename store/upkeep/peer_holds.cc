#include "store/upkeep/peer_holds.h"

#include <algorithm>

#include <fmt/format.h>

namespace kvcachefs {

bool PeerHolds::holds(const FreedPlace& freed) const {
  if (!has_peers_ || freed.given_up_at == JournalPosition{}) return false;
  if (known_ && std::ranges::binary_search(known_->pinned, freed.object)) return true;
  if (impatient_at_) return false;
  return !known_ || known_->position < freed.given_up_at;
}

void PeerHolds::end(bool any_held) {
  if (has_peers_ || !any_held) source_.want_acknowledged(any_held);
}

std::string PeerHolds::waits_for() const {
  if (!has_peers_) return {};
  if (!known_) return "nodes that are not known yet";
  return known_->reason.empty() ? known_->by : fmt::format("{} ({})", known_->by, known_->reason);
}

}  // namespace kvcachefs

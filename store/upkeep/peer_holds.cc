#include "store/upkeep/peer_holds.h"

#include <algorithm>

#include "store/base/units.h"

namespace kvcachefs {

void PeerHolds::begin(std::span<const FreedPlace> dead) {
  read_bytes_ = 0;
  JournalPosition newest;
  for (const FreedPlace& freed : dead) newest = std::max(newest, freed.given_up_at);
  known_ = source_.acknowledged();
  if (!known_ || known_->position < newest) known_ = source_.read();
  if (impatient_at_ && known_->position != *impatient_at_) impatient_at_.reset();
}

bool PeerHolds::holds(const FreedPlace& freed) {
  if (freed.given_up_at == JournalPosition{}) return false;
  if (std::ranges::binary_search(known_->pinned, freed.object)) {
    read_bytes_ += align_up(freed.place.length, kBlockBytes);
    return true;
  }
  if (impatient_at_) return false;
  return known_->position < freed.given_up_at;
}

bool PeerHolds::holds_earlier_epochs(uint32_t own) {
  known_ = source_.acknowledged();
  if (!known_) known_ = source_.read();
  const bool is_open = std::ranges::any_of(known_->pinned, [own](ObjectId id) { return id.epoch() < own; });
  earlier_held_ = !impatient_at_ && (known_->position.epoch < own || is_open);
  tell_wanted();
  return earlier_held_;
}

std::string PeerHolds::waits_for() const {
  return known_ ? known_->waits_for() : std::string();
}

}  // namespace kvcachefs

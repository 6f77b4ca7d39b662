#include "store/upkeep/peer_holds.h"

#include <algorithm>
#include <iterator>

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

PeerHolds::Earlier PeerHolds::earlier_epochs(uint32_t own, const std::function<bool(ObjectId)>& is_known) {
  known_ = source_.acknowledged();
  if (!known_) known_ = source_.read();
  Earlier earlier = Earlier::kUnread;
  if (known_->position.epoch >= own || impatient_at_) {
    if (!earlier_open_) {
      earlier_open_.emplace();
      std::ranges::copy_if(known_->pinned, std::back_inserter(*earlier_open_), [&](ObjectId id) { return id.epoch() < own && !is_known(id); });
    }
    std::erase_if(*earlier_open_, [this](ObjectId id) { return !std::ranges::binary_search(known_->pinned, id); });
    earlier = earlier_open_->empty() ? Earlier::kFree : Earlier::kOpen;
  }
  earlier_held_ = earlier != Earlier::kFree;
  tell_wanted();
  return earlier;
}

std::string PeerHolds::waits_for() const {
  return known_ ? known_->waits_for() : std::string();
}

}  // namespace kvcachefs

#include "store/upkeep/peer_holds.h"

#include <algorithm>
#include <iterator>

#include "store/base/units.h"

namespace kvcachefs {

void PeerHolds::look(std::shared_ptr<const Peers::Acknowledged> known) {
  known_ = std::move(known);
  std::erase_if(given_up_, [this](const auto& given_up) {
    const auto now = std::ranges::find(known_->nodes, given_up.first, &Peers::Acknowledged::Node::node);
    return now == known_->nodes.end() || now->position != given_up.second;
  });
}

bool PeerHolds::have_followed_to(JournalPosition position) const {
  if (given_up_.empty()) return known_->position >= position;
  return std::ranges::all_of(known_->nodes, [&](const auto& node) { return !is_waited_for(node) || node.position >= position; });
}

void PeerHolds::begin(std::span<const FreedPlace> dead) {
  read_bytes_ = 0;
  held_since_.reset();
  JournalPosition newest;
  for (const FreedPlace& freed : dead) newest = std::max(newest, freed.given_up_at);
  auto known = source_.acknowledged();
  if (!known || known->position < newest) known = source_.read();
  look(std::move(known));
}

bool PeerHolds::holds(const FreedPlace& freed) {
  if (freed.given_up_at == JournalPosition{}) return false;
  if (std::ranges::binary_search(known_->pinned, freed.object)) {
    read_bytes_ += align_up(freed.place.length, kBlockBytes);
    return true;
  }
  if (have_followed_to(freed.given_up_at)) return false;
  held_since_ = std::min(held_since_.value_or(freed.given_up_at), freed.given_up_at);
  return true;
}

std::string PeerHolds::lose_patience() {
  std::optional<JournalPosition> since = held_since_;
  if (earlier_held_since_) since = std::min(since.value_or(*earlier_held_since_), *earlier_held_since_);
  std::string names;
  if (!since) return names;
  for (const auto& node : known_->nodes) {
    if (!is_waited_for(node) || node.position >= *since) continue;
    given_up_.emplace(node.node, node.position);
    names += (names.empty() ? "" : ", ") + node.node;
  }
  return names;
}

PeerHolds::Earlier PeerHolds::earlier_epochs(uint32_t own, const std::function<bool(ObjectId)>& died_here) {
  auto known = source_.acknowledged();
  if (!known) known = source_.read();
  look(std::move(known));
  Earlier earlier = Earlier::kUnread;
  earlier_held_since_.reset();
  if (const JournalPosition begin{own, 0, 0}; !have_followed_to(begin)) {
    earlier_held_since_ = begin;
  } else {
    if (!earlier_open_) {
      earlier_open_.emplace();
      std::ranges::copy_if(known_->pinned, std::back_inserter(*earlier_open_), [&](ObjectId id) { return id.epoch() < own && !died_here(id); });
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

#include "store/upkeep/peer_holds.h"

#include <algorithm>
#include <iterator>

#include "store/base/units.h"

namespace kvcachefs {

void PeerHolds::look(std::shared_ptr<const Peers::Acknowledged> known) {
  known_ = std::move(known);
  if (!known_->is_whole) return;
  std::erase_if(given_up_, [this](const auto& given_up) {
    const auto now = std::ranges::find(known_->nodes, given_up.first, &Peers::Acknowledged::Node::node);
    return now == known_->nodes.end() || now->position != given_up.second;
  });
  while (!marks_.empty() && known_->position >= marks_.front().position) marks_.pop_front();
}

bool PeerHolds::have_followed_to(JournalPosition position) const {
  if (!known_->is_whole) return false;
  if (given_up_.empty()) return known_->position >= position;
  return std::ranges::all_of(known_->nodes, [&](const auto& node) { return !is_waited_for(node) || node.position >= position; });
}

void PeerHolds::begin(std::span<const FreedPlace> dead) {
  read_bytes_ = 0;
  newest_held_.reset();
  JournalPosition newest;
  for (const FreedPlace& freed : dead) newest = std::max(newest, freed.given_up_at);
  auto known = source_.acknowledged();
  if (!known || known->position < newest) known = source_.read();
  look(std::move(known));
}

void PeerHolds::refresh() {
  auto known = source_.acknowledged();
  if (!known) known = source_.read();
  look(std::move(known));
}

bool PeerHolds::holds(const FreedPlace& freed) {
  if (freed.given_up_at == JournalPosition{}) return false;
  if (std::ranges::binary_search(known_->pinned, freed.object)) {
    read_bytes_ += align_up(freed.place.length, kBlockBytes);
    return true;
  }
  if (have_followed_to(freed.given_up_at)) return false;
  newest_held_ = std::max(newest_held_.value_or(freed.given_up_at), freed.given_up_at);
  return true;
}

bool PeerHolds::may_hold(const FreedPlace& freed) const {
  if (freed.given_up_at == JournalPosition{}) return false;
  return !known_ || std::ranges::binary_search(known_->pinned, freed.object) || !have_followed_to(freed.given_up_at);
}

void PeerHolds::end(bool any_held) {
  any_held_ = any_held;
  if (newest_held_) mark(*newest_held_);
  tell_wanted();
}

// Few marks are enough: a node is given up a little later than it could be.
void PeerHolds::mark(JournalPosition newest) {
  constexpr int64_t kApartNs = 250'000'000;
  constexpr size_t kMost = 256;
  const int64_t now_ns = source_.now_ns();
  const bool is_new = marks_.empty() || (newest > marks_.back().position && now_ns - marks_.back().at_ns >= kApartNs);
  if (is_new) marks_.push_back({newest, now_ns});
  if (marks_.size() > kMost) marks_.erase(marks_.begin() + kMost / 2);
}

std::string PeerHolds::lose_patience(int64_t patience_ns) {
  std::string names;
  if (!known_ || !known_->is_whole) return names;
  const int64_t now_ns = source_.now_ns();
  for (const auto& node : known_->nodes) {
    if (!is_waited_for(node)) continue;
    const auto since = std::ranges::find_if(marks_, [&](const Mark& mark) { return node.position < mark.position; });
    if (since == marks_.end() || now_ns - since->at_ns < patience_ns) continue;
    given_up_.emplace(node.node, node.position);
    names += (names.empty() ? "" : ", ") + node.node;
  }
  return names;
}

PeerHolds::Earlier PeerHolds::earlier_epochs(uint32_t own, const std::function<bool(ObjectId)>& is_known) {
  auto known = source_.acknowledged();
  if (!known) known = source_.read();
  look(std::move(known));
  Earlier earlier = Earlier::kUnread;
  if (const JournalPosition begin{own, 0, 0}; !have_followed_to(begin)) {
    mark(begin);
  } else {
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

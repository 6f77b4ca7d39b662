// Whether this volume may have other nodes, and what of them the store tells.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "store/base/node_name.h"
#include "store/store_impl.h"

namespace kvcachefs {

// A local file system is one machine's, unless whoever mounts says that this is one node among others.
bool StoreImpl::may_join() const { return volume_->features().network || !options_.current().node.empty(); }

// Others may come, or are there.
bool StoreImpl::is_shared() const {
  if (may_join()) return true;
  const auto nodes = volume_->list("nodes");
  return nodes && std::ranges::any_of(*nodes, [this](const DirectoryEntry& each) { return each.is_directory && each.name != identity_.node; });
}

Status StoreImpl::find_peers() {
  if (!shared_) return {};
  KVC_TRY(tree_->load_statements());
  const auto own_head = [this] {
    Head head;
    head.identity = identity_;
    head.journal_end = journal_->position();
    head.oldest_journal = {identity_.epoch, 0, 0};
    if (care_ != Care::kNone && !tended_by_.empty()) head.host = fmt::format("{} (tended by node {})", node_name_of_host(), tended_by_);
    return head;
  };
  const auto requests = [this] {
    return probes_.lookups() + counters_.opens + counters_.read_requests + counters_.write_requests;
  };
  peers_ = std::make_unique<PeerFollower>(
      PeerFollower::Parts{volume_, identity_, index_directory_ + "-peers", *tree_, commits_, clock_, own_head,
                          [this] { keeper_->want_reclaim(); }, requests, fence_.get(), &*shared_capacity_, &running_clock_, stamps_, touches_,
                          [this] { return space_.backing_free_soon_bytes() > kMiB; }, *evictor_,
                          [this] { gone_names_.tell({{.parent = kRootId, .name = {}, .id = kRootId, .known = true}}); }});
  checkpointer_->follow_peers(*peers_);
  options_.subscribe([this](const StoreOptions& now) {
    peers_->set_poll_every(static_cast<int64_t>(now.peer_poll_ms) * 1'000'000);
    peers_->want_room();  // the others are to hear of another capacity
  });
  extents_->set_peers([this](uint32_t ordinal) { return peers_->extents_of(ordinal); });
  return {};
}

std::optional<SuccessorsRecord> StoreImpl::successors_of(ObjectId id) const {
  if (id.is_foreign()) return peers_ ? peers_->successors_of(id) : std::nullopt;
  auto row = index_->find_successors(id);
  return row ? std::move(*row) : std::nullopt;
}

Status StoreImpl::check_may_change(const Object& object) const {
  if (!object.id.is_foreign()) return {};
  return fail(Code::kReadOnly, fmt::format("object {} was stored by node '{}': another can replace or remove it, not change it", object.id.value,
                                           peers_->node_of(object.id)));
}

void StoreImpl::refresh(StatusCompletion done) {
  if (!peers_) return done({});
  peers_->refresh(std::move(done));
}

void StoreImpl::set_node_lost(std::function<void()> then) {
  if (fence_) fence_->on_lost(std::move(then));
}

FollowedByPeers StoreImpl::followed_by_peers() { return peers_ ? peers_->followed_to(journal_->position()) : FollowedByPeers(); }

// What was said of it lies behind what it has answered.
bool StoreImpl::is_unanswered(uint32_t ordinal) const {
  const Tree::Read names = tree_->read();
  const Part* const part = tree_->view().peer(ordinal);
  return part != nullptr && tree_->statements()->speaks_of(part->node, part->statements->seen(identity_.node));
}

void StoreImpl::tell_peers(StoreStatus& status) const {
  if (!peers_) return;
  status.capacity_is_short = shared_capacity_->plan().is_short;
  status.held_for_peers_bytes = checkpointer_->held_for_peers_bytes() + checkpointer_->held_of_earlier_lives_bytes();
  if (status.held_for_peers_bytes > 0)
    if (const auto known = peers_->acknowledged()) status.held_for_peer = known->waits_for();
  status.peers_problem = peers_->problem();
  if (status.peers_problem.empty() && space_.claim_has_lapsed()) status.peers_problem = "claim: nothing is stored before HEAD could be written again";
  for (PeerStatus& peer : peers_->status())
    status.peers.push_back({.node = std::move(peer.node),
                            .host = std::move(peer.host),
                            .state = peer_state_name(peer.state),
                            .reason = std::move(peer.reason),
                            .epoch = peer.epoch,
                            .silent_ms = peer.lag_ms,
                            .stands_ms = peer.stands_ms,
                            .is_unanswered = is_unanswered(peer.ordinal),
                            .bytes_behind = peer.bytes_behind,
                            .objects = peer.objects,
                            .physical_bytes = peer.physical_bytes,
                            .claim_bytes = std::min(peer.claim_bytes, status.limit_bytes),
                            .polls = peer.polls,
                            .batches = peer.batches,
                            .reloads = peer.reloads,
                            .records_left_out = peer.records_left_out});
}

}  // namespace kvcachefs

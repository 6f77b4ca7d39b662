#include "store/other_nodes.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "store/base/node_name.h"
#include "store/peers/node_generations.h"
#include "store/peers/peers_directory.h"

namespace kvcachefs {

bool OtherNodes::may_join() const { return rooms_.volume_->features().network || !rooms_.options_.current().node.empty(); }

bool OtherNodes::are_possible() const {
  if (may_join()) return true;
  const auto nodes = rooms_.volume_->list("nodes");
  return nodes && std::ranges::any_of(*nodes, [this](const DirectoryEntry& each) { return each.is_directory && each.name != rooms_.identity_.node; });
}

Status OtherNodes::follow() {
  const std::string directory = rooms_.index_directory_ + "-peers";
  KVC_TRY(check_peers_directory(directory));
  KVC_TRY(rooms_.tree_->load_statements());
  const auto own_head = [this] {
    Head head;
    head.identity = rooms_.identity_;
    head.journal_end = rooms_.journal_->position();
    head.oldest_journal = {rooms_.identity_.epoch, 0, 0};
    if (const StoreOptions options = rooms_.options_.current(); options.care != Care::kNone && !options.tended_by.empty())
      head.host = fmt::format("{} (tended by node {})", node_name_of_host(), options.tended_by);
    return head;
  };
  const auto requests = [this] {
    return rooms_.probes_.lookups() + rooms_.counters_.opens + rooms_.counters_.read_requests + rooms_.counters_.write_requests;
  };
  rooms_.peers_ = std::make_unique<PeerFollower>(
      PeerFollower::Parts{rooms_.volume_, rooms_.identity_, directory, *rooms_.tree_, rooms_.commits_, rooms_.clock_,
                          own_head, [this] { rooms_.keeper_->want_reclaim(); }, requests, rooms_.fence_.get(), *rooms_.record_space_,
                          [this](uint64_t growth_bytes) { return rooms_.shared_capacity_->index_room(growth_bytes); }, &*rooms_.shared_capacity_,
                          &rooms_.running_clock_, rooms_.stamps_, rooms_.touches_, *rooms_.lost_names_,
                          [this] { return rooms_.space_.backing_free_soon_bytes() > kMiB; }, *rooms_.evictor_,
                          [this](ObjectId id) { rooms_.scrubber_->suspect(id); },
                          [this] { rooms_.gone_names_.tell({{.parent = kRootId, .name = {}, .id = kRootId, .known = true}}); }});
  rooms_.checkpointer_->follow_peers(*rooms_.peers_, rooms_.running_clock_);
  rooms_.options_.subscribe([this](const StoreOptions& now) {
    rooms_.peers_->set_poll_every(static_cast<int64_t>(now.peer_poll_ms) * 1'000'000);
    rooms_.peers_->want_room();  // tells the others of a changed capacity
  });
  rooms_.extents_->set_peers([this](uint32_t ordinal) { return rooms_.peers_->extents_of(ordinal); });
  return {};
}

std::optional<SuccessorsRecord> OtherNodes::successors_of(ObjectId id) const {
  if (id.is_foreign()) return rooms_.peers_ ? rooms_.peers_->successors_of(id) : std::nullopt;
  auto row = rooms_.index_->find_successors(id);
  return row ? std::move(*row) : std::nullopt;
}

uint32_t OtherNodes::generation_of(ObjectId id) const {
  if (id == kRootId) return 0;  // the kernel makes that inode itself
  if (id.is_foreign()) return rooms_.peers_ ? rooms_.peers_->generation_of(id) : 0;
  return NodeGenerations::of_node(rooms_.identity_.node, rooms_.identity_.volume_uuid);
}

Status OtherNodes::check_may_change(const Object& object) const {
  if (!object.id.is_foreign()) return {};
  return fail(Code::kReadOnly, fmt::format("object {} was stored by node '{}': another can replace or remove it, not change it", object.id.value,
                                           rooms_.peers_->node_of(object.id)));
}

// Also for a body that is in RAM: it may leave the RAM before it is read.
void OtherNodes::await_catching_up(ObjectId id, std::move_only_function<void()> then) {
  if (!rooms_.peers_ || !id.is_foreign() || !rooms_.peers_->catch_up().is_due()) return then();
  rooms_.peers_->catch_up().read([this, then = std::move(then)]() mutable { rooms_.resumer_.answer_later(std::move(then)); });
}

// True: this node has made statements about the peer's files that lie behind those the peer has answered.
bool OtherNodes::is_unanswered(uint32_t ordinal) const {
  const Tree::Read names = rooms_.tree_->read();
  const Part* const part = rooms_.tree_->view().peer(ordinal);
  return part != nullptr && rooms_.tree_->statements()->speaks_of(part->node, part->statements->seen(rooms_.identity_.node));
}

void OtherNodes::tell(StoreStatus& status) const {
  if (!rooms_.peers_) return;
  status.capacity_is_short = rooms_.shared_capacity_->plan().is_short || rooms_.eviction_->backing_is_short();
  status.held_for_peers_bytes = rooms_.checkpointer_->held_for_peers_bytes() + rooms_.checkpointer_->held_of_earlier_lives_bytes();
  if (status.held_for_peers_bytes > 0)
    if (const auto known = rooms_.peers_->acknowledged()) status.held_for_peer = known->waits_for();
  status.peers_problem = rooms_.peers_->problem();
  if (status.peers_problem.empty() && rooms_.space_.claim_has_lapsed()) status.peers_problem = "claim: nothing is stored before HEAD could be written again";
  for (PeerStatus& peer : rooms_.peers_->status())
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

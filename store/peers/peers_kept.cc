// What Peers keeps on this machine for the next life: an index of each peer, and the ordinals.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "store/base/log.h"
#include "store/base/node_name.h"
#include "store/peers/part_size.h"
#include "store/peers/peers_peer.h"
#include "store/volume/posix_tree.h"

namespace kvcachefs {

namespace {
// Growth of all indexes here that may stay in memory without being claimed.
constexpr uint64_t kMostUnclaimedBytes = 64 * kMiB, kMostUnclaimedRows = 200'000;
constexpr int64_t kUnclaimedLoadNs = 10 * Peers::kSecondNs, kHopelessLoadNs = Peers::kSecondNs;
constexpr int64_t kLookAgainNs = Peers::kSecondNs / 4;
constexpr int64_t kLetGoNs = 5 * Peers::kSecondNs;  // how often index pages that reads have mapped are let go of
}  // namespace

// Removes the directories of nodes that the volume no longer has, once nobody reads their indexes.
void Peers::remove_leaving() {
  std::erase_if(leaving_, [this](const Leaving& each) {
    if (!each.index.expired()) return false;
    if (Status removed = Replica::remove(directory_of(each.node)); !removed) log::warn("peer {}: {}", each.node, removed.error().message);
    return true;
  });
}

// The same for nodes that left the volume while this node was away.
void Peers::remove_unknown_directories() {
  const auto tree = PosixTree::open(parts_.directory);
  const auto entries = tree ? tree->list("") : std::unexpected(tree.error());
  if (!entries) return;  // nothing was made there, or each peer reports the error itself
  for (const auto& [name, is_directory] : *entries) {
    if (!is_node_name(name) || peers_.contains(name)) continue;
    if (Status removed = Replica::remove(directory_of(name)); !removed) log::warn("peer {}: {}", name, removed.error().message);
  }
}

void Peers::keep_ordinals(int64_t now_ns) {
  if (discovery_->ordinals() == kept_ordinals_ || !ordinals_pause_.may_try(now_ns)) return;
  const Status kept = write_ordinals(parts_.directory + "/.ordinals", discovery_->ordinals());
  note_problem("ordinals", kept);
  if (!kept) return ordinals_pause_.failed(now_ns);
  kept_ordinals_ = discovery_->ordinals();
  ordinals_pause_.succeeded();
}

// --- indexes ---

// The growth of the indexes is claimed first, however long that takes, while it is not too much for memory. All nodes together set little aside for that: the
// largest indexes are committed before it becomes more.
void Peers::commit_due() {
  const IndexRoom room = tell_growth();
  std::vector<Peer*> growing;
  uint64_t growth_bytes = 0, rows = 0;
  for (const auto& [name, peer] : peers_) {
    if (!peer->replica || !peer->replica->is_uncommitted()) continue;
    growing.push_back(peer.get());
    growth_bytes += peer->replica->growth_bytes();
    rows += peer->replica->uncommitted_rows();
  }
  const int64_t now_ns = parts_.clock.monotonic_ns();
  // Removals free their place in an index only by a commit: where room is lacking a few indexes are committed each second.
  constexpr size_t kMostEarly = 4;
  std::set<const Peer*> early;
  if (room.is_short && (!committed_early_ns_ || now_ns - *committed_early_ns_ >= kSecondNs)) {
    committed_early_ns_ = now_ns;
    std::ranges::sort(growing, std::greater(), [](const Peer* peer) { return peer->replica->uncommitted_rows(); });
    early.insert(growing.begin(), growing.begin() + static_cast<ptrdiff_t>(std::min(growing.size(), kMostEarly)));
  }
  std::ranges::sort(growing, std::greater(), [](const Peer* peer) { return peer->replica->growth_bytes(); });
  const uint64_t most_bytes = most_growth_bytes(room, followed_ + 1);
  uint64_t claimed_bytes = room.claimed_bytes;
  for (Peer* const peer : growing) {
    const uint64_t bytes = peer->replica->growth_bytes();
    if (growth_bytes <= most_bytes / 2 && !early.contains(peer) && !peer->replica->is_commit_due(now_ns)) continue;
    const bool is_too_much = growth_bytes > kMostUnclaimedBytes || rows > kMostUnclaimedRows;
    if (bytes > claimed_bytes && !is_too_much) continue;
    claimed_bytes -= std::min(claimed_bytes, bytes);
    const uint64_t its_rows = peer->replica->uncommitted_rows();
    // Until the growth is measured nobody else may use the space.
    const bool reserved = room.evicts && !is_too_much && room.reserve && bytes > 0;  // a node that evicts nothing keeps that space from calls anyway
    if (reserved && !room.reserve(bytes)) continue;
    const bool committed = commit(*peer);
    if (reserved) {
      static_cast<void>(tell_growth());
      room.release(bytes);
    }
    if (!committed) continue;
    growth_bytes -= bytes;
    rows -= its_rows;
  }
  give_back_unused(tell_growth());
  if (!let_go_soon_.exchange(false) && let_go_ns_ && now_ns - *let_go_ns_ < kLetGoNs) return;
  let_go_ns_ = now_ns;
  for (const auto& [name, peer] : peers_)
    if (peer->replica) peer->replica->let_go_of_mapped();
}

// A new index lies beside the one that is served until it is whole, so room for both is claimed first. After a limited wait the served one
// is given up first.
bool Peers::may_load(Peer& peer) {
  Replica& replica = *peer.replica;
  const int64_t now_ns = parts_.clock.monotonic_ns();
  const uint64_t bytes = replica.measure_load();
  const IndexRoom room = bytes == 0 ? IndexRoom() : tell_growth();
  if (!peer.load_wanted_ns) peer.load_wanted_ns = now_ns;
  const int64_t waited_ns = now_ns - *peer.load_wanted_ns;
  if (peer.has_part() && room.claimed_bytes < bytes && waited_ns >= (room.may_get_more ? kUnclaimedLoadNs : kHopelessLoadNs)) let_go(peer);
  if (replica.is_let_go() || (peer.has_part() && room.claimed_bytes < bytes)) {
    peer.look_again_ns = now_ns + kLookAgainNs;
    return false;
  }
  peer.load_wanted_ns.reset();
  return true;
}

// The peer's names are absent until it is loaded; clients read on from files they have open.
void Peers::let_go(Peer& peer) {
  log::warn("peer {}: there is no room to load it beside what was read of it before: its names are absent until it is loaded", peer.node);
  {
    const std::lock_guard lock(mutex_);
    indexes_.erase(peer.ordinal);
  }
  peer.replica->let_go();
  unshown_.push_back(peer.ordinal);
  static_cast<void>(show());  // on an error the next round retries, before anything is loaded or polled
}

// Shrinks an index where a node lacks room, if it is worth the write: one a round, for other work waits for this thread.
void Peers::give_back_unused(const IndexRoom& room) {
  if (!room.is_short) return;
  const int64_t now_ns = parts_.clock.monotonic_ns();
  Peer* emptiest = nullptr;
  uint64_t unused = least_given_back_bytes(room.capacity_bytes, followed_ + 1) - 1;
  for (const auto& [name, peer] : peers_) {
    if (!peer->replica || peer->replica->wants_load() || !peer->shrink_pause.may_try(now_ns) || peer->replica->unused_bytes() <= unused) continue;
    emptiest = peer.get();
    unused = peer->replica->unused_bytes();
  }
  if (emptiest == nullptr) return;
  emptiest->shrink_pause.failed(now_ns);
  const uint64_t bytes = allocated_below(directory_of(emptiest->node)), copy_bytes = less_bytes(bytes, unused) + kLeastGrowthBytes;
  const uint64_t lacking = less_bytes(copy_bytes, room.claimed_bytes);
  if (unused < bytes / 2 || (lacking > 0 && room.reserve && !room.reserve(lacking))) return;
  const bool gave_back = emptiest->replica->give_back_unused();
  if (lacking > 0 && room.release) room.release(lacking);
  if (!gave_back) return;
  log::debug("peer {}: {} of its index's {} bytes were unused and are given back", emptiest->node, unused, bytes);
  static_cast<void>(tell_growth());
  want_room();  // others read of the freed space now, not in a second
}

IndexRoom Peers::tell_growth() {
  if (!parts_.indexes_grow) return {};
  uint64_t growth_bytes = 0;
  for (const auto& [name, peer] : peers_)
    if (peer->replica) growth_bytes += peer->replica->growth_bytes() + peer->replica->load_bytes();
  return parts_.indexes_grow(growth_bytes);
}

bool Peers::commit(Peer& peer) {
  const int64_t now_ns = parts_.clock.monotonic_ns();
  if (!peer.commit_pause.may_try(now_ns)) return false;
  const Status committed = peer.replica->commit();
  if (!committed && peer.commit_problem.empty()) log::warn("peer {}: {}", peer.node, committed.error().message);
  peer.commit_problem = committed ? std::string() : committed.error().message;
  if (committed) {
    peer.commit_pause.succeeded();
  } else {
    peer.commit_pause.failed(now_ns);
  }
  return committed.has_value();
}

// --- at the end ---

void Peers::stop() {
  ending_ = true;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    std::ranges::move(asked_, std::back_inserter(refreshes_));
    asked_.clear();
  }
  for (Refreshed& done : std::exchange(refreshes_, {})) done(fail(Code::kCanceled, "the node's daemon ends"));
  uint64_t claimed_bytes = tell_growth().claimed_bytes;  // what has no room is not committed: the next life reads it again
  for (const auto& [name, peer] : peers_) {
    const uint64_t bytes = peer->replica ? peer->replica->growth_bytes() : 0;
    if (!peer->replica || bytes > claimed_bytes) continue;
    claimed_bytes -= bytes;
    if (Status committed = peer->replica->commit(); !committed) log::warn("peer {}: {}", name, committed.error().message);
  }
}

void Peers::keep_indexes_within(uint64_t most_bytes) {
  struct Kept {
    Peer* peer;
    uint64_t objects, bytes;
  };
  std::vector<Kept> kept;
  for (const auto& [name, peer] : peers_)
    if (peer->replica) kept.push_back({peer.get(), peer->replica->objects(), allocated_below(directory_of(name))});
  std::ranges::sort(kept, std::greater(), &Kept::objects);
  uint64_t bytes = 0;
  std::erase_if(kept, [&](const Kept& each) {
    const bool fits = bytes + each.bytes <= most_bytes;
    bytes += fits ? each.bytes : 0;
    return fits;
  });
  if (kept.empty() && most_bytes > 0) return;
  static_cast<void>(parts_.alone([this]() -> Status {
    parts_.view.set_peers({});
    return {};
  }));
  {
    const std::lock_guard lock(mutex_);
    indexes_.clear();
  }
  for (const Kept& each : kept) {
    each.peer->replica.reset();
    if (Status removed = Replica::remove(directory_of(each.peer->node)); !removed) log::warn("peer {}: {}", each.peer->node, removed.error().message);
  }
  if (most_bytes > 0) return;
  std::error_code ignored;
  std::filesystem::remove(parts_.directory + "/.ordinals", ignored);
  std::filesystem::remove(parts_.directory, ignored);
}

}  // namespace kvcachefs

#include "store/evict/prefix_policy.h"

#include <algorithm>

#include <fmt/format.h>

namespace kvcachefs::evict {

namespace {
constexpr size_t kDraws = 16;
constexpr int kRoundsByRecency = 4;     // of draws: least recently used needs the very oldest leaves
constexpr size_t kPool = 32;
constexpr size_t kLookAtAll = 64;       // with at most this many leaves, all are scored
constexpr size_t kMostSwept = 2048;     // leaves in one call, when the drawn ones are held
constexpr size_t kSlice = 64;           // nodes or ghosts of a pass that one access visits
constexpr uint64_t kVisitsPerPass = 64;  // at least
constexpr size_t kEntriesPerVisit = 16;  // one pass every (entries / this) visits
constexpr uint64_t kUnfullKept = 8;      // one in so many ghosts of unfull units: all of them would displace the others
constexpr double kGhostsPerNode = 4;
constexpr double kBytesPerUnit = 64;     // of memory, ghosts included
constexpr double kLinksRemembered = 4000;
constexpr uint32_t kOldestTicks = uint32_t{1} << 30;  // 198 days: older visits are set to this, or they would seem young when ticks wrap
}  // namespace

uint8_t PrefixPolicy::stem_index(StemKey stem) {
  for (size_t i = 0; i < stems_known_; ++i)
    if (stems_[i] == stem) return static_cast<uint8_t>(i);
  if (stems_known_ == stems_.size()) return ReuseModel::kStems - 1;
  stems_[stems_known_] = stem;
  if (stems_known_ == 1) model_.separate_stems();
  return static_cast<uint8_t>(stems_known_++);
}

void PrefixPolicy::link_checked(bool held) {
  ++(held ? held_links_ : broken_links_);
  if (held_links_ + broken_links_ <= kLinksRemembered) return;
  held_links_ /= 2;
  broken_links_ /= 2;
}

size_t PrefixPolicy::ghost_limit() const {
  const double nodes = static_cast<double>(forest_.nodes()), units = static_cast<double>(forest_.units());
  const double taken = (units + static_cast<double>(forest_.absent())) * Forest::kUnitBytes + nodes * Forest::kNodeBytes +
                       static_cast<double>(forest_.leaves()) * Forest::kLeafBytes;
  const double room = std::max(0.0, kBytesPerUnit * units - taken) / Ghosts::kBytes;
  return static_cast<size_t>(std::min(kGhostsPerNode * nodes, room)) + 64;
}

void PrefixPolicy::put_ghost(UnitKey key, const Node& node) {
  if (node.kind == NodeKind::kUnfull && random_() % kUnfullKept != 0) {
    model_.gone(past(node), age_ms(node.visited));
    return;
  }
  Ghost ghost;
  ghost.key = key;
  ghost.visited = node.visited;
  ghost.lost = node.lost;
  ghost.kind = static_cast<uint16_t>(node.kind) & 3;
  ghost.turn = std::min<uint16_t>(node.turn, 3) & 3;
  ghost.pause = node.pause & 7;
  ghost.stem = node.stem & 7;
  ghost.fresh = std::min<uint16_t>(node.fresh, 63) & 63;
  ghosts_.put(ghost);
  ghosts_.shrink(ghost_limit(), 64, [&](const Ghost& old) { model_.gone(old.past(), age_ms(old.visited)); });
}

// Computes new rates once in a number of visits, one slice at each access.
void PrefixPolicy::on_access() {
  if (pass_ == Pass::kIdle) {
    if (counted_.visits < next_pass_) return;
    model_.begin();
    pass_ = Pass::kNodes;
    cursor_ = 0;
  }
  if (pass_ == Pass::kNodes) {
    for (size_t n = 0; n < kSlice && cursor_ < forest_.node_slots(); ++n, ++cursor_) {
      const auto id = static_cast<NodeId>(cursor_);
      if (!forest_.live(id)) continue;
      Node& node = forest_.node(id);
      if (now_tick() - node.visited > kOldestTicks) node.visited = now_tick() - kOldestTicks;
      if (now_tick() - node.before > kOldestTicks) node.before = now_tick() - kOldestTicks;
      if (!node.is(Node::kGhosted)) model_.add_waiting(past(node), age_ms(node.visited));
    }
    if (cursor_ < forest_.node_slots()) return;
    pass_ = Pass::kGhosts;
    cursor_ = 0;
    return;
  }
  if (pass_ == Pass::kGhosts) {
    for (size_t n = 0; n < kSlice && cursor_ < ghosts_.slots(); ++n, ++cursor_) {
      const Ghost& ghost = ghosts_.slot(cursor_);
      if (ghost.key.valid()) model_.add_waiting(ghost.past(), age_ms(ghost.visited));
    }
    if (cursor_ < ghosts_.slots()) return;
    pass_ = Pass::kRates;
    return;
  }
  if (!model_.advance()) return;
  pass_ = Pass::kIdle;
  const uint64_t entries = forest_.nodes() + ghosts_.size();
  const uint64_t least = kVisitsPerPass * (model_.stems_separated() ? 4 : 1);
  next_pass_ = counted_.visits + std::max<uint64_t>(least, entries / kEntriesPerVisit);
}

float PrefixPolicy::score(const Node& node, bool by_recency) const {
  const int64_t age = age_ms(node.visited);
  if (by_recency) return -static_cast<float>(age);
  return model_.rate(past(node), age);
}

void PrefixPolicy::consider(NodeId id, const Ask& ask, bool by_recency) {
  if (!forest_.live(id)) return;
  const Node& node = forest_.node(id);
  if (!node.is(Node::kLeaf)) return;
  if (is_leased(node, ask)) {
    ++counted_.skipped_leased;
    return;
  }
  if (std::ranges::any_of(candidates_, [&](const Candidate& other) { return other.node == id; })) return;
  candidates_.push_back({score(node, by_recency), now_tick() - node.visited, id});
}

// Draws random leaves. They are far apart in memory, so all are prefetched before the first is examined.
void PrefixPolicy::draw(const Ask& ask, bool by_recency) {
  std::array<NodeId, kDraws> drawn{};
  for (int round = 0; round < (by_recency ? kRoundsByRecency : 1); ++round) {
    for (NodeId& id : drawn) {
      id = forest_.leaf(random_() % forest_.leaves());
      __builtin_prefetch(&forest_.node(id));
    }
    for (const NodeId id : drawn) consider(id, ask, by_recency);
  }
}

// Returns the candidate with the lowest score that is not held, the older of equals; keeps the next ones for later calls.
NodeId PrefixPolicy::best(const Ask& ask) {
  const auto goes_later = [](const Candidate& a, const Candidate& b) {
    if (a.score != b.score) return a.score > b.score;
    return a.age_ticks != b.age_ticks ? a.age_ticks < b.age_ticks : a.node > b.node;
  };
  const auto goes_sooner = [&](const Candidate& a, const Candidate& b) { return goes_later(b, a); };
  std::ranges::make_heap(candidates_, goes_later);
  while (!candidates_.empty() && is_held(forest_.node(candidates_.front().node), ask)) {
    std::ranges::pop_heap(candidates_, goes_later);
    candidates_.pop_back();
  }
  const NodeId chosen = candidates_.empty() ? kNoSlot : candidates_.front().node;
  if (candidates_.size() > kPool) {
    std::ranges::nth_element(candidates_, candidates_.begin() + kPool, goes_sooner);
    candidates_.resize(kPool);
  }
  pool_.clear();
  for (const Candidate& candidate : candidates_) pool_.push_back(candidate.node);
  return chosen;
}

NodeId PrefixPolicy::pick(const Ask& ask, Choice& choice) {
  const size_t leaves = forest_.leaves();
  const bool by_recency = ask.break_leases || !links_hold();
  candidates_.clear();
  if (leaves <= kLookAtAll) {
    for (size_t place = 0; place < leaves; ++place) consider(forest_.leaf(place), ask, by_recency);
  } else {
    for (const NodeId id : pool_) consider(id, ask, by_recency);
    draw(ask, by_recency);
  }
  NodeId chosen = best(ask);
  if (chosen == kNoSlot && leaves > kLookAtAll) {
    // Nearly everything is held: walk over all leaves, in several calls.
    const size_t most = std::min(kMostSwept, leaves - std::min(swept_, leaves));
    for (size_t n = 0; n < most && chosen == kNoSlot; ++n, ++swept_) {
      sweep_ = sweep_ + 1 < leaves ? sweep_ + 1 : 0;
      const Node& node = forest_.node(forest_.leaf(sweep_));
      if (is_leased(node, ask)) {
        ++counted_.skipped_leased;
      } else if (!is_held(node, ask)) {
        chosen = forest_.leaf(sweep_);
      }
    }
    if (chosen == kNoSlot && swept_ < leaves) {
      choice.reason = Reason::kBusy;
      return kNoSlot;
    }
  }
  swept_ = 0;
  if (chosen == kNoSlot) {
    choice.reason = Reason::kNothing;
  } else if (ask.break_leases) {
    choice.reason = Reason::kLeaseBroken;
  } else if (forest_.node(chosen).kind == NodeKind::kUnfull) {
    choice.reason = Reason::kUnfull;
  } else {
    choice.reason = by_recency ? Reason::kRecency : Reason::kScore;
  }
  return chosen;
}

double PrefixPolicy::worth(const Node& node, int64_t age_ms) const {
  return links_hold() ? double{model_.rate(past(node), age_ms)} : TreePolicy::worth(node, age_ms);
}

PolicyCounts PrefixPolicy::counts() const {
  PolicyCounts counts = TreePolicy::counts();
  counts.ghosts = ghosts_.size();
  counts.memory_bytes += ghosts_.memory_bytes();
  counts.by_recency = !links_hold();
  return counts;
}

std::string PrefixPolicy::check() const {
  if (std::string broken = TreePolicy::check(); !broken.empty()) return broken;
  if (ghosts_.size() > ghosts_.slots()) return "more ghosts than entries";
  return {};
}

void PrefixPolicy::save_tables(ByteWriter& out) const {
  out.varint(stems_known_);
  for (size_t i = 0; i < stems_known_; ++i) out.u64(stems_[i].value);
  model_.save(out);
}

Status PrefixPolicy::restore_tables(ByteReader& in) {
  const uint64_t known = in.varint();
  if (known > stems_.size()) return fail(Code::kCorrupt, fmt::format("{} stems", known));
  std::array<StemKey, ReuseModel::kStems - 1> stems{};
  for (size_t i = 0; i < known; ++i) stems[i] = {in.u64()};
  ReuseModel model;
  KVC_TRY(model.restore(in));
  if (model.stems_separated() != (known > 1)) return fail(Code::kCorrupt, "classes of stems that are not there");
  if (!in.ok() || !in.at_end()) return fail(Code::kCorrupt, "there is more, or less, than they take");
  model_ = std::move(model);
  stems_ = stems;
  stems_known_ = static_cast<size_t>(known);
  pass_ = Pass::kIdle;
  next_pass_ = counted_.visits + kVisitsPerPass;
  return {};
}

}  // namespace kvcachefs::evict

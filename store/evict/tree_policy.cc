#include "store/evict/tree_policy.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvcachefs::evict {

namespace {
constexpr double kChosenWeight = 1.0 / 64;
uint8_t next_turn(uint8_t turn) { return turn < 250 ? static_cast<uint8_t>(turn + 1) : turn; }
bool is_before(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }
}  // namespace

uint8_t TreePolicy::pause_class(int64_t ms) {
  const uint64_t halves = static_cast<uint64_t>(std::max<int64_t>(ms, 0)) / 500;
  return static_cast<uint8_t>(std::min(7, static_cast<int>(std::bit_width(halves)) / 2));
}

void TreePolicy::advance(TimeMs now) {
  if (!started_) {
    started_ = true;
    origin_ms_ = now_ms_ = now.value;
  }
  now_ms_ = std::max(now_ms_, now.value);
}

UnitKey TreePolicy::predecessor(UnitKey unit) const {
  const UnitSlot slot = forest_.find(unit);
  if (!forest_.present(slot)) return {};
  const UnitSlot prev = forest_.prev(slot);
  return forest_.present(prev) ? forest_.key(prev) : UnitKey{};
}

bool TreePolicy::forks_behind(UnitKey unit) const {
  const UnitSlot slot = forest_.find(unit);
  if (!forest_.present(slot)) return false;
  const Node& node = forest_.node(forest_.node_of(slot));
  return node.kind == NodeKind::kTrunk && node.tail == slot && node.children() > 1;
}

bool TreePolicy::read(UnitKey unit, TimeMs now) {
  const UnitSlot slot = forest_.find(unit);
  if (!forest_.present(slot)) return false;
  advance(now);
  visit(forest_.node(forest_.node_of(slot)));
  on_access();
  return true;
}

void TreePolicy::visit(Node& node) {
  node.set(Node::kLooked, true);
  const uint32_t now = now_tick();
  const int64_t age = age_ms(node.visited);
  if (age <= kVisitMs) return;
  ++counted_.visits;
  if (node.is(Node::kGhosted)) {  // over half of it is gone: its ghost stands for that part, and the rest starts anew
    node.set(Node::kGhosted, false);
    node.visited = node.before = now;
    node.lost = 0;
    node.turn = 1;
    node.fresh = static_cast<uint16_t>(std::min<uint32_t>(node.size, UINT16_MAX));
    return;
  }
  on_hit(past(node), age, 1);
  node.before = node.visited;
  node.fresh_before = node.fresh;
  node.pause_before = node.pause;
  node.pause = pause_class(age);
  node.visited = now;
  if (node.kind == NodeKind::kLine) {
    node.turn = next_turn(node.turn);
    node.fresh = 0;
  }
}

void TreePolicy::publish(const Published& what, TimeMs now) {
  advance(now);
  const UnitSlot slot = forest_.find(what.unit);
  if (forest_.present(slot)) {
    visit(forest_.node(forest_.node_of(slot)));
    return on_access();
  }
  if (slot != kNoSlot) {  // removed before its followers: it returns to its place
    forest_.restore(slot);
    forest_.node(forest_.node_of(slot)).visited = now_tick();
    return on_access();
  }
  const std::optional<Ghost> ghost = take_ghost(what.unit);
  if (ghost) {
    ++counted_.visits;
    ++counted_.ghost_hits;
    on_hit(ghost->past(), age_ms(ghost->visited), 1);
  }
  UnitSlot pred = what.follows.valid() ? forest_.find(what.follows) : kNoSlot;
  if (!forest_.present(pred) || forest_.node(forest_.node_of(pred)).kind == NodeKind::kUnfull) pred = kNoSlot;
  const uint8_t stem = stem_index(what.stem);
  if (!what.full) {
    const NodeId id = forest_.add_node(what.unit, kNoSlot, NodeKind::kUnfull, now_tick());
    forest_.node(id).stem = stem;
    return on_access();
  }
  if (pred != kNoSlot) {
    if (forest_.node(forest_.node_of(pred)).tail != pred) split(pred);
    const NodeId id = forest_.node_of(pred);
    Node& node = forest_.node(id);
    if (node.kind == NodeKind::kLine && node.is(Node::kLeaf)) {
      go_on(node, ghost);
      node.stem = stem;
      forest_.append(id, what.unit);
      return on_access();
    }
    if (node.kind == NodeKind::kLine) become_trunk(node);
  }
  const NodeId id = forest_.add_node(what.unit, pred, NodeKind::kLine, now_tick());
  Node& node = forest_.node(id);
  node.stem = stem;
  node.fresh = 1;
  if (ghost) revive(node, *ghost);
  on_access();
}

// Call before a unit is added to the line.
void TreePolicy::go_on(Node& node, const std::optional<Ghost>& ghost) {
  const int64_t age = age_ms(node.visited);
  if (ghost) {
    revive(node, *ghost);  // the unit was the middle of an evicted line: all units up to here are old
  } else if (node.lost > 0) {
    --node.lost;  // written again, not new
  } else {
    if (node.fresh == 0 && !node.is(Node::kLooked) && age > kUnseenMs) {
      on_gone(past(node), age);
      node.turn = next_turn(node.turn);
    }
    if (node.fresh < UINT16_MAX) ++node.fresh;
  }
  node.set(Node::kLooked, false);
  node.visited = now_tick();
}

void TreePolicy::revive(Node& node, const Ghost& ghost) {
  const Past past = ghost.past();
  node.kind = past.kind == NodeKind::kTrunk ? NodeKind::kTrunk : NodeKind::kLine;
  node.turn = past.kind == NodeKind::kLine ? next_turn(past.turn) : uint8_t{1};
  node.fresh = 0;
  node.pause = pause_class(age_ms(ghost.visited));
  node.before = ghost.visited;
  node.fresh_before = past.fresh;
  node.pause_before = past.pause;
  node.lost = ghost.lost;
  node.set(Node::kGhosted, false);
}

void TreePolicy::become_trunk(Node& node) {
  node.kind = NodeKind::kTrunk;
  node.pause = pause_class(int64_t{uint32_t{node.visited - node.before}} * kTickMs);
}

void TreePolicy::split(UnitSlot last) {
  ++counted_.splits;
  const Forest::Halves halves = forest_.split(last);
  Node& head = forest_.node(halves.head);
  Node& rest = forest_.node(halves.rest);
  const bool visited_twice = is_before(rest.before, rest.visited);
  const int64_t pause_ms = int64_t{uint32_t{rest.visited - rest.before}} * kTickMs;
  Past before = past(rest);
  before.fresh = rest.fresh_before;
  before.pause = rest.pause_before;
  if (rest.kind == NodeKind::kLine && rest.turn > 1) --before.turn;
  if (visited_twice && rest.is(Node::kLooked) && age_ms(rest.visited) <= kUnseenMs) {
    // The visit was counted for the whole node, but only this share of it was read again.
    on_hit(before, pause_ms, static_cast<float>(head.size) / static_cast<float>(head.size + rest.size) - 1);
  }
  head.kind = NodeKind::kTrunk;
  head.turn = 1;
  head.pause = pause_class(pause_ms);
  head.pause_before = 0;
  head.fresh = head.fresh_before = head.lost = 0;
  head.set(Node::kLooked, false);
  head.set(Node::kGhosted, false);
  if (visited_twice) {
    rest.visited = rest.before;
    rest.fresh = static_cast<uint16_t>(std::min<uint32_t>(before.fresh, rest.size));
    rest.pause = before.pause;
    rest.turn = before.turn;
  }
  if (rest.is(Node::kLeaf)) became_leaf(halves.rest);
}

void TreePolicy::unlink(UnitKey unit) {
  if (const UnitSlot slot = forest_.find(unit); forest_.present(slot)) forest_.remove(slot);
}

void TreePolicy::evicted(UnitKey unit) {
  const UnitSlot slot = forest_.find(unit);
  if (!forest_.present(slot)) return;
  Node& node = forest_.node(forest_.node_of(slot));
  if (node.is(Node::kLeaf) && node.tail == slot && !node.is(Node::kGhosted) &&
      2 * uint64_t{node.size} <= uint64_t{node.size} + node.lost + 1) {
    put_ghost(unit, node);
    node.set(Node::kGhosted, true);
  }
  forest_.remove(slot);
}

void TreePolicy::relink(UnitKey unit, UnitKey follows) {
  const UnitSlot slot = forest_.find(unit);
  if (slot == kNoSlot) return;
  UnitSlot pred = follows.valid() && follows != unit ? forest_.find(follows) : kNoSlot;
  if (forest_.prev(slot) == pred) return;
  if (forest_.node(forest_.node_of(slot)).kind == NodeKind::kUnfull) return;
  if (pred != kNoSlot && forest_.node(forest_.node_of(pred)).kind == NodeKind::kUnfull) pred = kNoSlot;
  const UnitSlot old = forest_.prev(slot);
  if (old != kNoSlot && forest_.node_of(old) == forest_.node_of(slot)) {
    ++counted_.splits;
    const Forest::Halves halves = forest_.split(old);
    if (forest_.node(halves.rest).is(Node::kLeaf)) became_leaf(halves.rest);
  }
  forest_.detach(slot);
  if (pred == kNoSlot || forest_.find(follows) != pred) return;
  if (forest_.below(pred, forest_.node_of(slot))) return;
  if (forest_.node(forest_.node_of(pred)).tail != pred) split(pred);
  if (Node& node = forest_.node(forest_.node_of(pred)); node.kind == NodeKind::kLine) become_trunk(node);
  forest_.attach(slot, pred);
}

bool TreePolicy::is_leased(const Node& node, const Ask& ask) const {
  return ask.lease_ms > 0 && !ask.break_leases && age_ms(node.visited) < ask.lease_ms + kVisitMs;
}

Hold TreePolicy::hold_of(UnitKey unit, const Ask& ask) const {
  if (ask.held == nullptr || !*ask.held) return Hold::kNone;
  const Hold hold = (*ask.held)(unit);
  return hold == Hold::kLeased && ask.break_leases ? Hold::kNone : hold;
}

bool TreePolicy::is_held(const Node& node, const Ask& ask) {
  const Hold hold = hold_of(forest_.key(node.tail), ask);
  if (hold == Hold::kNone) return false;
  ++(hold == Hold::kLeased ? counted_.skipped_leased : counted_.skipped_held);
  return true;
}

Choice TreePolicy::choose(const Ask& ask, std::vector<UnitKey>& out) {
  advance(ask.now);
  Choice choice;
  const NodeId id = ask.max_units == 0 ? kNoSlot : pick(ask, choice);
  if (id == kNoSlot) return choice;
  const Node& node = forest_.node(id);
  choice.age_ms = age_ms(node.visited);
  chosen_worth_ += (worth(node, choice.age_ms) - chosen_worth_) * (chosen_worth_ > 0 ? kChosenWeight : 1);
  size_t wanted = ask.max_units;
  for (UnitSlot unit = node.tail; unit != node.up && wanted > 0; unit = forest_.prev(unit)) {
    if (!forest_.present(unit)) continue;
    if (unit != node.tail && hold_of(forest_.key(unit), ask) != Hold::kNone) break;
    out.push_back(forest_.key(unit));
    --wanted;
  }
  return choice;
}

bool TreePolicy::part_chains(const Ask& ask) {
  constexpr size_t kMostSteps = 4096;
  advance(ask.now);
  const size_t leaves = forest_.leaves();
  for (size_t steps = 0; parted_ < leaves && steps < kMostSteps; ++parted_) {
    parted_at_ = parted_at_ + 1 < leaves ? parted_at_ + 1 : 0;
    UnitSlot held = kNoSlot, unit = forest_.node(forest_.leaf(parted_at_)).tail;
    while (unit != kNoSlot && ++steps < kMostSteps && (!forest_.present(unit) || hold_of(forest_.key(unit), ask) != Hold::kNone)) {
      held = unit;
      unit = forest_.prev(unit);
    }
    if (unit == kNoSlot || held == kNoSlot || steps >= kMostSteps) continue;
    relink(forest_.key(held), {});
    if (forest_.prev(held) == unit) continue;
    parted_ = 0;
    return true;
  }
  if (parted_ < leaves) return true;
  parted_ = 0;
  return false;
}

double TreePolicy::worth(const Node&, int64_t age_ms) const { return 1.0 / static_cast<double>(age_ms + kTickMs); }

bool TreePolicy::worth_little(UnitKey unit, double factor, TimeMs now) const {
  const UnitSlot slot = forest_.find(unit);
  if (!forest_.present(slot)) return false;
  const Node& node = forest_.node(forest_.node_of(slot));
  if (!node.is(Node::kLeaf) || node.tail != slot) return false;
  const int64_t age = age_ms(node.visited) + std::max<int64_t>(0, now.value - now_ms_);
  return std::isinf(factor) || worth(node, age) <= factor * chosen_worth_;
}

PolicyCounts TreePolicy::counts() const {
  PolicyCounts counts = counted_;
  counts.units = forest_.units();
  counts.nodes = forest_.nodes();
  counts.leaves = forest_.leaves();
  counts.memory_bytes = forest_.memory_bytes();
  return counts;
}

std::optional<Node> TreePolicy::node_of(UnitKey unit) const {
  const UnitSlot slot = forest_.find(unit);
  if (!forest_.present(slot)) return std::nullopt;
  return forest_.node(forest_.node_of(slot));
}

}  // namespace kvcachefs::evict

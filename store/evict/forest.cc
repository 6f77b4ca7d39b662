#include "store/evict/forest.h"

#include <algorithm>
#include <vector>

namespace kvcachefs::evict {

namespace {
constexpr int kMostStepsUp = 4096;
constexpr size_t kAbsentKept = 1024;    // absent units kept, plus one for so many present ones:
constexpr size_t kPresentPerAbsent = 16;
constexpr uint32_t kCutSteps = 64;      // in one removal, while it looks for chains to cut
// The later of two ticks, which wrap around.
uint32_t later(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) >= 0 ? a : b; }
}  // namespace

UnitSlot Forest::new_unit(UnitKey key, UnitSlot prev, NodeId node) {
  UnitSlot slot = free_units_;
  if (slot != kNoSlot) {
    free_units_ = units_[slot].prev;
  } else {
    slot = static_cast<UnitSlot>(units_.size());
    units_.push_back({});
  }
  units_[slot] = {key, prev, node};
  index_.insert(key, slot, key_of());
  ++present_;
  return slot;
}

void Forest::free_unit(UnitSlot unit) {
  index_.erase(units_[unit].key, key_of());
  present(unit) ? --present_ : --absent_;
  units_[unit] = {{}, free_units_, 0};
  free_units_ = unit;
}

NodeId Forest::new_node() {
  NodeId id = free_nodes_;
  if (id != kNoSlot) {
    free_nodes_ = nodes_[id].up;
  } else {
    id = static_cast<NodeId>(nodes_.size());
    nodes_.push_back({});
  }
  nodes_[id] = Node();
  ++live_nodes_;
  return id;
}

void Forest::free_node(NodeId id) {
  nodes_[id] = Node();
  nodes_[id].up = free_nodes_;
  free_nodes_ = id;
  --live_nodes_;
}

void Forest::make_leaf(NodeId id) {
  Node& node = nodes_[id];
  node.set(Node::kLeaf, true);
  node.children_or_place = static_cast<uint32_t>(leaves_.size());
  leaves_.push_back(id);
  listener_.became_leaf(id);
}

void Forest::make_inner(NodeId id) {
  Node& node = nodes_[id];
  const uint32_t place = node.children_or_place;
  leaves_[place] = leaves_.back();
  nodes_[leaves_[place]].children_or_place = place;
  leaves_.pop_back();
  node.set(Node::kLeaf, false);
  node.children_or_place = 0;
}

void Forest::add_child(NodeId parent) {
  if (nodes_[parent].is(Node::kLeaf)) make_inner(parent);
  ++nodes_[parent].children_or_place;
}

NodeId Forest::add_node(UnitKey key, UnitSlot pred, NodeKind kind, uint32_t visited) {
  const NodeId id = new_node();
  Node& node = nodes_[id];
  node.kind = kind;
  node.visited = node.before = visited;
  node.tail = new_unit(key, pred, id);
  node.size = 1;
  node.up = pred;
  if (pred != kNoSlot) add_child(node_of(pred));
  make_leaf(id);
  return id;
}

void Forest::append(NodeId id, UnitKey key) {
  Node& node = nodes_[id];
  node.tail = new_unit(key, node.tail, id);
  ++node.size;
}

void Forest::restore(UnitSlot unit) {
  units_[unit].node &= ~kAbsent;
  ++present_;
  --absent_;
}

Forest::Halves Forest::split(UnitSlot last) {
  const NodeId old = node_of(last);
  const NodeId added = new_node();
  Node& node = nodes_[old];
  Node& other = nodes_[added];
  // Walks both halves in step until the shorter one ends.
  UnitSlot in_rest = node.tail, in_head = last;
  uint32_t steps = 0;
  bool rest_is_shorter = false;
  for (;;) {
    ++steps;
    in_rest = units_[in_rest].prev;
    if (in_rest == last) {
      rest_is_shorter = true;
      break;
    }
    in_head = units_[in_head].prev;
    if (in_head == node.up) break;
  }
  const auto relabel = [&](UnitSlot from, UnitSlot to) {
    for (UnitSlot unit = from; unit != to; unit = units_[unit].prev)
      units_[unit].node = added | (units_[unit].node & kAbsent);
  };
  const uint32_t size = node.size;
  const UnitSlot up = node.up, tail = node.tail;
  const bool leaf = node.is(Node::kLeaf);
  const uint32_t place_or_children = node.children_or_place;
  other = node;
  Halves halves{};
  if (rest_is_shorter) {
    relabel(tail, last);
    halves = {old, added};
    if (leaf) leaves_[place_or_children] = added;
  } else {
    relabel(last, up);
    halves = {added, old};
  }
  const uint32_t head_size = rest_is_shorter ? size - steps : steps;
  Node& head = nodes_[halves.head];
  Node& rest = nodes_[halves.rest];
  head.set(Node::kLeaf, false);
  head.tail = last;
  head.size = head_size;
  head.up = up;
  head.children_or_place = 1;
  rest.size = size - head_size;
  rest.up = last;
  return halves;
}

void Forest::detach(UnitSlot first) {
  const NodeId id = node_of(first);
  const UnitSlot up = nodes_[id].up;
  if (up == kNoSlot) return;
  nodes_[id].up = kNoSlot;
  units_[first].prev = kNoSlot;
  lost_child(node_of(up), nodes_[id].visited);
  trim(node_of(up));
}

void Forest::attach(UnitSlot first, UnitSlot pred) {
  units_[first].prev = pred;
  nodes_[node_of(first)].up = pred;
  add_child(node_of(pred));
}

void Forest::lost_child(NodeId id, uint32_t visited) {
  Node& node = nodes_[id];
  node.visited = later(node.visited, visited);
  if (--node.children_or_place == 0) make_leaf(id);
}

bool Forest::below(UnitSlot unit, NodeId id) const {
  NodeId at = node_of(unit);
  for (int steps = 0; at != kNoSlot && steps < kMostStepsUp; ++steps) {
    if (at == id) return true;
    at = parent(at);
  }
  return at != kNoSlot;  // too deep to tell: treated as below
}

// Drops absent units from the tail of a leaf, and the leaf once it is empty; then does the same with its parent.
void Forest::trim(NodeId id) {
  while (id != kNoSlot && nodes_[id].is(Node::kLeaf)) {
    Node& node = nodes_[id];
    while (node.size > 0 && !present(node.tail)) {
      const UnitSlot unit = node.tail;
      node.tail = units_[unit].prev;
      --node.size;
      if (node.lost < UINT16_MAX) ++node.lost;
      free_unit(unit);
    }
    if (node.size > 0) return;
    const uint32_t visited = node.visited;
    const NodeId above = parent(id);
    make_inner(id);
    free_node(id);
    if (above != kNoSlot) lost_child(above, visited);
    id = above;
  }
}

void Forest::remove(UnitSlot unit) {
  const NodeId id = node_of(unit);
  units_[unit].node |= kAbsent;
  --present_;
  ++absent_;
  if (nodes_[id].is(Node::kLeaf) && nodes_[id].tail == unit) trim(id);
  if (absent_ > kAbsentKept + present_ / kPresentPerAbsent) cut_some();
}

uint32_t Forest::cut_before(UnitSlot unit) {
  const UnitSlot last = units_[unit].prev;
  uint32_t steps = 1;
  if (node_of(last) == node_of(unit)) {
    const Halves halves = split(last);
    steps = std::min(nodes_[halves.head].size, nodes_[halves.rest].size);
    if (nodes_[halves.rest].is(Node::kLeaf)) listener_.became_leaf(halves.rest);
  }
  detach(unit);
  return steps;
}

// Visits all units in turn, because nothing points from a unit to its followers. A follower of an absent unit becomes the first of its
// chain; an absent unit without followers goes.
void Forest::cut_some() {
  uint32_t steps = 0;
  for (size_t looked = 0; looked < units_.size() && steps < kCutSteps; ++looked, ++steps) {
    const UnitSlot unit = cut_at_;
    cut_at_ = cut_at_ + 1 < units_.size() ? cut_at_ + 1 : 0;
    if (!units_[unit].key.valid() || !present(unit) || units_[unit].prev == kNoSlot || present(units_[unit].prev)) continue;
    steps += cut_before(unit);
  }
}

size_t Forest::memory_bytes() const {
  return index_.memory_bytes() + units_.memory_bytes() + nodes_.memory_bytes() + leaves_.memory_bytes();
}

std::string Forest::check() const {
  std::vector<uint32_t> children(nodes_.size(), 0);
  size_t present_units = 0, absent_units = 0, live_nodes = 0, leaves = 0;
  for (NodeId id = 0; id < nodes_.size(); ++id) {
    const Node& node = nodes_[id];
    if (node.size == 0) continue;
    ++live_nodes;
    uint32_t length = 0;
    UnitSlot at = node.tail;
    for (; at != kNoSlot && node_of(at) == id && length <= node.size; at = units_[at].prev) {
      ++length;
      if (find(units_[at].key) != at) return "a unit is not found by its key";
      ++(present(at) ? present_units : absent_units);
    }
    if (length != node.size) return "a node is not a path of its size";
    if (at != node.up) return "the first unit of a node does not follow what the node hangs below";
    if (node.up != kNoSlot) {
      const NodeId above = node_of(node.up);
      if (!live(above) || nodes_[above].tail != node.up) return "a child does not hang at its parent's tail";
      ++children[above];
    }
    if (node.is(Node::kLeaf)) {
      ++leaves;
      if (node.children_or_place >= leaves_.size() || leaves_[node.children_or_place] != id)
        return "a leaf is not at its place in the list";
      if (!present(node.tail)) return "the last unit of a leaf is absent";
    }
  }
  for (NodeId id = 0; id < nodes_.size(); ++id) {
    if (nodes_[id].size == 0) continue;
    if (children[id] != nodes_[id].children()) return "the children of a node do not add up";
    if ((children[id] == 0) != nodes_[id].is(Node::kLeaf)) return "a leaf has children, or a node without is none";
  }
  if (present_units != present_ || absent_units != absent_) return "the present and the absent units do not add up";
  if (live_nodes != live_nodes_ || leaves != leaves_.size()) return "nodes or leaves do not add up";
  return {};
}

}  // namespace kvcachefs::evict

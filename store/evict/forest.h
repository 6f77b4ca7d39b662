// The units in prefix order, as a forest. A node is a path without a fork; children hang only below a node's last unit. Pure structure:
// TreePolicy decides what a visit means. Not thread-safe.
//
// Invariants (check() tells which one is broken):
//  1. the units of a node are a path: the `prev` of each is the unit before it in the same node;
//  2. the first unit of a child has the last unit of its parent as `prev`;
//  3. exactly the nodes without children are leaves, and each leaf is once in the list of leaves;
//  4. the last unit of a leaf is present: a unit that left before its followers is kept as absent only while it has followers;
//  5. sizes, children and the counts of present and absent units add up.
// Absent units are bounded: above the bound, each removal cuts the followers off some absent units, and those absent units go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "store/evict/key_index.h"
#include "store/evict/paged_vector.h"
#include "store/evict/types.h"

namespace kvcachefs::evict {

using UnitSlot = uint32_t;
using NodeId = uint32_t;

enum class NodeKind : uint8_t {
  kLine,    // the part that belongs to one conversation; grows at its tail
  kTrunk,   // two or more lines pass through it
  kUnfull,  // one unit smaller than its model's usual size: stands alone and protects no other unit
};

// 36 bytes. Ticks are 16 ms and wrap around: only differences have a meaning.
struct Node {
  UnitSlot tail = kNoSlot;
  UnitSlot up = kNoSlot;       // the unit before its first one, in the parent node
  uint32_t size = 0;           // units, absent ones included; 0: the node is free
  uint32_t children_or_place = 0;  // of a leaf: its position in the list of leaves
  uint32_t visited = 0;        // ticks of the last visit and the one before
  uint32_t before = 0;
  uint16_t fresh = 0;          // units added since the last visit
  uint16_t fresh_before = 0;   // the same before the last visit
  uint16_t lost = 0;           // units evicted from the tail
  NodeKind kind = NodeKind::kLine;
  uint8_t turn = 1;
  uint8_t pause = 0;           // class of the pause before the last visit
  uint8_t pause_before = 0;
  uint8_t stem = 0;
  uint8_t flags = 0;

  static constexpr uint8_t kLeaf = 1, kLooked = 2, kGhosted = 4;
  bool is(uint8_t flag) const { return (flags & flag) != 0; }
  void set(uint8_t flag, bool on) { flags = static_cast<uint8_t>(on ? flags | flag : flags & ~flag); }
  uint32_t children() const { return is(kLeaf) ? 0 : children_or_place; }
};
static_assert(sizeof(Node) <= 48);

class Forest {
 public:
  // Is called with each node that becomes a leaf, after its fields are set.
  class LeafListener {
   public:
    virtual ~LeafListener() = default;
    virtual void became_leaf(NodeId node) = 0;
  };
  explicit Forest(LeafListener& listener) : listener_(listener) {}

  UnitSlot find(UnitKey key) const { return index_.find(key, key_of()); }
  bool present(UnitSlot unit) const { return unit != kNoSlot && (units_[unit].node & kAbsent) == 0; }
  UnitKey key(UnitSlot unit) const { return units_[unit].key; }
  UnitSlot prev(UnitSlot unit) const { return units_[unit].prev; }
  NodeId node_of(UnitSlot unit) const { return units_[unit].node & ~kAbsent; }
  Node& node(NodeId id) { return nodes_[id]; }
  const Node& node(NodeId id) const { return nodes_[id]; }
  bool live(NodeId id) const { return nodes_[id].size > 0; }
  NodeId parent(NodeId id) const { return nodes_[id].up == kNoSlot ? kNoSlot : node_of(nodes_[id].up); }

  size_t leaves() const { return leaves_.size(); }
  NodeId leaf(size_t place) const { return leaves_[place]; }
  size_t units() const { return present_; }
  size_t absent() const { return absent_; }
  size_t nodes() const { return live_nodes_; }
  size_t node_slots() const { return nodes_.size(); }  // free ones included
  size_t memory_bytes() const;
  // Bytes that one unit, node and leaf take, growth included.
  static constexpr double kUnitBytes = 16 + 8, kNodeBytes = sizeof(Node), kLeafBytes = 4;

  // Adds a node of one unit below `pred`, the last unit of its node (kNoSlot: as a root).
  NodeId add_node(UnitKey key, UnitSlot pred, NodeKind kind, uint32_t visited);
  // Appends the unit as the last one of a leaf.
  void append(NodeId node, UnitKey key);
  // Marks an absent unit as present again.
  void restore(UnitSlot unit);
  struct Halves {
    NodeId head, rest;
  };
  // Cuts a node behind `last`, which is not its tail: both halves keep the node's fields, except the structure. The work is proportional to
  // the shorter half. The listener is not called for a rest that gets another id.
  Halves split(UnitSlot last);
  // Makes the node whose first unit is `first` a root.
  void detach(UnitSlot first);
  // Gives a root a parent; `pred` is the last unit of its node, and not below `first`.
  void attach(UnitSlot first, UnitSlot pred);
  // Returns true if `unit` lies in `node` or below it. Gives up after some thousand steps up and then returns true.
  bool below(UnitSlot unit, NodeId node) const;
  // Removes the unit: at once, with the absent ones before it, if nothing follows it; otherwise it is marked absent. If too many are
  // absent, some chains are cut behind absent units: their followers become roots.
  void remove(UnitSlot unit);

  // Returns an empty string if all invariants hold.
  std::string check() const;

 private:
  static constexpr uint32_t kAbsent = uint32_t{1} << 31;
  struct Unit {  // 16 bytes
    UnitKey key;
    UnitSlot prev = kNoSlot;  // of a free one: the next free one
    uint32_t node = 0;        // kAbsent or'd in
  };
  struct KeyOf {
    const PagedVector<Unit>* units;
    UnitKey operator()(uint32_t slot) const { return (*units)[slot].key; }
  };
  KeyOf key_of() const { return {&units_}; }
  UnitSlot new_unit(UnitKey key, UnitSlot prev, NodeId node);
  void free_unit(UnitSlot unit);
  NodeId new_node();
  void free_node(NodeId id);
  void make_leaf(NodeId id);
  void make_inner(NodeId id);
  void add_child(NodeId parent);
  void lost_child(NodeId parent, uint32_t visited);
  void trim(NodeId id);
  uint32_t cut_before(UnitSlot unit);  // returns the steps it took
  void cut_some();

  LeafListener& listener_;
  KeyIndex index_;
  PagedVector<Unit> units_;
  PagedVector<Node> nodes_;
  PagedVector<uint32_t> leaves_;
  UnitSlot free_units_ = kNoSlot;
  NodeId free_nodes_ = kNoSlot;
  size_t present_ = 0, absent_ = 0;
  UnitSlot cut_at_ = 0;  // where cut_some() continues
  size_t live_nodes_ = 0;
};

}  // namespace kvcachefs::evict

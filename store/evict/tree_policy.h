// The common part of the policies that know prefixes: the forest of units, the meaning of a visit, and the rule that only leaves are
// evicted, from their tail. The derived classes pick the leaf.
#pragma once

#include <optional>

#include "store/evict/forest.h"
#include "store/evict/policy.h"

namespace kvcachefs::evict {

// The features by which re-use is learned: the history of a node, or of an evicted one, when it was met again.
struct Past {
  NodeKind kind = NodeKind::kLine;
  uint8_t turn = 1;    // how often the line continued, from 1
  uint8_t pause = 0;   // class of the pause before its last visit, see TreePolicy::pause_class
  uint8_t stem = 0;
  uint16_t fresh = 0;  // units added since that visit
};

// An evicted node, known by the unit that was its middle.
struct Ghost {
  UnitKey key;
  uint32_t visited = 0;  // ticks
  uint16_t lost = 0;
  uint16_t kind : 2 = 0;
  uint16_t turn : 2 = 1;   // 3: three or more
  uint16_t pause : 3 = 0;
  uint16_t stem : 3 = 0;
  uint16_t fresh : 6 = 0;  // saturates
  Past past() const {
    return {static_cast<NodeKind>(kind), static_cast<uint8_t>(turn), static_cast<uint8_t>(pause),
            static_cast<uint8_t>(stem), fresh};
  }
};
static_assert(sizeof(Ghost) == 16);

class TreePolicy : public Policy, private Forest::LeafListener {
 public:
  bool holds(UnitKey unit) const override { return forest_.present(forest_.find(unit)); }
  size_t units() const override { return forest_.units(); }
  UnitKey predecessor(UnitKey unit) const override;
  bool forks_behind(UnitKey unit) const override;
  bool read(UnitKey unit, TimeMs now) override;
  void publish(const Published& what, TimeMs now) override;
  void unlink(UnitKey unit) override;
  void relink(UnitKey unit, UnitKey follows) override;
  void link_checked(bool) override {}
  Choice choose(const Ask& ask, std::vector<UnitKey>& out) override;
  bool part_chains(const Ask& ask) override;
  bool worth_little(UnitKey unit, double factor, TimeMs now) const override;
  void evicted(UnitKey unit) override;
  PolicyCounts counts() const override;
  std::string check() const override { return forest_.check(); }

  // The policy's state of the node that contains a unit, for tests and for people.
  std::optional<Node> node_of(UnitKey unit) const;

  static uint8_t pause_class(int64_t ms);  // steps of a factor of four, from 1 s on

 protected:
  static constexpr int64_t kTickMs = 16;
  static constexpr int64_t kVisitMs = 1'000;    // visits closer together count as one: probes, parallel readers, ranks
  static constexpr int64_t kUnseenMs = 30'000;  // a line that grows after this, unread, continued in a tier above

  // Events that derived classes learn from. Default: ignored.
  virtual void on_hit(const Past&, int64_t /*age_ms*/, float /*weight*/) {}
  virtual void on_gone(const Past&, int64_t /*age_ms*/) {}
  virtual std::optional<Ghost> take_ghost(UnitKey) { return std::nullopt; }
  virtual void put_ghost(UnitKey, const Node&) {}
  virtual uint8_t stem_index(StemKey) { return 0; }
  virtual void on_access() {}
  // Picks the leaf to evict from; kNoSlot, with the reason in `choice`, if there is none.
  virtual NodeId pick(const Ask& ask, Choice& choice) = 0;
  // The expected gain of holding a unit of the node, in any unit that is stable for a while. Default: the inverse of its age.
  virtual double worth(const Node& node, int64_t age_ms) const;
  void became_leaf(NodeId) override {}

  bool is_leased(const Node& node, const Ask& ask) const;
  bool is_held(const Node& node, const Ask& ask);
  int64_t age_ms(uint32_t visited) const { return int64_t{uint32_t{now_tick() - visited}} * kTickMs; }
  uint32_t now_tick() const { return static_cast<uint32_t>((now_ms_ - origin_ms_) / kTickMs); }
  static Past past(const Node& node) { return {node.kind, node.turn, node.pause, node.stem, node.fresh}; }
  void advance(TimeMs now);

  Forest forest_{*this};
  PolicyCounts counted_;  // the counters that only grow

 private:
  Hold hold_of(UnitKey unit, const Ask& ask) const;
  void visit(Node& node);
  void go_on(Node& node, const std::optional<Ghost>& ghost);
  void revive(Node& node, const Ghost& ghost);
  void become_trunk(Node& node);
  // Makes the part up to `last` a trunk; the rest gets the state it had before this visit.
  void split(UnitSlot last);

  size_t parted_at_ = 0, parted_ = 0;  // leaves visited by part_chains(): the last one, and how many since it found something
  double chosen_worth_ = 0;  // mean worth of recent choices
  bool started_ = false;
  int64_t origin_ms_ = 0;
  int64_t now_ms_ = 0;
};

}  // namespace kvcachefs::evict

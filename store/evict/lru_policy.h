// The leaf whose last visit is oldest. Exact: a heap of leaves by the time they had when they entered it, which is corrected
// when they come to its top.
#pragma once

#include "store/evict/tree_policy.h"

namespace kvcachefs::evict {

class LruPolicy final : public TreePolicy {
 public:
  std::string_view name() const override { return "lru"; }
  PolicyCounts counts() const override;

 private:
  struct Entry {
    uint32_t visited = 0;
    NodeId node = 0;
  };
  NodeId pick(const Ask& ask, Choice& choice) override;
  void became_leaf(NodeId node) override;
  void push(Entry entry);
  void rebuild();

  std::vector<NodeId> held_;  // (while picking)
  std::vector<Entry> heap_;  // at most twice as many entries as leaves: those of nodes that left stay until they come up
};

}  // namespace kvcachefs::evict

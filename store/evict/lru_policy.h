// Picks the leaf whose last visit is oldest. Exact: a heap orders leaves by the visit they had when they entered it, and corrects an entry
// when it reaches the top.
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

  std::vector<NodeId> held_;  // while picking
  std::vector<Entry> heap_;  // at most twice as many entries as leaves: entries of removed nodes stay until they reach the top
};

}  // namespace kvcachefs::evict

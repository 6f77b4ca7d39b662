#include "store/evict/lru_policy.h"

#include <algorithm>

namespace kvcachefs::evict {

namespace {
constexpr size_t kMostCandidates = 4096;  // examined in one call
// Orders a heap with the oldest on top. Ticks wrap, but lie within half of their range of each other.
constexpr auto kYounger = [](const auto& a, const auto& b) { return static_cast<int32_t>(a.visited - b.visited) > 0; };
}  // namespace

void LruPolicy::push(Entry entry) {
  heap_.push_back(entry);
  std::ranges::push_heap(heap_, kYounger);
}

void LruPolicy::became_leaf(NodeId node) {
  push({forest_.node(node).visited, node});
  if (heap_.size() > 2 * forest_.leaves() + 1024) rebuild();
}

// Takes time proportional to the leaves, once in as many changes.
void LruPolicy::rebuild() {
  heap_.clear();
  for (size_t place = 0; place < forest_.leaves(); ++place) {
    const NodeId id = forest_.leaf(place);
    heap_.push_back({forest_.node(id).visited, id});
  }
  std::ranges::make_heap(heap_, kYounger);
}

NodeId LruPolicy::pick(const Ask& ask, Choice& choice) {
  size_t left = 2 * heap_.size();  // each entry is corrected at most once
  choice.reason = left > kMostCandidates ? Reason::kBusy : Reason::kNothing;
  NodeId found = kNoSlot;
  held_.clear();
  for (left = std::min(left, kMostCandidates); left > 0 && !heap_.empty() && found == kNoSlot; --left) {
    const Entry top = heap_.front();
    std::ranges::pop_heap(heap_, kYounger);
    heap_.pop_back();
    if (!forest_.live(top.node) || !forest_.node(top.node).is(Node::kLeaf)) continue;
    const Node& node = forest_.node(top.node);
    if (static_cast<int32_t>(node.visited - top.visited) > 0) {
      push({node.visited, top.node});
      continue;
    }
    if (is_leased(node, ask)) {  // all younger ones are leased as well
      ++counted_.skipped_leased;
      push(top);
      choice.reason = Reason::kNothing;
      break;
    }
    if (is_held(node, ask)) {
      held_.push_back(top.node);
      continue;
    }
    push(top);
    choice.reason = ask.break_leases ? Reason::kLeaseBroken : Reason::kRecency;
    found = top.node;
  }
  for (const NodeId node : held_) push({now_tick() + 1, node});  // they are examined again once all older ones are gone
  return found;
}

PolicyCounts LruPolicy::counts() const {
  PolicyCounts counts = TreePolicy::counts();
  counts.memory_bytes += heap_.capacity() * sizeof(Entry);
  counts.by_recency = true;
  return counts;
}

}  // namespace kvcachefs::evict

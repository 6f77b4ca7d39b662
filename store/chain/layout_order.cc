#include "store/chain/layout_order.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <unordered_map>

namespace kvcachefs {
namespace {

// Pauses between the creates of one list: a pause below the minimum never ends it, one above the maximum always does. A busy
// processor or a flush delays a writer by tens of milliseconds, and each missing link costs a cold reader a wait.
constexpr int64_t kMinPauseNs = 100'000'000;
constexpr int64_t kFirstPauseNs = 200'000'000;
constexpr int64_t kMaxPauseNs = 1'000'000'000;
constexpr size_t kMaxBursts = 4096;
// Announced names missing from the batch (already present, or still being written) that are skipped.
constexpr int kMaxSkippedNames = 64;
constexpr size_t kNone = SIZE_MAX;

using ByName = std::unordered_map<ChainKey, size_t>;

size_t announced_before(const LayoutItem& item, const ByName& by_name, const Announcements& announcements) {
  ChainKey at = item.name;
  for (int step = 0; step < kMaxSkippedNames; ++step) {
    at = announcements.previous(at);
    if (!at.valid() || at == item.name) return kNone;
    if (auto found = by_name.find(at); found != by_name.end()) return found->second;
  }
  return kNone;
}

// before[i] = the item that item i is laid out after.
class Predecessors {
 public:
  Predecessors(std::span<const LayoutItem> items, const Announcements& announcements)
      : items_(items), before_(items.size(), kNone), announced_(items.size(), false) {
    ByName by_name;
    for (size_t i = 0; i < items.size(); ++i) {
      if (items[i].name.valid()) by_name.emplace(items[i].name, i);
    }
    for (size_t i = 0; i < items.size(); ++i) {
      announced_[i] = items[i].name.valid() && announcements.announced(items[i].name);
      if (announced_[i]) before_[i] = announced_before(items[i], by_name, announcements);
    }
  }

  void add_write_order(std::span<const size_t> by_arrival, WriteTails& tails, LayoutOrder& out) {
    std::unordered_map<uint64_t, size_t> last;
    for (size_t i : by_arrival) {
      const LayoutItem& item = items_[i];
      if (announced_[i] || item.sequence == 0) continue;
      const uint64_t list = item.stem ^ (item.sequence * 0x9e3779b97f4a7c15ULL);
      auto [found, first] = last.try_emplace(list, i);
      if (!first) {
        before_[i] = found->second;
        found->second = i;
      }
      if (auto tail = tails.find(list); tail != tails.end()) out.write_links.emplace_back(tail->second, item.id);
      if (tails.size() >= kMaxWriteTails && !tails.contains(list)) tails.clear();
      tails[list] = item.id;
    }
  }

  const std::vector<size_t>& before() const { return before_; }

 private:
  std::span<const LayoutItem> items_;
  std::vector<size_t> before_;
  std::vector<bool> announced_;
};

}  // namespace

uint64_t WriteSequences::on_create(uint64_t stem, uint64_t thread_id, int64_t now) {
  const uint64_t cohort = cohorts_.cohort(stem, thread_id, now);
  if (bursts_.size() >= kMaxBursts && !bursts_.contains(cohort)) bursts_.clear();
  Burst& burst = bursts_[cohort];
  if (!burst.clock.tick(now, kMinPauseNs, kFirstPauseNs, kMaxPauseNs)) burst.sequence = next_sequence_++;
  return burst.sequence;
}

LayoutOrder layout_order(std::span<const LayoutItem> items, const Announcements& announcements, WriteTails& tails) {
  LayoutOrder out;
  std::vector<size_t> by_arrival(items.size());
  std::iota(by_arrival.begin(), by_arrival.end(), size_t{0});
  std::stable_sort(by_arrival.begin(), by_arrival.end(),
                   [&](size_t a, size_t b) { return items[a].arrival < items[b].arrival; });
  Predecessors links(items, announcements);
  links.add_write_order(by_arrival, tails, out);

  std::vector<std::vector<size_t>> after(items.size());
  for (auto i = by_arrival.rbegin(); i != by_arrival.rend(); ++i) {
    if (const size_t before = links.before()[*i]; before != kNone) after[before].push_back(*i);
  }
  std::vector<bool> placed(items.size(), false);
  std::vector<size_t> stack;
  const auto place_from = [&](size_t head) {
    stack.push_back(head);
    while (!stack.empty()) {
      const size_t i = stack.back();
      stack.pop_back();
      if (placed[i]) continue;
      placed[i] = true;
      out.order.push_back(items[i].id);
      // Pushed latest first, so that the branch that arrived first follows directly.
      stack.insert(stack.end(), after[i].begin(), after[i].end());
    }
  };
  for (size_t i : by_arrival) {
    if (links.before()[i] == kNone) place_from(i);
  }
  // Announcements may form a ring (a list probed twice, the second time from its middle): it has no head.
  for (size_t i : by_arrival) {
    if (!placed[i]) place_from(i);
  }
  return out;
}

}  // namespace kvcachefs

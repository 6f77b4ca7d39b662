// Objects of which something changed a moment ago: the kernel may still go by the attributes, or the name, that it was told before.
//
// No lock of its own: the caller holds the Tree's lock, exclusively for note().
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <utility>

#include "store/base/types.h"

namespace kvcachefs {

class RecentChanges {
 public:
  static constexpr int64_t kForNs = 2'000'000'000;  // the kernel keeps attributes of files for one second
  static constexpr size_t kMost = 16 * 1024;        // of more, all objects count as changed for that time
  explicit RecentChanges(int64_t for_ns = kForNs) : for_ns_(for_ns) {}

  // `at_ns`: when it changed. About ascending: an entry that is older than those before it is dropped late.
  void note(ObjectId id, int64_t at_ns) {
    while (!order_.empty() && (at_ns - order_.front().first >= for_ns_ || order_.size() >= kMost)) {
      if (at_ns - order_.front().first < for_ns_) all_until_ns_ = std::max(all_until_ns_, order_.front().first + for_ns_);
      const auto found = at_ns_.find(order_.front().second);
      if (found != at_ns_.end() && found->second == order_.front().first) at_ns_.erase(found);
      order_.pop_front();
    }
    at_ns_[id] = at_ns;
    order_.emplace_back(at_ns, id);
  }
  bool has(ObjectId id, int64_t now_ns) const { return now_ns < until_ns(id); }
  int64_t until_ns(ObjectId id) const {  // until when it counts as changed; in the past: it does not
    const auto found = at_ns_.find(id);
    return found == at_ns_.end() ? all_until_ns_ : std::max(all_until_ns_, found->second + for_ns_);
  }

 private:
  int64_t for_ns_;
  std::unordered_map<ObjectId, int64_t> at_ns_;
  std::deque<std::pair<int64_t, ObjectId>> order_;  // oldest first
  int64_t all_until_ns_ = INT64_MIN;
};

}  // namespace kvcachefs

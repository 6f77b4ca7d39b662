// The bytes that one open of a file wrote: they show whether it rewrote the whole file or changed it here and there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcachefs {

// Not thread-safe. Clients that write a chunk with several calls write its pieces in order or nearly so: writes that would need more
// than kMostRanges ranges are taken for changes here and there.
class WrittenRanges {
 public:
  void add(uint64_t begin, uint64_t end) {
    if (begin >= end || scattered_) return;
    auto first = std::lower_bound(ranges_.begin(), ranges_.end(), begin, [](const Range& range, uint64_t at) { return range.end < at; });
    auto behind = first;
    for (; behind != ranges_.end() && behind->begin <= end; ++behind) {  // the ranges that the new one touches
      begin = std::min(begin, behind->begin);
      end = std::max(end, behind->end);
    }
    first = ranges_.insert(ranges_.erase(first, behind), Range{begin, end});
    if (ranges_.size() <= kMostRanges) return;
    scattered_ = true;
    ranges_ = {};
  }
  // Calls visit(from, to) for the ranges in [begin, end), in order.
  template <class Visit>
  void for_each_in(uint64_t begin, uint64_t end, const Visit& visit) const {
    for (const Range& range : ranges_)
      if (range.begin < end && range.end > begin) visit(std::max(begin, range.begin), std::min(end, range.end));
  }
  bool empty() const { return ranges_.empty() && !scattered_; }
  // All of [0, size_bytes) was written. An empty file was not rewritten.
  bool covers(uint64_t size_bytes) const {
    return size_bytes > 0 && ranges_.size() == 1 && ranges_.front().begin == 0 && ranges_.front().end >= size_bytes;
  }

 private:
  static constexpr size_t kMostRanges = 64;
  struct Range {
    uint64_t begin = 0, end = 0;
  };
  std::vector<Range> ranges_;  // in order, none touches the next
  bool scattered_ = false;
};

}  // namespace kvcachefs

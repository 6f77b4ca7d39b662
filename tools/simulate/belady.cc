#include "tools/simulate/belady.h"

namespace kvcachefs {

Belady::Belady(const Workload& workload, uint64_t capacity_units)
    : workload_(workload),
      capacity_(capacity_units),
      next_use_(workload.units.size(), UINT32_MAX),
      held_(workload.distinct_units, false),
      current_(workload.distinct_units, 0) {
  std::vector<uint32_t> next(workload.distinct_units, UINT32_MAX);
  for (size_t r = workload.requests.size(); r-- > 0;) {
    const SimRequest& request = workload.requests[r];
    for (size_t i = request.first; i < request.first + request.units; ++i) next_use_[i] = next[workload.units[i]];
    for (size_t i = request.first; i < request.first + request.units; ++i)
      next[workload.units[i]] = static_cast<uint32_t>(r);
  }
}

uint64_t Belady::priority(const SimRequest& request, uint32_t i) const {
  return (uint64_t{next_use_[request.first + i]} << 32) | i;
}

void Belady::serve(size_t number) {
  const SimRequest& request = workload_.requests[number];
  for (uint32_t i = 0; i < request.units; ++i) {
    const uint32_t unit = workload_.units[request.first + i];
    const uint64_t own = priority(request, i);
    if (!held_[unit]) {
      bool room = used_ < capacity_;
      while (!room && !queue_.empty()) {
        const auto [top, candidate] = queue_.top();
        if (held_[candidate] && current_[candidate] == top) {
          if (top <= own) break;  // all held units are worth more
          held_[candidate] = false;
          --used_;
          ++evicted_;
          room = true;
        }
        queue_.pop();
      }
      if (!room) continue;
      held_[unit] = true;
      ++used_;
    }
    current_[unit] = own;
    queue_.emplace(own, unit);
  }
}

}  // namespace kvcachefs

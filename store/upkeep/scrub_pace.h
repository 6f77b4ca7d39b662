// Decides when chunks are read again to verify them, and how many bytes at a time. A value without a clock or threads of its own.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvcachefs {

class ScrubPace {
 public:
  static constexpr int64_t kPassEveryNs = int64_t{7} * 24 * 3600 * 1'000'000'000;
  // Bytes a second for a requested pass while automatic passes are off.
  static constexpr uint64_t kAskedRate = uint64_t{64} << 20;

  // 0: no automatic passes.
  void set_rate(uint64_t bytes_per_second) { rate_ = bytes_per_second; }
  // On the realtime clock; `ended_ns`: end of the last whole pass, 0 for none. A clock that went back also makes a pass due.
  bool is_due(int64_t now_ns, int64_t ended_ns) const {
    return rate_ > 0 && (ended_ns == 0 || now_ns < ended_ns || now_ns - ended_ns >= kPassEveryNs);
  }
  // Takes the monotonic time and a count that grows with clients' requests. A period with requests earns no credit, except for a requested
  // pass; nor does time beyond a second.
  void advance(int64_t now_ns, uint64_t requests, bool asked) {
    constexpr int64_t kMostNs = 1'000'000'000;
    const int64_t since_ns = begun_ ? std::clamp<int64_t>(now_ns - seen_ns_, 0, kMostNs) : 0;
    const bool idle = requests == requests_;
    begun_ = true;
    seen_ns_ = now_ns;
    requests_ = requests;
    if (!idle && !asked) return void(credit_bytes_ = std::min<int64_t>(credit_bytes_, 0));
    const double rate = static_cast<double>(rate_ > 0 ? rate_ : asked ? kAskedRate : 0);
    credit_bytes_ = std::min<int64_t>(credit_bytes_ + static_cast<int64_t>(rate * static_cast<double>(since_ns) / 1e9), static_cast<int64_t>(rate));
  }
  bool may_read() const { return credit_bytes_ > 0; }
  void took(uint64_t bytes) { credit_bytes_ -= static_cast<int64_t>(bytes); }

 private:
  uint64_t rate_ = 0, requests_ = 0;
  int64_t seen_ns_ = 0, credit_bytes_ = 0;
  bool begun_ = false;
};

}  // namespace kvcachefs

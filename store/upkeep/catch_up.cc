#include "store/upkeep/catch_up.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace kvcachefs {

void CatchUp::read(Then then) {
  Waiting waiting{.then = std::move(then)};
  if (running_ != nullptr) {
    waiting.begun_ns = running_->machine_ns();
    waiting.running_since_ns = running_->monotonic_ns();
  }
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = ++last_;
    waiting_.emplace(number, std::move(waiting));
  }
  refresh_([this, number](const Status& read) { end(number, read.has_value()); });
}

void CatchUp::end(uint64_t number, bool is_read) {
  Waiting ended;
  {
    const std::lock_guard lock(mutex_);
    auto found = waiting_.extract(number);
    if (found.empty()) return;  // it went on without
    ended = std::move(found.mapped());
    read_ns_ = std::max(read_ns_.load(), ended.begun_ns);
    if (is_read) whole_ns_ = std::max(whole_ns_.load(), ended.begun_ns);
  }
  ended.then();
}

void CatchUp::tick() {
  if (running_ == nullptr) return;
  const int64_t now_ns = running_->monotonic_ns();
  std::vector<uint64_t> late;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, waiting] : waiting_)
      if (now_ns - waiting.running_since_ns >= kPatienceNs) late.push_back(number);
  }
  for (const uint64_t number : late) end(number, /*is_read=*/false);
}

}  // namespace kvcachefs

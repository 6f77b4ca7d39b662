#include "store/volume/request_queue.h"

namespace kvcachefs {

namespace {
QueuedRequest take(std::deque<QueuedRequest>& from) {
  QueuedRequest request = std::move(from.front());
  from.pop_front();
  return request;
}
}  // namespace

void RequestQueue::push(QueuedRequest request) {
  (request.request.urgent ? urgent_ : background_).push_back(std::move(request));
}

bool RequestQueue::background_is_due() const {
  return !background_.empty() && background_in_flight_ == 0 && urgent_since_background_ >= kUrgentPerBackground;
}

bool RequestQueue::background_may_start() const {
  return !background_.empty() && background_in_flight_ < max_background_ && urgent_in_flight_ <= kFewUrgent;
}

std::optional<QueuedRequest> RequestQueue::next() {
  if (background_is_due() || (urgent_.empty() && background_may_start())) {
    urgent_since_background_ = 0;
    ++background_in_flight_;
    return take(background_);
  }
  if (urgent_.empty()) return std::nullopt;
  if (!background_.empty()) ++urgent_since_background_;
  ++urgent_in_flight_;
  return take(urgent_);
}

void RequestQueue::finished(bool urgent) { --(urgent ? urgent_in_flight_ : background_in_flight_); }

}  // namespace kvcachefs

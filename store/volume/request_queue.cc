#include "store/volume/request_queue.h"

#include <utility>

namespace kvcachefs {

namespace {

uint64_t bytes_of(const IoRequest& request) {
  uint64_t bytes = 0;
  for (const auto piece : request.pieces) bytes += piece.size();
  return bytes;
}

bool is_read(const IoRequest& request) { return request.kind == IoRequest::Kind::kRead; }

QueuedRequest take(std::deque<QueuedRequest>& from) {
  QueuedRequest request = std::move(from.front());
  from.pop_front();
  return request;
}

}  // namespace

void RequestQueue::push(QueuedRequest request) {
  if (is_read(request.request)) ++reads_;
  auto& background = is_read(request.request) ? background_reads_ : background_writes_;
  (request.request.urgent ? urgent_ : background).push_back(std::move(request));
}

bool RequestQueue::background_is_due() const {
  return background_waits() && background_in_flight_ == 0 && urgent_since_background_ >= kUrgentPerBackground;
}

bool RequestQueue::background_may_start() const {
  return background_in_flight_ < max_background_ && urgent_in_flight_ <= kFewUrgent;
}

bool RequestQueue::read_may_start() const {
  if (background_reads_.empty()) return false;
  return background_read_bytes_ == 0 ||
         background_read_bytes_ + bytes_of(background_reads_.front().request) <= max_background_read_bytes_;
}

bool RequestQueue::write_may_start() const {
  if (background_writes_.empty()) return false;
  return !being_read_ || background_write_bytes_ == 0 ||
         background_write_bytes_ + bytes_of(background_writes_.front().request) <= kWriteBytesBesideReads;
}

// Alternates between reads and writes, so that neither waits for the whole queue of the other.
std::deque<QueuedRequest>* RequestQueue::next_background() {
  const bool write = write_may_start() && (write_is_next_ || !read_may_start());
  if (!write && !read_may_start()) return nullptr;
  write_is_next_ = !write;
  return write ? &background_writes_ : &background_reads_;
}

std::optional<QueuedRequest> RequestQueue::next(Clock::time_point now, bool others_read) {
  if (std::exchange(read_ended_, false) || reads_ > 0) reads_until_ = now + kStillReads;
  being_read_ = others_read || now < reads_until_;
  if (background_is_due() || (urgent_.empty() && background_may_start())) {
    if (auto* from = next_background()) {
      urgent_since_background_ = 0;
      ++background_in_flight_;
      QueuedRequest request = take(*from);
      (is_read(request.request) ? background_read_bytes_ : background_write_bytes_) += bytes_of(request.request);
      return request;
    }
  }
  if (urgent_.empty()) return std::nullopt;
  if (background_waits()) ++urgent_since_background_;
  ++urgent_in_flight_;
  return take(urgent_);
}

void RequestQueue::finished(const IoRequest& request) {
  --(request.urgent ? urgent_in_flight_ : background_in_flight_);
  if (is_read(request)) {
    --reads_;
    read_ended_ = true;
  }
  if (!request.urgent) (is_read(request) ? background_read_bytes_ : background_write_bytes_) -= bytes_of(request);
}

}  // namespace kvcachefs

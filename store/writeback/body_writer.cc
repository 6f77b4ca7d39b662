#include "store/writeback/body_writer.h"

#include <mutex>
#include <utility>

namespace kvcachefs {

namespace {
constexpr uint64_t kInFlightBytes = 32 * kMiB;  // of a lane
constexpr size_t kMaxPieces = 512;              // iovecs of one request (IOV_MAX is 1024)
}  // namespace

void BodyWriter::add(Status* body, const FilePtr& file, uint64_t offset, std::span<std::byte> piece, BlockPtr keep) {
  const bool other_body = one_body_a_write_ && !bodies_.empty() && bodies_.back() != body;
  if (other_body || !(file == file_ && offset == offset_ + bytes_ && bytes_ + piece.size() <= kWriteBytes && pieces_.size() < kMaxPieces))
    send();
  if (pieces_.empty()) {
    file_ = file;
    offset_ = offset;
  }
  pieces_.push_back(piece);
  bytes_ += piece.size();
  if (keep) keep_.push_back(std::move(keep));
  if (bodies_.empty() || bodies_.back() != body) bodies_.push_back(body);
}

void BodyWriter::send() {
  if (pieces_.empty()) return;
  {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return in_flight_ == 0 || in_flight_ + bytes_ <= kInFlightBytes; });
    in_flight_ += bytes_;
  }
  IoRequest request;
  request.kind = IoRequest::Kind::kWrite;
  request.file = std::move(file_);
  request.offset = offset_;
  request.pieces = std::move(pieces_);
  request.urgent = false;
  request.done = [this, bytes = bytes_, keep = std::move(keep_), bodies = std::move(bodies_)](Result<size_t> result) mutable {
    keep.clear();
    std::lock_guard lock(mutex_);
    if (result)
      counters_.write_volume_bytes.fetch_add(bytes, std::memory_order_relaxed);
    else
      for (Status* body : bodies) *body = std::unexpected(result.error());
    in_flight_ -= bytes;
    room_.notify_all();
  };
  std::vector<IoRequest> requests;
  requests.push_back(std::move(request));
  file_.reset();
  pieces_.clear();
  keep_.clear();
  bodies_.clear();
  bytes_ = 0;
  volume_.submit(std::move(requests));
}

void BodyWriter::wait_all() {
  send();
  std::unique_lock lock(mutex_);
  room_.wait(lock, [&] { return in_flight_ == 0; });
}

}  // namespace kvcachefs

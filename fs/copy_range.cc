// copy_file_range: the daemon reads and writes piece by piece.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "fs/driver.h"

namespace kvcachefs {

namespace {

// One copy_file_range, piece by piece: read, write, next. Lives until it has replied. All the work is done by step(), in the thread that took the
// request or in the thread for copies; completions, which may run on a thread of the volume, only keep their result.
struct Copy : std::enable_shared_from_this<Copy> {
  explicit Copy(const Request& of) : request(of), driver(driver_of(of)) {}
  const Request request;
  Driver& driver;
  Handle* from;
  Handle* to;
  uint64_t from_offset, to_offset, left, copied = 0;
  bool sync = false;  // sync the copied bytes before the answer
  std::optional<ReadReply> piece;  // read, not written yet
  std::optional<Error> problem;
  enum : int { kCalling, kWaits, kGoesOn };
  std::atomic<int> turn{kCalling};

  // Goes on while the calls of the store complete inside the call, as they do for what is in RAM; so calls do not nest.
  void step() {
    do {
      if (problem) return finish(*problem);
      if (left == 0) return answer();
      turn = kCalling;
      piece ? write_piece() : read_piece();
    } while (turn.exchange(kWaits) != kCalling);
  }
  void read_piece() {
    constexpr uint64_t kPieceBytes = 1 << 20;
    driver.store->read(from, from_offset, std::min(left, kPieceBytes), [self = shared_from_this()](Result<ReadReply> reply) {
      if (!reply) {
        self->problem = std::move(reply).error();
      } else if (reply->bytes == 0) {
        self->left = 0;
      } else {
        self->piece = std::move(*reply);
      }
      self->completed();
    });
  }
  void write_piece() {
    std::vector<std::byte> bytes;
    bytes.reserve(piece->bytes);
    for (const iovec& part : piece->pieces) {
      const auto* start = static_cast<const std::byte*>(part.iov_base);
      bytes.insert(bytes.end(), start, start + part.iov_len);
    }
    piece.reset();  // a ReadReply pins its blocks in RAM
    driver.store->write(to, to_offset, bytes, [self = shared_from_this(), count = bytes.size()](Result<size_t> written) {
      if (!written) {
        self->problem = std::move(written).error();
      } else {
        self->copied += count;
        self->from_offset += count;
        self->to_offset += count;
        self->left -= std::min(self->left, count);
      }
      self->completed();
    });
  }
  void completed() {
    if (turn.exchange(kGoesOn) == kCalling) return;  // step() goes on
    run_handler(request, [this] {
      driver.copies.run([self = shared_from_this()] { run_handler(self->request, [&] { self->step(); }); });
    });
  }
  void answer() {
    if (sync && copied > 0) return reply_written_and_synced(request, to, copied);
    fuse_reply_write(request, copied);
  }
  void finish(const Error& error) {
    if (copied > 0) return answer();
    reply_error(request, error);
  }
};

void copy_file_range(const Request& request, fuse_ino_t, off_t offset_in, fuse_file_info* file_in, fuse_ino_t node_out,
                     off_t offset_out, fuse_file_info* file_out, size_t length, int) {
  Driver& driver = driver_of(request);
  drop_privileges_of(request, node_out, file_out);
  constexpr uint64_t kMostAtOnce = 64 << 20;  // the caller continues after a short count
  auto copy = std::make_shared<Copy>(request);
  copy->from = handle_of(file_in);
  copy->to = handle_of(file_out);
  copy->from_offset = static_cast<uint64_t>(offset_in);
  copy->to_offset = static_cast<uint64_t>(offset_out);
  copy->left = std::min<uint64_t>(length, kMostAtOnce);
  // The request has no flags for it: O_SYNC and O_DSYNC of the open count, and `sync` among the options of the mount as it was made.
  const auto& words = driver.options.kernel;
  copy->sync = (file_out->fh & kSyncedBit) || std::find(words.begin(), words.end(), "sync") != words.end();
  copy->step();
}

}  // namespace

void add_copy_operations(fuse_lowlevel_ops& operations) { operations.copy_file_range = guarded<copy_file_range>; }

}  // namespace kvcachefs

// copy_file_range: the daemon reads and writes piece by piece.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <functional>
#include <memory>

#include "fs/driver.h"

namespace kvcachefs {

namespace {

// One copy_file_range, piece by piece: read, write, next. Lives until it has replied.
struct Copy : std::enable_shared_from_this<Copy> {
  explicit Copy(const Request& of) : request(of) {}
  Request request;
  Store* store;
  Handle* from;
  Handle* to;
  uint64_t from_offset, to_offset, left, copied = 0;
  bool sync = false;  // sync the copied bytes before the answer

  // Copies all pieces. A piece in RAM completes inside the calls; the loop then starts the next one, so that calls do not nest.
  void step() {
    enum : int { kCalling, kWaits, kGoesOn };
    while (true) {
      if (left == 0) return answer();
      auto turn = std::make_shared<std::atomic<int>>(kCalling);
      copy_piece([self = shared_from_this(), turn] {
        if (turn->exchange(kGoesOn) == kWaits) self->step();
      });
      if (turn->exchange(kWaits) == kCalling) return;
    }
  }
  // Copies one piece, then calls `next` if there may be more.
  void copy_piece(std::function<void()> next) {
    constexpr uint64_t kPieceBytes = 1 << 20;
    store->read(from, from_offset, std::min(left, kPieceBytes), [self = shared_from_this(), next](Result<ReadReply> reply) {
      if (!reply) return self->finish(reply.error());
      if (reply->bytes == 0) return self->answer();
      std::vector<std::byte> bytes;
      bytes.reserve(reply->bytes);
      for (const iovec& piece : reply->pieces) {
        const auto* start = static_cast<const std::byte*>(piece.iov_base);
        bytes.insert(bytes.end(), start, start + piece.iov_len);
      }
      reply = ReadReply{};  // a ReadReply pins its blocks in RAM
      self->store->write(self->to, self->to_offset, bytes, [self, next, count = bytes.size()](Result<size_t> written) {
        if (!written) return self->finish(written.error());
        self->copied += count;
        self->from_offset += count;
        self->to_offset += count;
        self->left -= std::min(self->left, count);
        next();
      });
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
  copy->store = driver.store;
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

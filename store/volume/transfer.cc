#include "store/volume/transfer.h"

#include <limits.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "store/base/unique_fd.h"
#include "store/base/units.h"

namespace kvcachefs {

namespace {
bool is_aligned(uint64_t value) { return value % kBlockBytes == 0; }
}  // namespace

void Transfer::add(std::byte* data, size_t size) {
  if (size == 0) return;
  pieces_.push_back(iovec{data, size});
  total_ += size;
}

std::string Transfer::place() const {
  return path_ + (reading() ? ": read of " : ": write of ") + std::to_string(total_) + " bytes at " +
         std::to_string(offset_);
}

Status Transfer::check() const {
  if (fd_ < 0) return fail(Code::kInvalid, place() + ": the file has no descriptor");
  constexpr auto kMaxOffset = static_cast<uint64_t>(std::numeric_limits<off_t>::max());
  if (offset_ > kMaxOffset || total_ > kMaxOffset - offset_)
    return fail(Code::kTooBig, place() + ": past the largest offset");
  if (!direct_) return {};
  const bool aligned = is_aligned(offset_) && std::ranges::all_of(pieces_, [](const iovec& piece) {
                         return is_aligned(reinterpret_cast<uintptr_t>(piece.iov_base)) && is_aligned(piece.iov_len);
                       });
  if (aligned) return {};
  return fail(Code::kInvalid, place() + ": not aligned to 4096 bytes, but the file is open for direct I/O");
}

std::span<const iovec> Transfer::pending() {
  if (next_ == 0 && pieces_.size() <= IOV_MAX) return pieces_;
  pending_.clear();
  size_t skip = next_;
  for (const iovec& piece : pieces_) {
    if (skip >= piece.iov_len) {
      skip -= piece.iov_len;
      continue;
    }
    pending_.push_back(iovec{static_cast<std::byte*>(piece.iov_base) + skip, piece.iov_len - skip});
    skip = 0;
    if (pending_.size() == IOV_MAX) break;
  }
  return pending_;
}

Status Transfer::advance(size_t bytes) {
  const size_t reached = std::max(done_, next_ + bytes);
  const bool progress = reached > done_;
  done_ = reached;
  // A direct call must start at a block boundary: the last, incomplete block is moved again.
  next_ = direct_ ? static_cast<size_t>(align_down(done_, kBlockBytes)) : done_;
  complete_ = done_ >= total_;
  if (complete_) return {};
  if (!reading() && !progress) return failed(EIO);
  // A short read is the end of the file only if the file's size says so (a signal, a server or the 2 GiB limit of one call
  // shorten reads too); a read of 0 bytes is the kernel's word for the end.
  if (reading() && (!progress || at_end_of_file())) complete_ = true;
  return {};
}

bool Transfer::at_end_of_file() const {
  struct stat attributes {};
  if (::fstat(fd_, &attributes) != 0) return false;
  return static_cast<uint64_t>(attributes.st_size) <= offset_ + done_;
}

std::unexpected<Error> Transfer::failed(int sys_errno) const {
  std::string message = place();
  if (done_ > 0) message += " (after " + std::to_string(done_) + ")";
  return fail_errno(sys_errno, std::move(message));
}

Result<size_t> run_transfer(Transfer& transfer) {
  KVC_TRY(transfer.check());
  while (!transfer.complete()) {
    const auto pieces = transfer.pending();
    if (pieces.empty()) break;
    const auto offset = static_cast<off_t>(transfer.pending_offset());
    const auto count = static_cast<int>(pieces.size());
    const ssize_t moved = retry_interrupted([&] {
      return transfer.reading() ? ::preadv(transfer.fd(), pieces.data(), count, offset)
                                : ::pwritev(transfer.fd(), pieces.data(), count, offset);
    });
    if (moved < 0) return transfer.failed(errno);
    KVC_TRY(transfer.advance(static_cast<size_t>(moved)));
  }
  return transfer.transferred();
}

}  // namespace kvcachefs

#include "store/volume/posix_lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "store/base/bytes.h"
#include "store/volume/transfer.h"

namespace kvcachefs {

namespace {

constexpr size_t kMaxQuotedBytes = 1024;

class PosixLock final : public VolumeLock {
 public:
  PosixLock(UniqueFd fd, std::string path) : path_(std::move(path)), fd_(std::move(fd)) {}

  Status describe(std::string_view holder) override {
    if (retry_interrupted([&] { return ::ftruncate(fd_.get(), 0); }) != 0)
      return fail_errno(errno, path_ + ": truncate");
    Transfer transfer(IoRequest::Kind::kWrite, fd_.get(), path_, false, 0);
    transfer.add(const_cast<std::byte*>(as_bytes(holder).data()), holder.size());
    KVC_TRY(run_transfer(transfer));
    // On a network file system the sync makes the content readable elsewhere.
    if (retry_interrupted([&] { return ::fdatasync(fd_.get()); }) != 0) return fail_errno(errno, path_ + ": sync");
    return {};
  }

 private:
  std::string path_;
  UniqueFd fd_;  // closing it releases the lock
};

std::string content_of(int fd) {
  std::array<char, kMaxQuotedBytes> buffer{};
  const ssize_t got = retry_interrupted([&] { return ::pread(fd, buffer.data(), buffer.size(), 0); });
  std::string content(buffer.data(), got > 0 ? static_cast<size_t>(got) : 0);
  while (!content.empty() && (content.back() == '\n' || content.back() == '\0')) content.pop_back();
  return content.empty() ? "an unknown holder" : content;
}

}  // namespace

Result<std::unique_ptr<VolumeLock>> take_posix_lock(UniqueFd fd, const std::string& path) {
  struct flock whole_file {};  // l_pid must be 0 for open file description locks
  whole_file.l_type = F_WRLCK;
  whole_file.l_whence = SEEK_SET;
  if (retry_interrupted([&] { return ::fcntl(fd.get(), F_OFD_SETLK, &whole_file); }) == 0)
    return std::make_unique<PosixLock>(std::move(fd), path);
  if (errno == EAGAIN || errno == EACCES) return fail(Code::kBusy, path + ": locked by " + content_of(fd.get()));
  return fail_errno(errno, path + ": lock (the file system must support fcntl locks)");
}

}  // namespace kvcachefs

// One read or write in progress: what has been moved, what the next system call must ask for, and when it is
// complete. Shared by the synchronous calls and both engines, so that short transfers are handled alike everywhere.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "store/base/result.h"
#include "store/volume/volume.h"

namespace kvcachefs {

class Transfer {
 public:
  // `path` must outlive the transfer. Add all pieces before the first `pending`.
  Transfer(IoRequest::Kind kind, int fd, const std::string& path, bool direct, uint64_t offset)
      : path_(path), offset_(offset), fd_(fd), kind_(kind), direct_(direct) {}

  void add(std::byte* data, size_t size);
  // Checks that it may be started: valid descriptor, offset in range and, for direct files, everything aligned.
  Status check() const;

  bool complete() const { return complete_; }
  // What to ask the kernel for next; valid until `advance`. At most IOV_MAX pieces.
  std::span<const iovec> pending();
  uint64_t pending_offset() const { return offset_ + next_; }
  // Tells that the kernel moved `bytes` of the pending pieces. Fails if a write makes no progress.
  Status advance(size_t bytes);

  size_t transferred() const { return done_; }
  bool reading() const { return kind_ == IoRequest::Kind::kRead; }
  int fd() const { return fd_; }
  // The error of a failed system call, with the path and the range.
  std::unexpected<Error> failed(int sys_errno) const;

 private:
  std::string place() const;
  bool at_end_of_file() const;

  const std::string& path_;
  uint64_t offset_;
  std::vector<iovec> pieces_;   // all of them
  std::vector<iovec> pending_;  // the part to ask for; unused while everything is asked for at once
  size_t total_ = 0;
  size_t done_ = 0;  // bytes moved so far, from the beginning, without gaps
  size_t next_ = 0;  // where the next call starts: done_, rounded down to a block for direct files
  int fd_;
  IoRequest::Kind kind_;
  bool direct_;
  bool complete_ = false;
};

// Runs the transfer to its end on this thread.
Result<size_t> run_transfer(Transfer& transfer);

}  // namespace kvcachefs

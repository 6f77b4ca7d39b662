#include "fs/fuse_device.h"

#define FUSE_USE_VERSION 314
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <linux/fuse.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

namespace kvcachefs {

namespace {

class FuseWorker : public RequestDevice::Worker {
 public:
  explicit FuseWorker(fuse_session* session) : session_(session) {}
  ~FuseWorker() override {  // libfuse allocates the buffers with malloc
    std::free(buffer_.mem);
    std::free(aside_.mem);
  }

  // A read that takes a request just as the connection ends fails with ECONNABORTED, whatever ended it: the next read tells whether the mount was unmounted.
  int receive() override {
    const int got = fuse_session_receive_buf(session_, &buffer_);
    return got == -ECONNABORTED ? fuse_session_receive_buf(session_, &buffer_) : got;
  }
  void process() override { fuse_session_process_buf(session_, &buffer_); }
  bool is_short() const override {
    switch (header().opcode) {
      case FUSE_LOOKUP:
      case FUSE_GETATTR:
      case FUSE_GETXATTR:
      case FUSE_ACCESS:
      case FUSE_FLUSH:
      case FUSE_RELEASE:
      case FUSE_FORGET:
      case FUSE_BATCH_FORGET:
        return true;
      case FUSE_READ:
        return read_size_bytes() <= kShortReadBytes;
      default:
        return false;
    }
  }
  // An OPEN is long only if a file must be opened for it.
  bool is_long() const override { return !is_short() && header().opcode != FUSE_OPEN; }
  uint32_t kind() const override { return header().opcode % RequestDevice::kKinds; }
  bool may_wait() const override { return header().opcode == FUSE_RELEASE || header().opcode == FUSE_FORGET; }
  bool may_overtake() const override {
    return header().opcode == FUSE_LOOKUP || header().opcode == FUSE_GETATTR || header().opcode == FUSE_READ;
  }
  void set_aside() override { std::swap(buffer_, aside_); }
  void process_aside() override { fuse_session_process_buf(session_, &aside_); }

 private:
  // Copying this much to the client takes less time than waking another thread.
  static constexpr uint32_t kShortReadBytes = 128U << 10;

  const fuse_in_header& header() const { return *static_cast<const fuse_in_header*>(buffer_.mem); }
  uint32_t read_size_bytes() const { return reinterpret_cast<const fuse_read_in*>(&header() + 1)->size; }

  fuse_session* session_;
  fuse_buf buffer_{}, aside_{};
};

}  // namespace

FuseDevice::FuseDevice(fuse_session* session) : session_(session) {
  const int flags = fcntl(descriptor(), F_GETFL);
  if (flags >= 0) fcntl(descriptor(), F_SETFL, flags | O_NONBLOCK);
}

int FuseDevice::descriptor() const { return fuse_session_fd(session_); }

std::unique_ptr<RequestDevice::Worker> FuseDevice::make_worker() { return std::make_unique<FuseWorker>(session_); }

}  // namespace kvcachefs

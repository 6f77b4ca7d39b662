#include "fs/fuse_device.h"

#define FUSE_USE_VERSION 314
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <linux/fuse.h>

#include <cstdlib>

namespace kvcachefs {

namespace {

class FuseWorker : public RequestDevice::Worker {
 public:
  explicit FuseWorker(fuse_session* session) : session_(session) {}
  ~FuseWorker() override { std::free(buffer_.mem); }  // libfuse allocates it, by malloc

  int receive() override { return fuse_session_receive_buf(session_, &buffer_); }
  void process() override { fuse_session_process_buf(session_, &buffer_); }
  bool is_short() const override {
    switch (static_cast<const fuse_in_header*>(buffer_.mem)->opcode) {
      case FUSE_LOOKUP:
      case FUSE_GETATTR:
      case FUSE_GETXATTR:
      case FUSE_ACCESS:
      case FUSE_FLUSH:
      case FUSE_RELEASE:
      case FUSE_FORGET:
      case FUSE_BATCH_FORGET:
        return true;
      default:
        return false;
    }
  }

 private:
  fuse_session* session_;
  fuse_buf buffer_{};
};

}  // namespace

FuseDevice::FuseDevice(fuse_session* session) : session_(session) {
  const int flags = fcntl(descriptor(), F_GETFL);
  if (flags >= 0) fcntl(descriptor(), F_SETFL, flags | O_NONBLOCK);
}

int FuseDevice::descriptor() const { return fuse_session_fd(session_); }

std::unique_ptr<RequestDevice::Worker> FuseDevice::make_worker() { return std::make_unique<FuseWorker>(session_); }

}  // namespace kvcachefs

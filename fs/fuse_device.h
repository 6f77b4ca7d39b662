// The kernel's end of a session as the request loop sees it: /dev/fuse, set to return EAGAIN instead of blocking.
#pragma once

#include "fs/request_loop.h"

struct fuse_session;

namespace kvcachefs {

class FuseDevice : public RequestDevice {
 public:
  // Call after fuse_session_mount(). The session must outlive the device.
  explicit FuseDevice(fuse_session* session);
  int descriptor() const override;
  std::unique_ptr<Worker> make_worker() override;

 private:
  fuse_session* session_;
};

}  // namespace kvcachefs

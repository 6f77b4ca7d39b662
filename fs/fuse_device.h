// The kernel's end of a session as the loop sees it: /dev/fuse, set to answer EAGAIN instead of blocking.
#pragma once

#include "fs/request_loop.h"

struct fuse_session;

namespace kvcachefs {

class FuseDevice : public RequestDevice {
 public:
  // After fuse_session_mount(); the session outlives the device.
  explicit FuseDevice(fuse_session* session);
  int descriptor() const override;
  std::unique_ptr<Worker> make_worker() override;

 private:
  fuse_session* session_;
};

}  // namespace kvcachefs

// Sends a new mount its first request, from a separate process. The process is forked before the device is opened and before threads
// exist; its only open files are its ends of two pipes. A part of the daemon that waited for its own mount would keep /dev/fuse open when
// the daemon is killed, and programs that wait for the mount would never get an answer.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "store/base/unique_fd.h"

namespace kvcachefs {

class MountProbe {
 public:
  // Forks. Call before any thread exists, from the thread that lives as long as the process: the child ends when that thread does.
  MountProbe();
  MountProbe(const MountProbe&) = delete;
  MountProbe& operator=(const MountProbe&) = delete;
  ~MountProbe();  // waits half a second at most, because the child may hang in the kernel

  // Makes the child stat() `path` and waits for its result: 0 or an errno. ENOTCONN: the mount is gone again. ETIMEDOUT: no result after
  // `timeout_ms`. ECANCELED: `given_up`, which is called some times a second, returned true. Call once.
  int ask(const std::string& path, int timeout_ms, const std::function<bool()>& given_up);

 private:
  pid_t child_ = -1;
  UniqueFd question_, answer_;
};

}  // namespace kvcachefs

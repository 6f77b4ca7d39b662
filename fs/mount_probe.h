// Sends a new mount its first request, from a process of its own. That process is forked before the device is opened and before
// there are threads, and has no open files but its ends of two pipes: a part of the daemon that waits for its own mount would
// keep /dev/fuse open when the daemon is killed, and a program that waits for the mount would never get an answer.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "store/base/unique_fd.h"

namespace kvcachefs {

class MountProbe {
 public:
  // Forks. To be called before there are threads, by the thread that lives as long as the process: the child ends with it.
  MountProbe();
  MountProbe(const MountProbe&) = delete;
  MountProbe& operator=(const MountProbe&) = delete;
  ~MountProbe();  // waits half a second at most, for the child may hang in the kernel

  // Has the child stat() `path`, and waits for its answer: 0 or an errno; ENOTCONN where the mount is gone again; ETIMEDOUT after
  // `timeout_ms`; ECANCELED once `given_up` says so, which is asked some times a second. Once.
  int ask(const std::string& path, int timeout_ms, const std::function<bool()>& given_up);

 private:
  pid_t child_ = -1;
  UniqueFd question_, answer_;
};

}  // namespace kvcachefs

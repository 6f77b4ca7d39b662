// An empty file system of some kind for one test, visible to this process only. Call permitted() first.
#pragma once

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "tools/load/test_directory.h"

namespace kvcachefs {

class TestMount {
 public:
  // Whether such a mount is possible; from then on this thread has its own mount namespace.
  static bool permitted() { return ::geteuid() == 0 && ::unshare(CLONE_NEWNS) == 0; }

  explicit TestMount(const char* type) {
    // Readable by other users, as a mount is.
    ::chmod(directory_.path().c_str(), 0755);
    mounted_ = ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
               ::mount("none", path().c_str(), type, 0, "mode=755") == 0;
    if (!mounted_) ADD_FAILURE() << "mount " << type << ": " << std::strerror(errno);
  }
  TestMount(const TestMount&) = delete;
  TestMount& operator=(const TestMount&) = delete;
  ~TestMount() {
    if (mounted_) ::umount2(path().c_str(), MNT_DETACH);
  }

  const std::string& path() const { return directory_.path(); }
  bool empty() const { return directory_.empty(); }
  // Makes the mount look like a kvcachefs with this status.
  void write_status(const std::string& json) const {
    std::filesystem::create_directory(path() + "/.kvcachefs");
    const std::string status = path() + "/.kvcachefs/status";
    std::ofstream(status + ".new") << json;
    std::filesystem::rename(status + ".new", status);
  }

 private:
  TestDirectory directory_;
  bool mounted_ = false;
};

// Makes only this thread an ordinary user (the C library's call would change all threads).
class AsNobody {
 public:
  AsNobody() { become(65534); }
  AsNobody(const AsNobody&) = delete;
  AsNobody& operator=(const AsNobody&) = delete;
  ~AsNobody() { become(0); }

 private:
  static void become(uid_t user) {
    if (::syscall(SYS_setresuid, -1, user, -1) != 0) ADD_FAILURE() << "setresuid: " << std::strerror(errno);
  }
};

}  // namespace kvcachefs

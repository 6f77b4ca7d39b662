// A FUSE mount made without libfuse, to replace a mount whose daemon has died.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "store/base/result.h"
#include "store/base/unique_fd.h"

namespace kvcachefs {

// Clients of a dead mount go on: their writes must fail until the new mount accepts them, and must not reach the bare directory below. So the
// new mount is made outside the tree first, then put beneath the dead mount, and then the dead mount is detached.
class NewMount {
 public:
  // Opens /dev/fuse and makes a mount of it, outside the tree. `words` are the options that libfuse would get: flags of the kernel
  // (`ro`, `nosuid`, ...), `default_permissions`, `allow_other`. Fails for an ordinary user, on kernels before 5.2, and if `source` has more
  // than 255 bytes; libfuse can mount in these cases.
  static Result<NewMount> make(const std::string& source, const std::vector<std::string>& words);
  int device() const { return device_.get(); }
  // Call once the session owns the device.
  void release_device() { static_cast<void>(device_.release()); }
  // Call once. Kernels before 6.5 cannot mount beneath: there the dead mount is detached first, and clients see the bare directory between two
  // system calls. If nothing is mounted there any more, mounts all the same; if another mount is there by now, fails with kBusy.
  Status replace_dead(const std::string& mountpoint);

 private:
  Status put_on(const std::string& mountpoint);
  NewMount(UniqueFd device, UniqueFd root) : device_(std::move(device)), root_(std::move(root)) {}
  UniqueFd device_, root_;
};

// The directory below the topmost mount of a mountpoint; it can be listed. Not valid if the kernel (before 5.2) or the caller's rights
// (ordinary users) do not allow opening it.
UniqueFd directory_below(const std::string& mountpoint);

}  // namespace kvcachefs

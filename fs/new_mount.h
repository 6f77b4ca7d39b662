// A FUSE mount made without libfuse's help, and put in the place of one that a dead daemon left.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "store/base/result.h"
#include "store/base/unique_fd.h"

namespace kvcachefs {

// Clients of a dead mount go on: their writes must fail until the new mount takes them, and not reach the bare directory below. So the new
// mount is made first, nowhere in the tree, put beneath the dead one, and the dead one on top is detached.
class NewMount {
 public:
  // Opens /dev/fuse and makes a mount of it that is not in the tree yet. `words` are what libfuse would be given: flags of the kernel
  // (`ro`, `nosuid`, ...), `default_permissions`, `allow_other`. Fails for an ordinary user, on kernels before 5.2, with a source of more
  // than 255 bytes: libfuse can mount then.
  static Result<NewMount> make(const std::string& source, const std::vector<std::string>& words);
  int device() const { return device_.get(); }
  // The session owns the device from now on.
  void release_device() { static_cast<void>(device_.release()); }
  // Once. Where the kernel cannot mount beneath (before 6.5) the dead mount is detached first: clients see the bare directory between two
  // system calls. Where nothing is mounted any more it mounts all the same; where another mount is there by now it fails with kBusy.
  Status replace_dead(const std::string& mountpoint);

 private:
  Status put_on(const std::string& mountpoint);
  NewMount(UniqueFd device, UniqueFd root) : device_(std::move(device)), root_(std::move(root)) {}
  UniqueFd device_, root_;
};

// The directory below what is mounted on a mountpoint; it can be listed. Not valid where the kernel (before 5.2) or the caller's rights
// (ordinary users) do not let it be seen.
UniqueFd directory_below(const std::string& mountpoint);

}  // namespace kvcachefs

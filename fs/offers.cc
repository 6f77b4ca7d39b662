#include "fs/offers.h"

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

namespace kvcachefs {

namespace {

// A kernel whose release cannot be parsed is assumed to be new: INIT tells which features it lacks.
bool kernel_is_at_least(int wanted_major, int wanted_minor) {
  utsname names{};
  int major = 0, minor = 0;
  if (uname(&names) != 0 || std::sscanf(names.release, "%d.%d", &major, &minor) != 2) return true;
  return major > wanted_major || (major == wanted_major && minor >= wanted_minor);
}

}  // namespace

bool may_pass_through(const MountOptions& options) {
#ifdef FUSE_CAP_PASSTHROUGH
  return options.passthrough != Switch::kOff && options.store.verify != Verify::kAlways && geteuid() == 0 &&
         kernel_is_at_least(6, 9);
#else
  static_cast<void>(options);
  return false;
#endif
}

char ring_parameter() {
  std::ifstream parameter("/sys/module/fuse/parameters/enable_uring");
  const int value = parameter.get();
  return value == 'Y' || value == 'N' ? static_cast<char>(value) : '-';
}

bool ring_may_hang(LibraryVersion library) { return library < LibraryVersion(3, 19); }

RingChoice choose_ring(Switch wanted, char parameter, LibraryVersion library) {
  if (wanted == Switch::kOff) return {false, false, "off: io_uring=off"};
  const bool on = wanted == Switch::kOn;
  if (library < LibraryVersion(3, 18)) return {false, on, "off: this libfuse has it not (3.18)"};
  if (parameter == '-') return {false, on, "off: this kernel has it not (Linux 6.14)"};
  if (parameter != 'Y') return {false, on, "off: fuse.enable_uring=N (the administrator sets it to Y)"};
  if (!on && ring_may_hang(library))
    return {false, true, "off: this libfuse may hang with it (io_uring=on has it all the same)"};
  return {true, false, "in use"};
}

}  // namespace kvcachefs

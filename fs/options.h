// The options of a mount: the store's (store/api/options.h), the driver's own, and the kernel's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/api/options.h"
#include "store/base/result.h"

namespace kvcachefs {

enum class Switch : uint8_t { kAuto, kOn, kOff };

// Default of `threads`: one a processor, 2 to 16; the request loop wakes only as many as requests keep busy. At least 2, because a handler may
// open a file of a slow volume.
uint32_t default_threads();
// 0 on one processor, where polling would take the processor from the clients.
uint32_t default_busy_poll_us();

struct MountOptions {
  StoreOptions store;
  Switch passthrough = Switch::kAuto;
  Switch io_uring = Switch::kAuto;  // FUSE over io_uring; the administrator must set the kernel parameter fuse.enable_uring
  uint32_t threads = default_threads();
  uint32_t busy_poll_us = default_busy_poll_us();
  std::string log_level = "info";
  std::string log_file;  // empty: stderr (foreground), else rotated at 16 MiB
  bool nonempty = false;
  bool allow_other = false;
  std::vector<std::string> kernel;  // passed on to mount(2): "nosuid", "noatime", ...
};

// Parses the arguments of -o, each a list "a,b=c". Refuses unknown, malformed and contradictory options: the message names the option, the
// value and the allowed values.
Result<MountOptions> parse_mount_options(const std::vector<std::string>& lists);
// True if the helper of mount(8) called the command, as root (KVCACHEFS_MOUNT_HELPER in the environment). The options are then complete: a
// kernel flag that they do not name has the default of mount(8), which does not pass on its defaults.
bool called_by_mount8();
std::vector<OptionText> mount_options_text(const MountOptions& options);
// Changes an option of the driver while mounted: log_level.
Status set_mount_option_live(MountOptions& options, std::string_view name, std::string_view value);
// Why an option that is not the store's cannot be changed so: returns an error.
Status refuse_mount_option(std::string_view name, std::string_view value);

}  // namespace kvcachefs

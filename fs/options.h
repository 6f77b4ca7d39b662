// The options of a mount: the store's (store/options.h), the driver's own, and the kernel's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/result.h"
#include "store/options.h"

namespace kvcachefs {

enum class Switch : uint8_t { kAuto, kOn, kOff };

// Of the request loop: no more than there are processors to run them. On 2 processors a 64 KiB chunk from RAM took 95 to
// 160 us with 2 threads and 130 to 370 with 4 (medians of three runs). At least 2: a handler may open a file of a slow
// volume.
uint32_t default_threads();

struct MountOptions {
  StoreOptions store;
  Switch passthrough = Switch::kAuto;
  Switch io_uring = Switch::kAuto;  // FUSE over io_uring; the kernel parameter fuse.enable_uring is the administrator's
  uint32_t threads = default_threads();
  std::string log_level = "info";
  std::string log_file;  // empty: stderr (foreground), else rotated at 16 MiB
  bool nonempty = false;
  bool allow_other = false;
  std::vector<std::string> kernel;  // passed on to mount(2): "nosuid", "noatime", ...
};

// "-o" lists, each "a,b=c". Unknown, malformed and contradictory ones are refused: the message names the option, the value
// and what is allowed.
Result<MountOptions> parse_mount_options(const std::vector<std::string>& lists);
std::vector<OptionText> mount_options_text(const MountOptions& options);
// For what can change while mounted: log_level.
Status set_mount_option_live(MountOptions& options, std::string_view name, std::string_view value);

}  // namespace kvcachefs

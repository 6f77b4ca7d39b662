#include "fs/options.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <thread>

#include <fmt/format.h>

#include "store/base/log.h"

namespace kvcachefs {

namespace {

constexpr std::string_view kKernelFlags[] = {"ro", "rw", "suid", "nosuid", "dev", "nodev", "exec", "noexec",
                                             "atime", "noatime", "diratime", "nodiratime", "relatime", "strictatime", "sync", "async", "dirsync", "user", "nouser",
                                             "users", "auto", "noauto", "_netdev", "nofail", "defaults", "default_permissions"};
// Of these, only mount(8) and fstab use the following words.
constexpr std::string_view kForMountCommand[] = {"user", "nouser", "users", "auto", "noauto", "_netdev", "nofail", "defaults",
                                                 "rw", "default_permissions",
                                                 // The daemon sets read times, of files only, without the kernel.
                                                 "diratime", "relatime", "strictatime"};

Result<Switch> parse_switch(std::string_view name, std::string_view value) {
  if (value == "auto") return Switch::kAuto;
  if (value == "on") return Switch::kOn;
  if (value == "off") return Switch::kOff;
  return fail(Code::kInvalid, fmt::format("option {}={}: expected auto, on or off", name, value));
}

Status set_number(uint32_t& option, std::string_view name, std::string_view value, uint32_t least, uint32_t most) {
  KVC_ASSIGN(const uint64_t number, parse_option_number(name, value, least, most));
  option = static_cast<uint32_t>(number);
  return {};
}

std::string_view switch_name(Switch value) {
  return value == Switch::kAuto ? "auto" : value == Switch::kOn ? "on" : "off";
}

Status set_flag(MountOptions& options, std::string_view name) {
  if (name == "nonempty") {
    options.nonempty = true;
  } else if (name == "allow_other") {
    options.allow_other = true;
  } else if (name == "auto_unmount") {
    return fail(Code::kInvalid,
                "option auto_unmount is refused: after a crash of the daemon engines would go on writing into the bare "
                "directory under the mountpoint and fill that disk; use the systemd unit, which mounts again");
  } else if (std::find(std::begin(kKernelFlags), std::end(kKernelFlags), name) != std::end(kKernelFlags)) {
    if (name == "ro") options.store.read_only = true;
    if (name == "noatime") options.store.read_times = ReadTimes::kNever;
    if (name == "strictatime") options.store.read_times = ReadTimes::kAlways;
    if (name == "atime" || (name == "relatime" && options.store.read_times == ReadTimes::kAlways))
      options.store.read_times = ReadTimes::kRelative;  // noatime takes precedence over relatime, as in the kernel
    if (name == "rw") {
      options.store.read_only = false;
      std::erase(options.kernel, "ro");
    }
    if (std::find(std::begin(kForMountCommand), std::end(kForMountCommand), name) == std::end(kForMountCommand))
      options.kernel.emplace_back(name);
  } else {
    return fail(Code::kInvalid, fmt::format("unknown option '{}' (or one that needs a value); `kvcachefs mount --help` lists them", name));
  }
  return {};
}

Status set_value(MountOptions& options, std::string_view name, std::string_view value) {
  if (name == "passthrough") {
    KVC_ASSIGN(options.passthrough, parse_switch(name, value));
  } else if (name == "io_uring") {
    KVC_ASSIGN(options.io_uring, parse_switch(name, value));
  } else if (name == "threads") {
    return set_number(options.threads, name, value, 1, 256);
  } else if (name == "busy_poll_us") {
    return set_number(options.busy_poll_us, name, value, 0, 1000);
  } else if (name == "log_level") {
    return set_mount_option_live(options, name, value);
  } else if (name == "log_file") {
    if (value.empty() || value[0] != '/') return fail(Code::kInvalid, fmt::format("option log_file={}: expected an absolute path", value));
    options.log_file = value;
  } else if (name.starts_with("x-") || name == "fsname" || name == "subtype") {
    if (name == "fsname" || name == "subtype")
      return fail(Code::kInvalid, fmt::format("option {}={}: it is set by kvcachefs itself", name, value));
  } else {
    Status status = set_store_option(options.store, name, value);
    if (!status && status.error().code == Code::kNotFound)
      return fail(Code::kInvalid, fmt::format("unknown option '{}={}'; `kvcachefs mount --help` lists them", name, value));
    return status;
  }
  return {};
}

}  // namespace

Status set_mount_option_live(MountOptions& options, std::string_view name, std::string_view value) {
  if (name != "log_level") return fail(Code::kInvalid, fmt::format("option '{}' cannot be changed while mounted", name));
  auto level = log::parse_level(value);
  if (!level) return fail(Code::kInvalid, fmt::format("option log_level={}: {}", value, level.error().message));
  options.log_level = value;
  log::set_level(*level);
  return {};
}

Status refuse_mount_option(std::string_view name, std::string_view value) {
  if (name == "ro") return fail(Code::kInvalid, "option 'ro' is changed by `mount -o remount,ro MOUNTPOINT`, or `remount,rw`");
  const std::vector<OptionText> known = mount_options_text({});
  if (std::ranges::none_of(known, [&](const OptionText& option) { return option.name == name; }))
    return fail(Code::kInvalid, fmt::format("unknown option '{}'; `kvcachefs mount --help` lists them", name));
  const bool flag = name == "nonempty" || name == "allow_other";
  if (MountOptions scratch; !flag) KVC_TRY(set_value(scratch, name, value));
  return fail(Code::kInvalid, fmt::format("option '{}' cannot be changed while mounted; unmount and mount {}", name,
                                          flag ? fmt::format("with or without -o {}", name) : fmt::format("with -o {}={}", name, value)));
}

Result<MountOptions> parse_mount_options(const std::vector<std::string>& lists) {
  MountOptions options;
  if (called_by_mount8()) options.kernel = {"suid", "dev"};  // before the requested options: the last of two counts
  std::set<std::string, std::less<>> seen;
  for (const std::string& list : lists) {
    size_t start = 0;
    while (start <= list.size()) {
      const size_t comma = std::min(list.find(',', start), list.size());
      const std::string_view item = std::string_view(list).substr(start, comma - start);
      start = comma + 1;
      if (item.empty()) {
        if (list.empty()) break;
        return fail(Code::kInvalid, fmt::format("options '{}': an empty option between commas", list));
      }
      const size_t equals = item.find('=');
      const std::string_view name = item.substr(0, equals);
      if (equals == std::string_view::npos) {
        KVC_TRY(set_flag(options, name));
        continue;
      }
      if (!seen.emplace(name).second)
        return fail(Code::kInvalid, fmt::format("option '{}' is given twice", name));
      KVC_TRY(set_value(options, name, item.substr(equals + 1)));
    }
  }
  if (options.store.verify == Verify::kAlways && options.passthrough == Switch::kOn)
    return fail(Code::kInvalid, "options verify=always and passthrough=on contradict: passed-through reads are not seen by the daemon");
  KVC_TRY(check_store_options(options.store));
  return options;
}

bool called_by_mount8() { return geteuid() == 0 && std::getenv("KVCACHEFS_MOUNT_HELPER") != nullptr; }

uint32_t default_threads() { return std::clamp(std::thread::hardware_concurrency(), 2U, 16U); }

// A serial reader's next request comes 10 to 30 us after an answer. With one thread, a 64 KiB chunk from RAM took 53 us when polling for 30 or
// 60 us, and 78 us without polling (medians of three runs on 2 processors, in a prototype of the loop).
uint32_t default_busy_poll_us() { return std::thread::hardware_concurrency() > 1 ? 50 : 0; }

std::vector<OptionText> mount_options_text(const MountOptions& options) {
  return {
      {"passthrough", std::string(switch_name(options.passthrough)), false, "auto (default), on, off: reads of solo bodies past the daemon"},
      {"io_uring", std::string(switch_name(options.io_uring)), false,
       "auto (default), on, off: requests over io_uring; needs the kernel parameter fuse.enable_uring"},
      {"threads", fmt::format("{}", options.threads), false, "of the request loop, at most; default: one a processor, 2 to 16; 1 to 256"},
      {"busy_poll_us", fmt::format("{}", options.busy_poll_us), false,
       "0 to 1000: how long to poll for the next request of a fast reader; default 50, on one processor 0"},
      {"log_level", options.log_level, true, "trace, debug, info (default), warn, error, off"},
      {"log_file", options.log_file, false, "absolute path, rotated at 16M; default stderr when in the foreground"},
      {"ro", options.store.read_only ? "on" : "off", false, "read-only for clients; the daemon still writes to the volume (journal, index)"},
      {"nonempty", options.nonempty ? "on" : "off", false, "mount over a directory with entries"},
      {"allow_other", options.allow_other ? "on" : "off", false, "other users may enter; modes are obeyed"},
  };
}

}  // namespace kvcachefs

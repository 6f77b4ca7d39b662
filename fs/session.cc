#include "fs/session.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "fs/control.h"
#include "fs/driver.h"
#include "fs/fuse_device.h"
#include "fs/mountpoint.h"
#include "fs/negotiate.h"
#include "fs/offers.h"
#include "fs/process.h"
#include "fs/request_loop.h"
#include "kvcachefs_version.h"
#include "store/base/clock.h"
#include "store/base/log.h"

namespace kvcachefs {

namespace {

constexpr std::string_view kMountType = "fuse.kvcachefs";

// Buffered readers and mmap: the kernel's read-ahead for this mount. Root only; else the default stays.
void raise_read_ahead(Driver& driver) {
  struct stat info {};
  if (::stat(driver.mountpoint.c_str(), &info) != 0) return;
  std::ofstream setting(fmt::format("/sys/class/bdi/{}:{}/read_ahead_kb", major(info.st_dev), minor(info.st_dev)));
  setting << kReadAheadBytes / 1024 << std::endl;
  if (!setting) driver.add_lost_feature("read-ahead beyond 128 KiB (root); ");
}

std::string holder_text(const std::string& mountpoint, const char* state) {
  char host[256] = "?";
  gethostname(host, sizeof host - 1);
  return fmt::format("pid={} host={} mountpoint={} since={} state={}", getpid(), host, mountpoint,
                     system_clock().realtime_ns() / 1'000'000'000, state);
}

// Of the text above, in a message.
std::optional<std::string> held_mountpoint(const std::string& message) {
  constexpr std::string_view kBefore = " mountpoint=", kAfter = " since=";
  const size_t start = message.find(kBefore), end = message.rfind(kAfter);
  if (start == std::string::npos || end == std::string::npos || end < start + kBefore.size()) return std::nullopt;
  return message.substr(start + kBefore.size(), end - start - kBefore.size());
}

// A predecessor that was just unmounted may still be writing out what it holds: it keeps the lock until then.
Result<std::unique_ptr<Store>> open_store_patiently(const std::string& volume_path, const MountOptions& options,
                                                    const std::string& mountpoint) {
  constexpr int kWaitSeconds = 60;
  for (int second = 0;; ++second) {
    auto store = open_store_at(volume_path, options.store, system_clock(), holder_text(mountpoint, "mounted"));
    if (store || store.error().code != Code::kBusy || second >= kWaitSeconds) return store;
    const std::string& message = store.error().message;
    const auto held = held_mountpoint(message);
    if (!held) return store;
    if (auto there = mounted_on(*held); there && there->type == kMountType) return store;  // it will not end by itself
    if (second == 0) log::info("waiting for the previous daemon to finish: {}", message);
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

// A value in a list of options for libfuse: there a comma begins the next option.
std::string escaped(std::string_view value) {
  std::string text;
  for (char c : value) {
    if (c == ',' || c == '\\') text += '\\';
    text += c;
  }
  return text;
}

fuse_session* new_session(Driver& driver) {
  static fuse_lowlevel_ops operations = [] {
    fuse_lowlevel_ops filled{};
    filled.init = negotiate;
    add_name_operations(filled);
    add_attribute_operations(filled);
    add_data_operations(filled);
    add_directory_operations(filled);
    return filled;
  }();
  std::string list = fmt::format("fsname={},subtype=kvcachefs,default_permissions", escaped(driver.volume_path));
  if (driver.options.allow_other) list += ",allow_other";
  for (const std::string& flag : driver.options.kernel) list += "," + flag;
  constexpr LibraryVersion kLibrary{FUSE_MAJOR_VERSION, FUSE_MINOR_VERSION};
  const RingChoice ring = choose_ring(driver.options.io_uring, ring_parameter(), kLibrary);
  driver.set_ring(ring.use, ring.state);
  if (ring.missed) driver.add_lost_feature(fmt::format("FUSE over io_uring ({}); ", ring.state));
  if (ring.use && ring_may_hang(kLibrary))
    log::warn("io_uring=on: in libfuse {}.{} requests over io_uring may hang under load; use it for measurements only",
              FUSE_MAJOR_VERSION, FUSE_MINOR_VERSION);
  if (ring.use) list += ",io_uring,io_uring_q_depth=16";
  std::vector<std::string> words = {"kvcachefs", "-o", list};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  fuse_args parsed = FUSE_ARGS_INIT(static_cast<int>(arguments.size()), arguments.data());
  fuse_session* session = fuse_session_new(&parsed, &operations, sizeof operations, &driver);
  fuse_opt_free_args(&parsed);  // what libfuse made of them
  return session;
}

// The kernel has let go of the mount: umount(8), not a signal, ended the loop.
bool unmounted_by_others(fuse_session* session) {
  pollfd device{.fd = fuse_session_fd(session), .events = 0, .revents = 0};
  return poll(&device, 1, 0) == 1 && (device.revents & POLLERR) != 0;
}

// Whether the mount is gone from its place. What is there can also be another's: `umount --lazy` came before, or somebody
// mounted on top. A volume has one mount at a time, so its name tells.
bool detach(const Driver& driver) {
  const auto there = mounted_on(driver.mountpoint);
  const bool ours = there && there->type == kMountType && there->source == driver.volume_path;
  return !ours || lazily_unmount(driver.mountpoint);
}

// Where the mount is gone already: who still has files open is told ENOTCONN. In place of the device comes a pipe that nobody
// reads: its POLLERR keeps fuse_session_unmount() from unmounting by path what somebody mounted there since, and the number
// stays taken until then.
void end_connection(fuse_session* session) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return log::warn("a pipe: {}", std::strerror(errno));
  close(ends[0]);
  if (dup3(ends[1], fuse_session_fd(session), O_CLOEXEC) < 0) log::warn("closing the device: {}", std::strerror(errno));
  close(ends[1]);
}

// Asks the mount something, in a thread without open files: one that waits for its own process would keep the device open
// when that process is killed, and then nobody would ever answer, here or to anybody else.
bool mount_answers(const std::string& mountpoint) {
  bool answers = false;
  std::thread([&] {
    constexpr unsigned kFirstOther = 3;
    if (close_range(kFirstOther, ~0U, CLOSE_RANGE_UNSHARE) != 0) log::debug("close_range: {}", std::strerror(errno));
    struct stat info {};
    answers = ::stat(mountpoint.c_str(), &info) == 0;
  }).join();
  return answers;
}

int refuse(const Error& error) {
  std::fprintf(stderr, "kvcachefs: %s\n", error.message.c_str());
  return 1;
}

Status prepare_paths(Driver& driver, const MountRequest& request) {
  KVC_ASSIGN(driver.mountpoint, prepare_mountpoint(request.mountpoint, driver.options.nonempty));
  KVC_ASSIGN(driver.volume_path, prepare_volume(request.volume));
  return check_apart(driver.volume_path, driver.mountpoint);
}

Status close_store(Driver& driver) {
  const int64_t started_ns = system_clock().monotonic_ns();
  Status status = driver.store->close();
  log::info("drained and closed in {} ms", (system_clock().monotonic_ns() - started_ns) / 1'000'000);
  return status;
}

Status attach(Driver& driver) {
  driver.session = new_session(driver);
  if (driver.session == nullptr)
    return fail(Code::kIo, "libfuse did not take the options of the mount; it says more on stderr with -f");
  if (fuse_session_mount(driver.session, driver.mountpoint.c_str()) != 0)
    return fail(Code::kPermission,
                fmt::format("mounting on {} failed: is /dev/fuse there and writable, and (for an ordinary user) "
                            "fusermount3 installed and, for allow_other, user_allow_other in /etc/fuse.conf?",
                            driver.mountpoint));
  return {};
}

// Tells who waits for the mount that it is there, or that it does not answer.
void announce(Driver& driver, Readiness& readiness) {
  const bool answers = mount_answers(driver.mountpoint);
  raise_read_ahead(driver);
  const std::string lost = driver.features();
  log::info("mounted {} on {}{}", driver.volume_path, driver.mountpoint, lost.empty() ? "" : "; not to be had here: " + lost);
  if (answers)
    readiness.ready();
  else
    static_cast<void>(readiness.failed({Code::kIo, 0, driver.mountpoint + ": the mount does not answer"}));
  StopOnSignals::mount_is_announced();
}

RequestLoop::Settings loop_settings(Driver& driver) {
  // With more processors there is a free one for the threads that read ahead, and the loop has less to do without that.
  constexpr unsigned kFewProcessors = 4;
  const unsigned processors = std::thread::hardware_concurrency();
  RequestLoop::Settings settings{.threads = driver.options.threads,
                                 .busy_poll = std::chrono::microseconds(driver.options.busy_poll_us),
                                 .one_processor = processors == 1};
  if (processors <= kFewProcessors && settings.busy_poll.count() > 0) {
    settings.help = [store = driver.store] { return store->help(); };
    settings.leave_off = [store = driver.store] { store->leave_off(); };
  }
  return settings;
}

// Until somebody unmounts or a signal comes; negative: the loop failed.
int serve(Driver& driver, RequestLoop& loop, Readiness& readiness) {
  const StopOnSignals stop_on_signals(loop);
  // The first request answers only once the loop runs: readiness is told from a thread that asks.
  std::thread announcer([&] { announce(driver, readiness); });
  const int result = loop.run();
  fuse_session_exit(driver.session);
  announcer.join();
  return result;
}

Status take_down(Driver& driver) {
  // The store may still answer requests, from threads of its own: the device stays open until it has, for its number could
  // be given to a file of the volume, which a late reply would be written into.
  const bool detached = !unmounted_by_others(driver.session) && detach(driver);
  driver.store->stop();
  // libfuse's threads of io_uring end, with the memory that replies are written into, in the loop of libfuse: one that is
  // left at once. After the last reply of the store, before anything they use is gone.
  if (driver.ring_used()) fuse_session_loop(driver.session);
  if (detached)
    end_connection(driver.session);
  else
    fuse_session_unmount(driver.session);
  Status status = close_store(driver);
  if (detached) fuse_session_unmount(driver.session);
  fuse_session_destroy(driver.session);
  return status;
}

}  // namespace

int run_mount(const MountRequest& request) {
  auto options = parse_mount_options(request.options);
  if (!options) return refuse(options.error());
  if (Status status = set_up_process(*options); !status) return refuse(status.error());
  options->store.passthrough = may_pass_through(*options);
  Readiness readiness = Readiness::start(request.foreground);  // before any thread exists

  Driver driver;
  driver.options = *options;
  if (Status status = prepare_paths(driver, request); !status) return readiness.failed(status.error());
  raise_descriptor_limit();
  lower_oom_score();
  auto store = open_store_patiently(driver.volume_path, *options, driver.mountpoint);
  if (!store) return readiness.failed(store.error());
  driver.store = store->get();
  driver.control = std::make_unique<ControlFiles>(driver);
  if (Status status = attach(driver); !status) {
    static_cast<void>(close_store(driver));
    return readiness.failed(status.error());
  }
  FuseDevice device(driver.session);
  RequestLoop loop(device, loop_settings(driver));
  const int result = serve(driver, loop, readiness);
  const Status status = take_down(driver);
  driver.control.reset();
  store->reset();
  log::flush();
  return result >= 0 && status ? 0 : 1;
}

std::string version_text() {
  std::string text = fmt::format("kvcachefs {}\nlibfuse {} (built against {}.{})\n", KVCACHEFS_VERSION, fuse_pkgversion(),
                                 FUSE_MAJOR_VERSION, FUSE_MINOR_VERSION);
#ifdef FUSE_CAP_PASSTHROUGH
  text += "passthrough: in the library\n";
#else
  text += "passthrough: not in this libfuse (3.17 has it)\n";
#endif
  const char parameter = ring_parameter();
  text += fmt::format("FUSE over io_uring: {}\n", parameter == 'Y'   ? "on in this kernel"
                                                  : parameter == 'N' ? "in this kernel, switched off (fuse.enable_uring=N)"
                                                                     : "not in this kernel");
  return text;
}

std::string options_help() {
  std::string text;
  for (const OptionText& option : store_options_text({})) text += fmt::format("  {:<18} {}\n", option.name, option.help);
  for (const OptionText& option : mount_options_text({})) text += fmt::format("  {:<18} {}\n", option.name, option.help);
  return text + "  ro, nosuid, nodev, noexec, noatime, ... as for any mount\n";
}

}  // namespace kvcachefs

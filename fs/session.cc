#include "fs/session.h"

#include <fcntl.h>
#include <poll.h>
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

#include "fs/after_answer.h"
#include "fs/dispatch.h"
#include "fs/driver.h"
#include "fs/file_handles.h"
#include "fs/fuse_device.h"
#include "fs/mount_probe.h"
#include "fs/mountpoint.h"
#include "fs/negotiate.h"
#include "fs/new_mount.h"
#include "fs/offers.h"
#include "fs/process.h"
#include "fs/request_loop.h"
#include "kvcachefs_version.h"
#include "store/base/clock.h"
#include "store/base/log.h"
#include "store/base/node_name.h"
#include "store/base/thread.h"
#include "store/gc/caretaker.h"
#include "store/gc/node_wanted.h"

namespace kvcachefs {

namespace {

// Raises the kernel's read-ahead for this mount, for buffered readers and mmap. Root only; otherwise the default stays.
void raise_read_ahead(Driver& driver) {
  const auto mount = mount_of(driver.volume_path, driver.mountpoint);
  if (!mount) return;
  std::ofstream setting(fmt::format("/sys/class/bdi/{}/read_ahead_kb", mount->device));
  setting << kReadAheadBytes / 1024 << std::endl;
  if (!setting) driver.add_lost_feature("read-ahead beyond 128 KiB (root); ");
}

std::string holder_text(const std::string& mountpoint, const char* state) {
  return fmt::format("pid={} host={} mountpoint={} since={} state={}", getpid(), node_name_of_host(), mountpoint,
                     system_clock().realtime_ns() / 1'000'000'000, state);
}

// Extracts the mountpoint from such a text within a message.
std::optional<std::string> held_mountpoint(const std::string& message) {
  constexpr std::string_view kBefore = " mountpoint=", kAfter = " since=";
  const size_t start = message.find(kBefore), end = message.rfind(kAfter);
  if (start == std::string::npos || end == std::string::npos || end < start + kBefore.size()) return std::nullopt;
  return message.substr(start + kBefore.size(), end - start - kBefore.size());
}

// Opens the store. Waits up to a minute while a daemon whose mount is gone still writes to the volume and holds its lock, and longer (300 s) while
// another node tends this one.
Result<std::unique_ptr<Store>> open_store_patiently(const std::string& volume_path, const MountOptions& options,
                                                    const std::string& mountpoint, bool found_dead_mount) {
  constexpr int kWaitSeconds = 60, kWaitTendedSeconds = 300;  // opening a large part takes the other node long
  std::shared_ptr<VolumeLock> wanted;  // asks the node that tends this one to leave
  for (int second = 0;; ++second) {
    auto store = open_store_at(volume_path, options.store, system_clock(), holder_text(mountpoint, "mounted"));
    if (store || store.error().code != Code::kBusy) return store;
    const std::string& message = store.error().message;
    const auto held = held_mountpoint(message);
    const bool is_gc = message.contains(" command=gc");  // `kvcachefs gc`, which ends by itself
    const bool is_tended = message.contains(kTendedHolder);
    if (second >= (is_tended ? kWaitTendedSeconds : kWaitSeconds)) return store;
    if (!held && !is_gc && !is_tended) return store;
    const bool is_dead_here = found_dead_mount && held == mountpoint && is_dead(mountpoint);
    if (auto there = held && !is_dead_here ? mounted_on(*held) : std::nullopt; there && there->type == kMountType) return store;  // that daemon will not end by itself
    if (second == 0) log::info("waiting for {} to finish: {}", is_gc ? "the command gc" : is_tended ? "another node" : "the previous daemon", message);
    if (is_tended && !wanted) wanted = want_node(volume_path, options.store.node).value_or(nullptr);  // if the request fails, it leaves later
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

// Escapes a value in a list of options for libfuse, where a comma begins the next option.
std::string escaped(std::string_view value) {
  std::string text;
  for (char c : value) {
    if (c == ',' || c == '\\') text += '\\';
    text += c;
  }
  return text;
}

// The options that the kernel gets for the mount.
std::vector<std::string> kernel_words(const Driver& driver) {
  std::vector<std::string> words = {"default_permissions"};
  if (driver.options.allow_other) words.emplace_back("allow_other");
  words.insert(words.end(), driver.options.kernel.begin(), driver.options.kernel.end());
  return words;
}

fuse_session* new_session(Driver& driver) {
  static fuse_lowlevel_ops operations = [] {
    fuse_lowlevel_ops filled = dispatching_operations();
    filled.init = negotiate;
    return filled;
  }();
  std::string list = fmt::format("fsname={},subtype=kvcachefs", escaped(driver.volume_path));
  for (const std::string& word : kernel_words(driver)) list += "," + word;
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
  fuse_opt_free_args(&parsed);  // libfuse's copies
  return session;
}

// True if the kernel has dropped the mount: umount(8), not a signal, ended the loop.
bool unmounted_by_others(fuse_session* session) {
  pollfd device{.fd = fuse_session_fd(session), .events = 0, .revents = 0};
  return poll(&device, 1, 0) == 1 && (device.revents & POLLERR) != 0;
}

// Detaches the mount unless another one is in its place, because `umount --lazy` came before or another program mounted on top. Returns true if our
// mount is not in its place afterwards.
bool detach(const Driver& driver) {
  return !mount_of(driver.volume_path, driver.mountpoint) || lazily_unmount(driver.mountpoint);
}

// Closes the device if the mount is gone already: programs that still have files open get ENOTCONN. A pipe without a reader takes
// the place of the descriptor. Its POLLERR keeps fuse_session_unmount() from unmounting by path, which could hit another mount that is there
// now, and the descriptor's number stays taken until then.
void end_connection(fuse_session* session) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return log::warn("a pipe: {}", std::strerror(errno));
  ::close(ends[0]);
  if (dup3(ends[1], fuse_session_fd(session), O_CLOEXEC) < 0) log::warn("closing the device: {}", std::strerror(errno));
  ::close(ends[1]);
}

int refuse(const Error& error) {
  std::fprintf(stderr, "kvcachefs: %s\n", error.message.c_str());
  return 1;
}

Status prepare_paths(Driver& driver, const MountRequest& request) {
  KVC_ASSIGN(PreparedMountpoint mountpoint, prepare_mountpoint(request.mountpoint, driver.options.nonempty));
  driver.mountpoint = std::move(mountpoint.path);
  driver.dead_device = std::move(mountpoint.dead_device);
  KVC_ASSIGN(driver.volume_path, prepare_volume(request.volume, driver.options.store.create));
  driver.volume_is_stacked = is_stacked(driver.volume_path);
  KVC_TRY(check_apart(driver.volume_path, driver.mountpoint));
  // The mount would hide such a file, or the file would keep the next mount from using this directory.
  KVC_TRY(check_outside("log_file", driver.options.log_file, "the mountpoint", driver.mountpoint));
  KVC_TRY(check_outside("index", driver.options.store.index_directory, "the mountpoint", driver.mountpoint));
  return check_outside("log_file", driver.options.log_file, "the volume", driver.volume_path);
}

Status close_store(Driver& driver) {
  const int64_t started_ns = system_clock().monotonic_ns();
  Status status = driver.store->close();
  log::info("drained and closed in {} ms", (system_clock().monotonic_ns() - started_ns) / 1'000'000);
  return status;
}

Status mount_by_library(const Driver& driver) {
  if (fuse_session_mount(driver.session, driver.mountpoint.c_str()) == 0) return {};
  return fail(Code::kPermission,
              fmt::format("mounting on {} failed: is /dev/fuse there and writable, and (for an ordinary user) "
                          "fusermount3 installed and, for allow_other, user_allow_other in /etc/fuse.conf?",
                          driver.mountpoint));
}

// Replaces the dead mount by the new one.
Status replace_dead_mount(Driver& driver) {
  UniqueFd below = directory_below(driver.mountpoint);
  auto fresh = NewMount::make(driver.volume_path, kernel_words(driver));
  if (fresh && fuse_session_mount(driver.session, fmt::format("/dev/fd/{}", fresh->device()).c_str()) == 0) {  // mounts nothing
    fresh->release_device();
    driver.mounted_by_itself = true;
    KVC_TRY(fresh->replace_dead(driver.mountpoint));
  } else {
    log::debug("{}: libfuse mounts: {}", driver.mountpoint, fresh ? "it does not take a device" : fresh.error().message);
    if (is_dead(driver.mountpoint)) lazily_unmount(driver.mountpoint);
    if (mounted_on(driver.mountpoint)) return fail(Code::kBusy, fmt::format("mountpoint {} has something else mounted on it by now", driver.mountpoint));
    if (!below.valid()) below = open_bare_directory(driver.mountpoint);
    KVC_TRY(mount_by_library(driver));
  }
  warn_of_hidden(std::move(below), driver.mountpoint);
  return {};
}

Status attach(Driver& driver) {
  driver.session = new_session(driver);
  if (driver.session == nullptr)
    return fail(Code::kIo, "libfuse did not take the options of the mount; it says more on stderr with -f");
  return driver.found_dead_mount() ? replace_dead_mount(driver) : mount_by_library(driver);
}

// Checks that the mount answers, then reports to the waiting command that it is ready. Fails without a report if the mount does not
// answer or has to end.
Status announce(Driver& driver, Readiness& readiness, MountProbe& probe, const std::atomic<bool>& loop_ended) {
  constexpr int kFirstAnswerMs = 60'000;
  const int problem = probe.ask(driver.mountpoint, kFirstAnswerMs,
                                [&] { return loop_ended || StopOnSignals::wanted() || readiness.abandoned(); });
  // If the mount was unmounted before the report, the user wanted that; it is no failure of the mount.
  if (problem == ECANCELED || problem == ENOTCONN || problem == ECONNABORTED)
    return fail(Code::kCanceled, driver.mountpoint + ": unmounted or ended before the mount was ready");
  if (problem != 0)
    return fail(Code::kIo, fmt::format("{}: the mount does not answer: {}", driver.mountpoint, std::strerror(problem)));
  raise_read_ahead(driver);
  const std::string lost = driver.features();
  log::info("mounted {} on {}{}", driver.volume_path, driver.mountpoint, lost.empty() ? "" : "; not available here: " + lost);
  if (!readiness.ready()) return fail(Code::kCanceled, "the command that mounts is gone");
  return {};
}

RequestLoop::Settings loop_settings(Driver& driver) {
  // With more processors than this, one is free for the threads that read ahead, and the loop is cheaper without helping.
  constexpr unsigned kFewProcessors = 4;
  const unsigned processors = std::thread::hardware_concurrency();
  RequestLoop::Settings settings{.threads = driver.options.threads,
                                 .busy_poll = std::chrono::microseconds(driver.options.busy_poll_us),
                                 .one_processor = processors == 1,
                                 .settle = [store = driver.store] { settle_accesses(*store); }};
  if (processors <= kFewProcessors && settings.busy_poll.count() > 0) {
    settings.help = [store = driver.store] { return store->help(); };
    settings.leave_off = [store = driver.store] { store->leave_off(); };
  }
  return settings;
}

// The state of the mountpoint afterwards. kDead: the mount has no daemon and answers ENOTCONN until it is unmounted or the next daemon replaces it.
// This is for an end that nobody requested, and for a start that found a dead mount and fails: clients that go on must not write into the bare
// directory below.
enum class Mountpoint { kFree, kDead };

// Runs the request loop until an unmount or a signal. Fails if the mount was never announced, or if the loop failed (then `after` is kDead).
Status serve(Driver& driver, RequestLoop& loop, Readiness& readiness, MountProbe& probe, Mountpoint& after) {
  Status announced;
  std::atomic<bool> ended{false};
  // The first request answers only once the loop runs.
  auto announcer = start_thread("kvc-announcer", [&] {
    announced = announce(driver, readiness, probe, ended);
    if (!announced) loop.stop();
  });
  if (!announcer) {
    if (driver.found_dead_mount()) after = Mountpoint::kDead;
    return std::unexpected(std::move(announcer).error());
  }
  const int result = loop.run();
  ended = true;
  fuse_session_exit(driver.session);
  announcer->join();
  if (!announced) {
    const bool is_stop = announced.error().code == Code::kCanceled && readiness.foreground();
    if (driver.found_dead_mount() && !is_stop) after = Mountpoint::kDead;
    return announced;
  }
  if (result >= 0) return {};
  after = Mountpoint::kDead;
  return fail(Code::kIo, fmt::format("the request loop: {}", std::strerror(-result)));
}

Status take_down(Driver& driver, Mountpoint after) {
  // The store may still answer requests from its own threads. The device stays open until it has: else its number could
  // be given to a file of the volume, and a late reply would be written into that file.
  const bool ends_here = !unmounted_by_others(driver.session) && (after == Mountpoint::kDead || detach(driver) || driver.mounted_by_itself);
  driver.caretaker->end_soon();
  driver.side_thread.stop();
  driver.copies.stop();
  driver.gone_names.stop();
  driver.locks.stop();
  driver.passthrough.stop();
  driver.store->stop();
  // libfuse's io_uring threads, and the memory that replies are written into, end in libfuse's loop, so enter it; it
  // returns at once. This must come after the last reply of the store, and before anything that these threads use is destroyed.
  if (driver.ring_used()) fuse_session_loop(driver.session);
  if (ends_here)
    end_connection(driver.session);
  else
    fuse_session_unmount(driver.session);
  Status status = close_store(driver);
  driver.caretaker->stop();  // this node's accepted data is on the volume before another node's part is closed
  if (ends_here) fuse_session_unmount(driver.session);
  fuse_session_destroy(driver.session);
  return status;
}

}  // namespace

int run_mount(const MountRequest& request) {
  auto options = parse_mount_options(request.options);
  if (!options) return refuse(options.error());
  if (Status status = check_options(options->store); !status) return refuse(status.error());
  if (const char* limit = std::getenv("KVCACHEFS_FENCE_MS"); limit != nullptr)  // set by tests
    options->store.fence_after_ms = std::strtoull(limit, nullptr, 10);
  options->store.passthrough = may_pass_through(*options);
  Driver driver;
  driver.options = *options;
  if (Status status = prepare_paths(driver, request); !status) return refuse(status.error());
  if (Status status = check_limits(); !status) return refuse(status.error());
  if (Status status = set_up_process(*options); !status) return refuse(status.error());
  if (Status status = raise_descriptor_limit(); !status) return refuse(status.error());
  // Before any thread exists.
  Result<Readiness> started = Readiness::start(request.foreground, [&driver](bool hangs) {
    // If a dead mount was found at the start, a dead mount stays: it keeps clients out of the bare directory.
    const auto left = mount_of(driver.volume_path, driver.mountpoint);
    if (left && (!driver.found_dead_mount() || (hangs && left->device != driver.dead_device))) lazily_unmount(driver.mountpoint);
  });
  if (!started) return refuse(started.error());
  Readiness& readiness = *started;
  MountProbe probe;

  tune_heap(options->store.memory_bytes);
  lower_oom_score();
  auto store = open_store_patiently(driver.volume_path, *options, driver.mountpoint, driver.found_dead_mount());
  if (!store) return readiness.failed(store.error());
  driver.store = store->get();
  if (options->store.memory_bytes == 0) tune_heap(driver.store->options().memory_bytes);
  driver.handles = std::make_unique<FileHandles>(driver);
  std::optional<StopOnSignals> stop_on_signals(std::in_place);
  readiness.watch();
  if (Status status = attach(driver); !status) {
    static_cast<void>(close_store(driver));
    return readiness.failed(status.error());
  }
  driver.gone_names.start(driver.session, [&driver](ObjectId id) {
    std::vector<uint64_t> nodes{id.value};
    if (const uint64_t alias = driver.passthrough.node_of(id).value; alias != id.value) nodes.push_back(alias);
    return nodes;
  });
  driver.store->set_names_gone([&driver](std::vector<GoneName> names) { driver.gone_names.add(std::move(names)); });
  FuseDevice device(driver.session);
  RequestLoop loop(device, loop_settings(driver));
  stop_on_signals->set_loop(loop);
  std::atomic<bool> node_lost{false};
  driver.store->set_node_lost([&] {
    node_lost = true;
    log::silence_what_follows();
    loop.stop();
  });
  driver.caretaker.emplace(*driver.store, system_clock());
  driver.caretaker->start();
  Mountpoint after = Mountpoint::kFree;
  const Status served = serve(driver, loop, readiness, probe, after);
  if (node_lost && served && !StopOnSignals::wanted()) after = Mountpoint::kDead;
  stop_on_signals.reset();
  int result = served ? 0 : 1;
  if (!served && served.error().code == Code::kCanceled && readiness.foreground()) {
    result = 0;  // as after a signal that comes later
  } else if (!served) {
    readiness.failed(served.error());
    end_soon();
  }
  if (Status status = take_down(driver, after); !status) result = 1;
  if (node_lost) result = kExitNodeLost;
  driver.handles.reset();
  store->reset();
  log::flush();
  return result;
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
  return text + "  nosuid, nodev, noexec, noatime, ... as for any mount\n"
                "  remount            changes a mount that is there: ro, rw and the like, and options that can be changed while mounted\n";
}

}  // namespace kvcachefs

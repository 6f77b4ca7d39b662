// `kvcachefs umount`: drains, unmounts, and waits until the daemon has closed the volume.
#include <fcntl.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "store/base/clock.h"
#include "store/base/mountinfo.h"
#include "store/base/unique_fd.h"
#include "store/base/units.h"
#include "tools/commands.h"
#include "tools/mount_table.h"

namespace kvcachefs {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kProgressEvery{1000};

struct UmountArguments {
  std::string mountpoint;
  bool lazy = false;
  bool quiet = false;
};

// Calls `tell` every second from its own thread until destroyed.
class Progress {
 public:
  explicit Progress(std::function<void()> tell)
      : thread_([this, tell = std::move(tell)] {
          std::unique_lock lock(mutex_);
          while (!ended_.wait_for(lock, kProgressEvery, [&] { return done_; })) tell();
        }) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() {
    {
      std::lock_guard lock(mutex_);
      done_ = true;
    }
    ended_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::thread thread_;  // last member, because it uses the others
};

nlohmann::json status_of(const std::string& mountpoint) {
  auto text = read_control_file(mountpoint, "status");
  return text ? nlohmann::json::parse(*text, nullptr, false) : nlohmann::json();
}

uint64_t staged_bytes(const nlohmann::json& status) {
  const auto field = nlohmann::json::json_pointer("/capacity/staged_bytes");
  return status.is_object() && status.contains(field) && status[field].is_number() ? status[field].get<uint64_t>() : 0;
}

// Whether the daemon lives and obeys this user: it obeys root and its own user. The mount of an ordinary user may
// be closed to all others, root too; and the mount of a directory below another mount's root has no control files. Other problems are
// found by the request itself. The errno of its answer alone does not distinguish "you may not" from "the volume does not allow it".
bool may_ask(const std::string& control) {
  struct stat found {};
  if (stat(control.c_str(), &found) == 0) return geteuid() == 0 || geteuid() == found.st_uid;
  for (int known : {ENOTCONN, ECONNABORTED, ENODEV, EACCES, EPERM, ENOENT, ENOTDIR})
    if (errno == known) return false;
  return true;
}

// Makes the daemon write everything staged to the volume. Returns 0 or an errno.
int flush(const std::string& control) {
  if (setxattr(control.c_str(), "user.kvcachefs.flush", "1", 1, 0) == 0) return 0;
  const int problem = errno;
  struct statvfs mount {};
  if (problem != EROFS || statvfs(control.c_str(), &mount) != 0 || !(mount.f_flag & ST_RDONLY)) return problem;
  // The kernel lets no attribute of a read-only mount be set; there fsync() asks for data that was staged before it became read-only.
  const UniqueFd directory(open(control.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return directory.valid() && fsync(directory.get()) == 0 ? 0 : errno;
}

// Blocks until everything staged is on the volume. Returns false if the caller may not ask for that; the daemon then drains at its end.
Result<bool> drain(const UmountArguments& arguments, const std::string& mountpoint) {
  const std::string control = mountpoint + "/.kvcachefs";  // setting an attribute there does not block names in the root
  if (!may_ask(control)) return false;
  Progress progress([&] {
    if (!arguments.quiet)
      fmt::print(stderr, "{}: {} MiB left to write to the volume\n", mountpoint,
                 staged_bytes(status_of(mountpoint)) >> 20);
  });
  int problem = flush(control);
  if (problem == EIO) problem = flush(control);  // the second try writes data that could not be synced to another place
  for (int gone : {ENOTCONN, ECONNABORTED, ENODEV})  // errors of a dead daemon
    if (problem == gone) return false;
  if (problem == 0) return true;
  // The daemon would fail in the same way at its end, but without a report.
  const uint64_t left_mib = (staged_bytes(status_of(mountpoint)) + kMiB - 1) / kMiB;
  return fail(Code::kIo, fmt::format("{}: writing to the volume failed ({}): {} staged, and it stays mounted. "
                                     "{}/.kvcachefs/log says more; --lazy unmounts all the same, and what still cannot be "
                                     "written is lost",
                                     mountpoint, std::strerror(problem),
                                     left_mib > 0 ? fmt::format("{} MiB stay", left_mib) : "what was stored or named last may be", mountpoint));
}

// Calls `look` with each entry of a directory of /proc until it returns true. Returns false if it never did; the directory of a process is gone once
// the process has ended.
template <class Look>
bool any_entry(const std::string& directory, Look look) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error))
    if (look(entry->path())) return true;
  return false;
}

// Opens a pidfd of the daemon, which always names this process, even if its number is reused; not valid if the process cannot be seen from
// here (another pid namespace) or is gone.
UniqueFd daemon_descriptor(const nlohmann::json& status) {
  if (!status.is_object() || !status.contains("pid") || !status["pid"].is_number()) return {};
  const pid_t pid = status["pid"].get<pid_t>();
  UniqueFd descriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!descriptor.valid()) return {};
  // The daemon may run under another name, but its threads keep their names. In another pid namespace the number may mean another process.
  const bool is_daemon = any_entry(fmt::format("/proc/{}/task", pid), [](const std::filesystem::path& thread) {
    std::ifstream name_file(thread / "comm");
    std::string name;
    return std::getline(name_file, name) && name.starts_with("kvc-");
  });
  return is_daemon ? std::move(descriptor) : UniqueFd();
}

Status busy(const std::string& mountpoint) {
  return fail(Code::kBusy,
              fmt::format("{} is busy: files are open below it or it is somebody's working directory (`fuser -vm {}` "
                          "tells whose). It stays mounted; --lazy detaches it now and ends it with the last of them",
                          mountpoint, mountpoint));
}

// Unmounts with the program for ordinary users, which is set-uid root and allows each user their own mounts.
Status unmount_by_helper(const std::string& mountpoint, bool lazy) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return fail_errno(errno, "a pipe to fusermount3");
  const pid_t child = fork();
  if (child < 0) return fail_errno(errno, "starting fusermount3");
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    if (lazy) execlp("fusermount3", "fusermount3", "-u", "-z", mountpoint.c_str(), static_cast<char*>(nullptr));
    if (!lazy) execlp("fusermount3", "fusermount3", "-u", mountpoint.c_str(), static_cast<char*>(nullptr));
    dprintf(STDERR_FILENO, "fusermount3: %s\n", std::strerror(errno));
    _exit(127);
  }
  close(ends[1]);
  std::string said;
  char buffer[512];
  ssize_t got = 0;
  while ((got = ::read(ends[0], buffer, sizeof buffer)) > 0) said.append(buffer, static_cast<size_t>(got));
  close(ends[0]);
  int result = 0;
  waitpid(child, &result, 0);
  if (WIFEXITED(result) && WEXITSTATUS(result) == 0) return {};
  if (said.find("busy") != std::string::npos) return busy(mountpoint);
  while (!said.empty() && said.back() == '\n') said.pop_back();
  return fail(Code::kPermission,
              fmt::format("{}: {} (only root and the user who mounted it may unmount)", mountpoint, said));
}

Status try_to_unmount(const std::string& mountpoint, bool lazy) {
  if (umount2(mountpoint.c_str(), UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)) == 0) return {};
  if (errno == EBUSY) return busy(mountpoint);
  if (errno == EPERM) return unmount_by_helper(mountpoint, lazy);
  return fail_errno(errno, fmt::format("unmounting {}", mountpoint));
}

// Unmounts, and retries for a moment while the mount is busy: another process may look at a file (a monitor, a mount namespace that is just being
// copied), or the kernel may not have closed the files of a process that ended (those of an io_uring are closed later).
Status unmount(const std::string& mountpoint, bool lazy) {
  constexpr int kTries = 20;
  constexpr milliseconds kBetweenTries{50};
  for (int tries = 1;; ++tries) {
    Status status = try_to_unmount(mountpoint, lazy);
    if (status || status.error().code != Code::kBusy || tries == kTries) return status;
    std::this_thread::sleep_for(kBetweenTries);
  }
}

// Where a mountinfo file has a mount of the file system. A device number is given to the next mount as soon as this one is gone, so the
// source must match as well.
std::optional<std::string> place_in(const std::filesystem::path& mountinfo, dev_t device, const std::string& source) {
  const std::string wanted = fmt::format(" {}:{} ", major(device), minor(device));
  constexpr std::string_view kType = " - fuse.kvcachefs ";
  std::ifstream mounts(mountinfo);
  for (std::string line; std::getline(mounts, line);) {
    const size_t type = line.find(kType);
    if (line.find(wanted) >= line.find('/') || type == std::string::npos) continue;
    const std::string_view behind = std::string_view(line).substr(type + kType.size());
    if (unescape_mountinfo(behind.substr(0, behind.find(' '))) != source) continue;
    const size_t root = line.find('/'), place = line.find(' ', root) + 1;
    return unescape_mountinfo(std::string_view(line).substr(place, line.find(' ', place) - place));
  }
  return std::nullopt;
}

// Explains why the file system is still mounted: elsewhere as well (a bind mount), or in the mount namespace of another process.
std::optional<std::string> where_it_goes_on(dev_t device, const std::string& source) {
  if (const auto place = place_in("/proc/self/mountinfo", device, source)) return fmt::format("at {}, where it is mounted as well", *place);
  std::optional<std::string> place;
  any_entry("/proc", [&](const std::filesystem::path& process) {
    const std::string number = process.filename().string();
    if (!std::isdigit(static_cast<unsigned char>(number.front())) || !place_in(process / "mountinfo", device, source)) return false;
    place = fmt::format("in another mount namespace (process {} sees it, perhaps of a container)", number);
    return true;
  });
  return place;
}

// Waits until the daemon has ended. It ends by itself once it has written out its data, unless others still see the mount.
Status wait_for_end(const UmountArguments& arguments, const MountEntry& mount, const UniqueFd& daemon, dev_t device) {
  const std::string& mountpoint = mount.mountpoint;
  Progress progress([&] {
    if (!arguments.quiet) fmt::print(stderr, "{}: unmounted, waiting for the daemon to close the volume\n", mountpoint);
  });
  constexpr int kLookMs = 2000;
  pollfd end{daemon.get(), POLLIN, 0};
  std::optional<std::string> where;
  while (!where && poll(&end, 1, kLookMs) <= 0) where = device == 0 ? std::nullopt : where_it_goes_on(device, mount.source);
  if (!where) return {};
  return fail(Code::kBusy, fmt::format("{} is unmounted here and goes on {}: its daemon ends when that does", mountpoint, *where));
}

Status unmount_whole(const UmountArguments& arguments) {
  const int64_t started_ns = system_clock().monotonic_ns();
  KVC_ASSIGN(const std::string mountpoint, resolve_path(arguments.mountpoint));
  KVC_ASSIGN(const MountEntry mount, mount_at(mountpoint));
  const nlohmann::json status = status_of(mountpoint);
  const uint64_t staged = staged_bytes(status);
  const UniqueFd daemon = daemon_descriptor(status);
  Result<bool> drained = false;
  if (!arguments.lazy) drained = drain(arguments, mountpoint);
  if (!drained) return std::unexpected(std::move(drained).error());
  const int64_t drained_ns = system_clock().monotonic_ns();
  struct stat root {};
  const dev_t device = daemon.valid() && stat(mountpoint.c_str(), &root) == 0 ? root.st_dev : 0;
  KVC_TRY(unmount(mountpoint, arguments.lazy));
  std::string ending = "its daemon had died, runs elsewhere or tells this user nothing: not waited for";
  if (daemon.valid() && arguments.lazy) {
    ending = "its daemon writes out what is staged when the last open file is closed, and ends";
  } else if (daemon.valid()) {
    KVC_TRY(wait_for_end(arguments, mount, daemon, device));
    ending = *drained ? "its daemon has closed the volume" : "its daemon has ended";
  }
  auto seconds = [](int64_t from, int64_t to) { return static_cast<double>(to - from) / 1e9; };
  const std::string written = *drained ? fmt::format(", written out in {:.2f} s", seconds(started_ns, drained_ns)) : "";
  if (!arguments.quiet)
    fmt::print("unmounted {} in {:.2f} s ({} MiB staged{}); {}\n", mountpoint,
               seconds(started_ns, system_clock().monotonic_ns()), staged >> 20, written, ending);
  return {};
}

int run_umount(const UmountArguments& arguments) {
  Status status = unmount_whole(arguments);
  if (status) return kExitOk;
  std::fprintf(stderr, "kvcachefs umount: %s\n", status.error().message.c_str());
  return kExitFailed;
}

}  // namespace

Subcommand add_umount_command(CLI::App& parent) {
  auto arguments = std::make_shared<UmountArguments>();
  CLI::App* app = parent.add_subcommand("umount", "Write out what is staged, unmount, wait for the daemon's end");
  app->add_option("MOUNTPOINT", arguments->mountpoint, "Where it is mounted")->required();
  app->add_flag("-l,--lazy", arguments->lazy, "Detach now, although files are open or the volume takes nothing; end when the last is closed");
  app->add_flag("-q,--quiet", arguments->quiet, "Say nothing but errors");
  return {app, [arguments] { return run_umount(*arguments); }};
}

}  // namespace kvcachefs

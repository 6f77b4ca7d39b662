#include "fs/process.h"

#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include <fmt/format.h>

#include "fs/request_loop.h"
#include "store/base/clock.h"
#include "store/base/kill_point.h"
#include "store/base/limits.h"
#include "store/base/log.h"
#include "store/base/thread.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kMaxLogBytes = 16 << 20;
constexpr size_t kKeepLogFiles = 3;

constexpr std::string_view kReady = "ok";
constexpr int kEndingSignals[] = {SIGTERM, SIGINT, SIGHUP};

bool is_ignored(int number) {
  struct sigaction action {};
  return sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// A descriptor to poll for the signals that end a process. The signals are blocked while it exists. Not valid if there is no descriptor left.
class SignalDescriptor {
 public:
  SignalDescriptor() {
    sigset_t taken;
    sigemptyset(&taken);
    for (int number : kEndingSignals)
      if (!is_ignored(number)) sigaddset(&taken, number);
    sigprocmask(SIG_BLOCK, &taken, &before_);
    descriptor_.reset(signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  SignalDescriptor(const SignalDescriptor&) = delete;
  SignalDescriptor& operator=(const SignalDescriptor&) = delete;
  ~SignalDescriptor() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  bool valid() const { return descriptor_.valid(); }
  int get() const { return descriptor_.get(); }
  void take() const {
    signalfd_siginfo info;
    static_cast<void>(!::read(descriptor_.get(), &info, sizeof info));
  }

 private:
  sigset_t before_;
  UniqueFd descriptor_;
};

// The waiting parent: passes signals on to the daemon, and kills a daemon that does not end.
class DaemonWait {
 public:
  DaemonWait(pid_t daemon, const SignalDescriptor& signals) : daemon_(daemon), signals_(signals) {}
  bool interrupted() const { return signals_taken_ > 0; }
  // Waits until `descriptor` is readable, at most `timeout_ms`; returns whether it is.
  bool poll_once(int descriptor, int timeout_ms) {
    pollfd waited[] = {{.fd = descriptor, .events = POLLIN, .revents = 0}, {.fd = signals_.get(), .events = POLLIN, .revents = 0}};
    if (killed_at_ms_ < 0 && interrupted() && now_ms() > first_at_ms_ + kPatienceMs) end_it();
    if (poll(waited, 2, timeout_ms) <= 0) return false;
    if (waited[1].revents != 0) {
      signals_.take();
      if (signals_taken_++ == 0) {
        first_at_ms_ = now_ms();
        kill(daemon_, SIGTERM);
      } else {
        end_it();
      }
    }
    return waited[0].revents != 0;
  }
  // True if the daemon was killed some time ago and still exists: it hangs in the kernel.
  bool is_stuck() const { return killed_at_ms_ >= 0 && now_ms() > killed_at_ms_ + kPatienceMs; }

 private:
  static constexpr int64_t kPatienceMs = 10'000;
  static int64_t now_ms() { return system_clock().monotonic_ns() / 1'000'000; }
  void end_it() {
    kill(daemon_, SIGKILL);
    if (killed_at_ms_ < 0) killed_at_ms_ = now_ms();
  }
  const pid_t daemon_;
  const SignalDescriptor& signals_;
  int signals_taken_ = 0;
  int64_t first_at_ms_ = 0, killed_at_ms_ = -1;
};

// Waits for processes that the daemon had forked. They end with it, perhaps a moment later, and are by then children of this process. Does not
// wait long, because one of them may hang in the kernel.
void wait_for_its_children() {
  constexpr int kLooks = 200, kBetweenMs = 10;
  for (int look = 0; look < kLooks; ++look) {
    const pid_t ended = waitpid(-1, nullptr, WNOHANG);
    if (ended < 0) return;
    if (ended == 0) poll(nullptr, 0, kBetweenMs);
  }
}

// Returns the exit status of the command.
int wait_for_daemon(pid_t daemon, const UniqueFd& reader, const SignalDescriptor& signals, const std::function<void(bool hangs)>& clean_up) {
  constexpr int kLookMs = 100;
  DaemonWait wait(daemon, signals);
  std::string report;
  for (bool open = true; open && !wait.is_stuck();) {
    if (!wait.poll_once(reader.get(), wait.interrupted() ? kLookMs : -1)) continue;
    char buffer[512];
    const ssize_t got = ::read(reader.get(), buffer, sizeof buffer);
    if (got > 0) report.append(buffer, static_cast<size_t>(got));
    open = got > 0 || (got < 0 && errno == EINTR);
  }
  if (report == kReady && !wait.interrupted()) return 0;
  // The daemon is ending. It may have to write out data that it has accepted meanwhile.
  int status = 0;
  pid_t ended = 0;
  while ((ended = waitpid(daemon, &status, WNOHANG)) == 0 && !wait.is_stuck()) wait.poll_once(-1, kLookMs);
  if (ended == daemon && WIFSIGNALED(status)) clean_up(false);
  if (ended == daemon) wait_for_its_children();
  if (report.empty() || report == kReady)
    report = wait.interrupted() ? "interrupted before the mount was ready" : "the daemon ended before the mount was ready";
  if (ended == 0) {
    clean_up(true);
    report += fmt::format("; its process {} hangs in the kernel, waiting for the volume, and ends when that answers", daemon);
  }
  std::fprintf(stderr, "kvcachefs: %s\n", report.c_str());
  return 1;
}

void tell_systemd(const char* state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || path[0] == 0) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(std::strlen(path), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path, path, length);
  if (address.sun_path[0] == '@') address.sun_path[0] = 0;
  const int socket_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket_fd < 0) return;
  sendto(socket_fd, state, std::strlen(state), 0, reinterpret_cast<sockaddr*>(&address),
         static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length));
  ::close(socket_fd);
}

}  // namespace

Status set_up_process(const MountOptions& options) {
  if (const char* point = std::getenv("KVCACHEFS_KILL_POINT"); point != nullptr)  // of tests
    if (Status status = arm_kill_point(point); !status)
      return std::unexpected(std::move(status).error().at("KVCACHEFS_KILL_POINT"));
  if (auto level = log::parse_level(options.log_level)) log::set_level(*level);
  if (options.log_file.empty()) return {};
  if (Status status = log::to_file(options.log_file, kMaxLogBytes, kKeepLogFiles); !status)
    return std::unexpected(std::move(status).error().at("option log_file"));
  return {};
}

void lower_oom_score() {
  constexpr int kWanted = -500;
  constexpr const char* kPath = "/proc/self/oom_score_adj";
  int score = 0;
  if (std::ifstream(kPath) >> score && score <= kWanted) return;  // OOMScoreAdjust= of the unit
  std::ofstream(kPath) << kWanted << std::endl;
}

// The first two set the size from which a block is mapped separately, and that from which a heap gives its end back. Unset, the C library raises both to
// the largest size that was ever freed. Where there is memory they are large: with small ones a batch of records costs a page fault for each 4 KiB, each
// time (64 KiB chunks: 150,000 a run instead of 61,000). The last (its largest value) makes libfuse's block of each request one of those that are not merged with their neighbours when they are freed: the
// library takes such a block by calloc(), which does not use the cache of the thread (64 KiB chunks: 1.5 % of the daemon's time).
void tune_heap(uint64_t memory_bytes) {
#ifdef M_MMAP_THRESHOLD
  const int mapped_bytes = static_cast<int>(std::clamp<uint64_t>(memory_bytes / 512, 256 << 10, 8 << 20));
  mallopt(M_MMAP_THRESHOLD, mapped_bytes);
  mallopt(M_TRIM_THRESHOLD, mapped_bytes / 2);
  mallopt(M_MXFAST, 80 * sizeof(size_t) / 4);
#endif
}

Status raise_descriptor_limit() {
  constexpr rlim_t kLeast = 64;  // the least that store/base/descriptors.h can share out
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (geteuid() == 0) {
    limit.rlim_cur = limit.rlim_max = std::max<rlim_t>(limit.rlim_max, 1 << 20);
    setrlimit(RLIMIT_NOFILE, &limit);  // fails for a root without CAP_SYS_RESOURCE
  }
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kLeast) return {};
  return fail(Code::kInvalid, fmt::format("this process may have {} files open (ulimit -Hn): a mount needs {}, and works best with 4096 or more",
                                          limit.rlim_cur, kLeast));
}

Status check_limits() {
  constexpr rlim_t kLargestFile = 2 * kMaxSealedBytes;  // a body with its metadata; larger files are written through, and the client gets EFBIG
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < kLargestFile)
    return fail(Code::kInvalid, fmt::format("this process may write files of {} bytes at most (ulimit -Hf): what clients store could not be written to "
                                            "the volume. A mount needs `ulimit -f unlimited` (LimitFSIZE=infinity in a unit)",
                                            limit.rlim_cur));
  if (getrlimit(RLIMIT_CPU, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    return fail(Code::kInvalid, fmt::format("this process is killed after {} s on the processor (ulimit -Ht), and a mount with it: it needs "
                                            "`ulimit -t unlimited` (LimitCPU=infinity in a unit)",
                                            limit.rlim_cur));
  return {};
}

Result<Readiness> Readiness::start(bool foreground, const std::function<void(bool hangs)>& clean_up) {
  constexpr const char* kPlace = "starting the daemon";
  Readiness readiness;
  if (foreground) return readiness;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return fail_errno(errno, fmt::format("{}: a pipe", kPlace));
  UniqueFd reader(ends[0]);
  readiness.pipe_.reset(ends[1]);
  const SignalDescriptor signals;  // catches also a signal that comes before the fork
  if (!signals.valid()) return fail_errno(errno, fmt::format("{}: signalfd", kPlace));
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t command = getpid(), daemon = fork();
  if (daemon < 0) {
    Error error = fail_errno(errno, fmt::format("{}: fork", kPlace)).error();
    if (error.sys_errno == EAGAIN)
      error.message += fmt::format(". {}", kRaiseProcessLimit);
    return std::unexpected(std::move(error));
  }
  if (daemon != 0) {
    readiness.pipe_.reset();
    _exit(wait_for_daemon(daemon, reader, signals, clean_up));
  }
  readiness.forked_ = true;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != command) _exit(1);
  setsid();
  return readiness;
}

void Readiness::watch() {
  if (forked_) prctl(PR_SET_PDEATHSIG, 0);
}

bool Readiness::abandoned() const {
  pollfd end{.fd = pipe_.get(), .events = 0, .revents = 0};
  return pipe_.valid() && poll(&end, 1, 0) == 1 && (end.revents & POLLERR) != 0;
}

bool Readiness::ready() {
  tell_systemd("READY=1");
  if (!forked_) {
    log::write_behind();
    return true;
  }
  // Detached from here on.
  if (chdir("/") != 0) log::warn("chdir /: {}", std::strerror(errno));
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (int descriptor : {0, 1, 2}) dup2(null.get(), descriptor);
  log::write_behind();
  return report(kReady);
}

int Readiness::failed(const Error& error) {
  if (!forked_)
    std::fprintf(stderr, "kvcachefs: %s\n", error.message.c_str());
  else
    report(error.message);
  return 1;
}

bool Readiness::report(std::string_view text) {
  const bool heard = ::write(pipe_.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (!heard) log::warn("the command that waited for the mount is gone");
  pipe_.reset();
  return heard;
}

namespace {
// For the signal handler.
std::atomic<RequestLoop*> loop_to_stop{nullptr};
std::atomic<bool> stop_wanted{false};
std::atomic<int> interrupts{0};

// For SIGINT once the loop has ended, for whatever reason.
void give_up_at_second(int) {
  const int problem = errno;  // of the call that is interrupted
  if (++interrupts > 1) {
    std::signal(SIGINT, SIG_DFL);
    raise(SIGINT);
    return;
  }
  constexpr std::string_view kText = "kvcachefs: still writing out what is staged; interrupt once more to give that up\n";
  pollfd out{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};  // a pipe that nobody reads must not hold up the writing out
  if (::poll(&out, 1, 0) == 1 && (out.revents & POLLOUT) != 0) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText.data(), kText.size());
  }
  errno = problem;
}
}  // namespace

StopOnSignals::StopOnSignals() {
  for (int number : kEndingSignals)
    set(number, [](int signal) {
      if (signal == SIGINT) ++interrupts;
      stop_wanted = true;
      if (RequestLoop* loop = loop_to_stop.load()) loop->stop();
    });
  std::signal(SIGPIPE, SIG_IGN);
}

void StopOnSignals::set_loop(RequestLoop& loop) {
  loop_to_stop = &loop;
  if (stop_wanted) loop.stop();
}

bool StopOnSignals::wanted() { return stop_wanted; }

StopOnSignals::~StopOnSignals() {
  for (int number : {SIGTERM, SIGHUP}) set(number, SIG_IGN);
  set(SIGINT, give_up_at_second);
  loop_to_stop = nullptr;
}

void StopOnSignals::set(int number, void (*handler)(int)) {
  if (is_ignored(number)) return;  // nohup(1)
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(number, &action, nullptr);
}

void end_soon() {
  constexpr unsigned kSeconds = 30;
  std::signal(SIGALRM, SIG_DFL);
  alarm(kSeconds);
}

}  // namespace kvcachefs

#include "fs/mount_probe.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <utility>

#include "store/base/clock.h"

namespace kvcachefs {

namespace {

// Runs in the child. A path is shorter than what a pipe takes at once, so one read() gets all of it.
[[noreturn]] void answer_one_question() {
  char path[PATH_MAX + 1] = {};
  if (::read(STDIN_FILENO, path, sizeof path - 1) <= 0) _exit(1);
  struct stat info {};
  int problem = ::stat(path, &info) == 0 ? 0 : errno;
  constexpr ino_t kRoot = 1;  // of every FUSE file system
  if (problem == 0 && info.st_ino != kRoot) problem = ENOTCONN;
  _exit(::write(STDOUT_FILENO, &problem, sizeof problem) == sizeof problem ? 0 : 1);
}

}  // namespace

MountProbe::MountProbe() {
  int question[2], answer[2];
  if (pipe2(question, O_CLOEXEC) != 0) return;
  const UniqueFd question_end(question[0]);
  question_.reset(question[1]);
  if (pipe2(answer, O_CLOEXEC) != 0) return;
  const UniqueFd answer_end(answer[1]);
  answer_.reset(answer[0]);
  const pid_t daemon = getpid();
  child_ = fork();
  if (child_ != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != daemon) _exit(1);
  // Use numbers above the standard ones: a daemon that was started without stdin has its pipes there.
  constexpr int kOutOfTheWay = 16;
  const int from_daemon = fcntl(question_end.get(), F_DUPFD, kOutOfTheWay), to_daemon = fcntl(answer_end.get(), F_DUPFD, kOutOfTheWay);
  if (dup2(from_daemon, STDIN_FILENO) < 0 || dup2(to_daemon, STDOUT_FILENO) < 0) _exit(1);
  close_range(STDERR_FILENO, ~0U, 0);
  answer_one_question();
}

MountProbe::~MountProbe() {
  if (child_ <= 0) return;
  constexpr int kMostMs = 500;  // it usually ends within 1 ms; longer on a busy machine
  kill(child_, SIGKILL);
  for (int ms = 0; ms < kMostMs && waitpid(child_, nullptr, WNOHANG) == 0; ++ms) poll(nullptr, 0, 1);
}

int MountProbe::ask(const std::string& path, int timeout_ms, const std::function<bool()>& given_up) {
  if (child_ <= 0) return ECHILD;
  if (::write(question_.get(), path.data(), path.size()) != static_cast<ssize_t>(path.size())) return EPIPE;
  constexpr int kLookMs = 50;
  const int64_t end_ns = system_clock().monotonic_ns() + int64_t{timeout_ms} * 1'000'000;
  pollfd answer{.fd = answer_.get(), .events = POLLIN, .revents = 0};
  while (poll(&answer, 1, kLookMs) <= 0) {
    if (given_up()) return ECANCELED;
    if (system_clock().monotonic_ns() >= end_ns) return ETIMEDOUT;
  }
  int problem = 0;
  if (::read(answer_.get(), &problem, sizeof problem) != sizeof problem) problem = ECHILD;
  waitpid(std::exchange(child_, -1), nullptr, 0);
  return problem;
}

}  // namespace kvcachefs

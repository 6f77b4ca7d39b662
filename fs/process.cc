#include "fs/process.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "fs/request_loop.h"
#include "store/base/kill_point.h"
#include "store/base/log.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kMaxLogBytes = 16 << 20;
constexpr size_t kKeepLogFiles = 3;

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
  close(socket_fd);
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

void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (geteuid() != 0) return;
  limit.rlim_cur = limit.rlim_max = std::max<rlim_t>(limit.rlim_max, 1 << 20);
  setrlimit(RLIMIT_NOFILE, &limit);  // in vain for a root that may not (CAP_SYS_RESOURCE)
}

Readiness Readiness::start(bool foreground) {
  Readiness readiness;
  if (foreground) return readiness;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return readiness;
  const pid_t child = fork();
  if (child != 0) {
    close(ends[1]);
    std::string report;
    char buffer[512];
    ssize_t got = 0;
    while ((got = ::read(ends[0], buffer, sizeof buffer)) > 0) report.append(buffer, static_cast<size_t>(got));
    if (report == "ok") _exit(0);
    if (report.empty()) report = "the daemon ended before the mount was ready";
    std::fprintf(stderr, "kvcachefs: %s\n", report.c_str());
    _exit(1);
  }
  close(ends[0]);
  setsid();
  readiness.pipe_ = ends[1];
  return readiness;
}

void Readiness::ready() {
  tell_systemd("READY=1");
  if (pipe_ < 0) return;
  // Detached from here on.
  if (chdir("/") != 0) log::warn("chdir /: {}", std::strerror(errno));
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int descriptor : {0, 1, 2}) dup2(null, descriptor);
  close(null);
  report("ok");
}

int Readiness::failed(const Error& error) {
  if (pipe_ < 0)
    std::fprintf(stderr, "kvcachefs: %s\n", error.message.c_str());
  else
    report(error.message);
  return 1;
}

void Readiness::report(std::string_view text) {
  if (write(pipe_, text.data(), text.size()) < 0) log::warn("nobody waits for the mount");
  close(pipe_);
  pipe_ = -1;
}

StopOnSignals::StopOnSignals(RequestLoop& loop) {
  loop_to_stop = &loop;
  for (int number : {SIGTERM, SIGINT, SIGHUP})
    set(number, [](int) {
      wanted = true;
      if (announced) loop_to_stop.load()->stop();
    });
  std::signal(SIGPIPE, SIG_IGN);
}

void StopOnSignals::mount_is_announced() {
  announced = true;
  if (wanted) loop_to_stop.load()->stop();
}

StopOnSignals::~StopOnSignals() {
  for (int number : {SIGTERM, SIGHUP}) set(number, SIG_IGN);
  set(SIGINT, SIG_DFL);
}

void StopOnSignals::set(int number, void (*handler)(int)) {
  struct sigaction action {};
  if (sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) return;  // nohup(1)
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(number, &action, nullptr);
}

}  // namespace kvcachefs

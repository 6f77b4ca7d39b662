#include "tools/inherited.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <initializer_list>

namespace kvcachefs {

namespace {

void open_what_is_missing() {
  for (int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    if (open("/dev/null", O_RDWR) < 0) open("/", O_RDONLY);  // either call gets the lowest free number, which is this one
  }
}

void raise_limit(__rlimit_resource resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(resource, &limit);
  limit.rlim_cur = limit.rlim_max = RLIM_INFINITY;
  setrlimit(resource, &limit);  // fails without CAP_SYS_RESOURCE
}

}  // namespace

void mend_what_is_inherited() {
  open_what_is_missing();
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  std::signal(SIGCHLD, SIG_DFL);
  std::signal(SIGXFSZ, SIG_IGN);
  raise_limit(RLIMIT_FSIZE);
  raise_limit(RLIMIT_CPU);
}

}  // namespace kvcachefs

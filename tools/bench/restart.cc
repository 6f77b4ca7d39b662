#include "tools/bench/restart.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tools/load/mount_status.h"

namespace kvcachefs {

Status restart_mount(const std::string& command, const std::string& directory) {
  const auto mount = read_mount_status(directory);
  if (!mount) return {};
  std::vector<std::string> variables = {"KVCACHEFS_BENCH_DIR=" + directory, "KVCACHEFS_BENCH_MOUNT=" + mount->root};
  std::vector<char*> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) environment.push_back(*variable);
  for (std::string& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  std::string shell = "sh", option = "-c", text = command;
  char* arguments[] = {shell.data(), option.data(), text.data(), nullptr};
  pid_t pid = 0;
  if (const int failed = ::posix_spawn(&pid, "/bin/sh", nullptr, nullptr, arguments, environment.data()); failed != 0) {
    return fail_errno(failed, "--restart-command: /bin/sh");
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return fail_errno(errno, "--restart-command: waitpid");
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return fail(Code::kIo, fmt::format("--restart-command: '{}' failed (wait status {})", command, status));
  }
  if (!read_mount_status(directory)) {
    return fail(Code::kIo, fmt::format("--restart-command: {} is not a kvcachefs after '{}'", directory, command));
  }
  return {};
}

}  // namespace kvcachefs

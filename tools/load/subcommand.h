// What a subcommand of `kvcachefs` returns to main(): the CLI11 node that it registered, and the function to run if the
// user chose it.
#pragma once

#include <functional>

#include "store/base/result.h"

namespace CLI {
class App;
}

namespace kvcachefs {

// Exit codes that every subcommand shares.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,         // it ran and something failed: a directory, an operation, a wrong byte
  kExitUsage = 2,          // the command line or an input file is wrong
  kExitInterrupted = 130,  // SIGINT or SIGTERM, after cleaning up
};

// An error from a system call is not the command line's fault, whatever its errno.
inline ExitCode exit_code(const Error& error) {
  if (error.code == Code::kCanceled) return kExitInterrupted;
  return error.code == Code::kInvalid && error.sys_errno == 0 ? kExitUsage : kExitFailed;
}

struct Subcommand {
  CLI::App* app = nullptr;   // owned by its parent App; `app->parsed()` tells whether to run
  std::function<int()> run;  // returns an ExitCode; prints its own errors to stderr
};

}  // namespace kvcachefs

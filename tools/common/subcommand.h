// What a subcommand of the `kvcachefs` command hands to main(): the CLI11 node it registered and what to run when the
// user named it.
#pragma once

#include <functional>

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

struct Subcommand {
  CLI::App* app = nullptr;   // owned by its parent App; `app->parsed()` tells whether to run
  std::function<int()> run;  // returns an ExitCode; prints its own errors to stderr
};

}  // namespace kvcachefs

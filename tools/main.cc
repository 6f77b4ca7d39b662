// The `kvcachefs` command: finds the subcommand and runs it. No thread exists before a subcommand runs, because `mount`
// forks.
#include <cstdio>
#include <exception>

#include <CLI/CLI.hpp>

#include "fs/session.h"
#include "tools/bench/bench_command.h"
#include "tools/commands.h"
#include "tools/inherited.h"
#include "tools/replay/replay_command.h"
#include "tools/simulate/simulate_command.h"

namespace {

int run(int argc, char** argv) {
  using namespace kvcachefs;
  CLI::App app("A file system for LLM KV-cache chunks: mount it, look at it, check it, measure it.", "kvcachefs");
  app.set_version_flag("-V,--version", [] { return version_text(); });
  app.require_subcommand(1);
  app.footer("`kvcachefs COMMAND --help` tells more. Exit codes: 0 done, 1 failed, 2 wrong use; fsck has its own.");
  const Subcommand commands[] = {add_mount_command(app), add_umount_command(app), add_status_command(app),
                                 add_info_command(app),  add_fsck_command(app),   add_rebuild_command(app),
                                 add_gc_command(app),    add_check_volume_command(app),
                                 add_bench_command(app), add_replay_command(app), add_simulate_command(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (app.get_subcommands().empty() && argc > 1 && argv[1][0] != '-') {
      std::fprintf(stderr, "kvcachefs: there is no command '%s'; `kvcachefs --help` lists them\n", argv[1]);
      return kExitUsage;
    }
    return app.exit(error) == 0 ? kExitOk : kExitUsage;  // --help and --version come here too, with 0
  }
  for (const Subcommand& command : commands)
    if (command.app->parsed()) return command.run();
  return kExitUsage;
}

}  // namespace

int main(int argc, char** argv) {
  kvcachefs::mend_what_is_inherited();
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvcachefs: %s\n", error.what());
    return kvcachefs::kExitFailed;
  }
}

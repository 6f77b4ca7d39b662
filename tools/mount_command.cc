// `kvcachefs mount`.
#include <memory>

#include <CLI/CLI.hpp>

#include "fs/remount.h"
#include "fs/session.h"
#include "tools/commands.h"

namespace kvcachefs {

Subcommand add_mount_command(CLI::App& parent) {
  auto request = std::make_shared<MountRequest>();
  CLI::App* app = parent.add_subcommand("mount", "Mount a volume; returns once the mount answers");
  app->add_option("VOLUME", request->volume, "Directory that holds the data; a missing or empty one is initialised")
      ->required();
  app->add_option("MOUNTPOINT", request->mountpoint, "Empty directory to mount on")->required();
  app->add_option("-o,--options", request->options, "Mount options, comma-separated; may be given several times")
      ->type_name("NAME[=VALUE],...")
      ->allow_extra_args(false);
  app->add_flag("-f,--foreground", request->foreground, "Stay in the foreground and log to stderr");
  app->footer("Mount options:\n" + options_help());
  return {app, [request] { return asks_for_remount(request->options) ? run_remount(*request) : run_mount(*request); }};
}

}  // namespace kvcachefs

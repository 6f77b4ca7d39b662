// `kvcachefs gc`: repairs the part of a node whose daemon is gone, or removes it from the volume.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "store/base/kill_point.h"
#include "store/base/log.h"
#include "store/base/units.h"
#include "store/gc/collect_node.h"
#include "tools/commands.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kDefaultPatienceSeconds = 60;

struct GcArguments {
  GcRequest request;
  uint64_t patience_seconds = kDefaultPatienceSeconds;
  bool quiet = false;
};

void print_what_would_go(const GcRequest& request, const GcReport& report) {
  const std::string& node = request.where.node;
  if (!report.was_there)
    fmt::print("node {} is gone already; {} of it would be removed\n", node, format_size(report.bytes_before));
  else if (request.remove)
    fmt::print("node {} would be removed: {} files, {} directories, {} on the volume\n", node, report.files, report.directories,
               format_size(report.bytes_before));
  else
    fmt::print("node {} has {} files, {} directories, {} on the volume, of which {} are in use: at most {} would come back\n", node, report.files,
               report.directories, format_size(report.bytes_before), format_size(report.live_bytes),
               format_size(report.bytes_before - std::min(report.bytes_before, report.live_bytes)));
}

void print_report(const GcRequest& request, const GcReport& report) {
  const std::string& node = request.where.node;
  for (const std::string& note : report.notes) fmt::print("note: {}\n", note);
  const uint64_t given_back = report.bytes_before - std::min(report.bytes_before, report.bytes_after);
  if (report.removed && !report.was_there)
    fmt::print("node {} was removed before; {} given back\n", node, format_size(given_back));
  else if (report.removed)
    fmt::print("node {} removed from {}: {} given back\n", node, report.root, format_size(given_back));
  else
    fmt::print("node {} of {}: {} given back, {} left; {} files, {} directories\n", node, report.root, format_size(given_back),
               format_size(report.bytes_after), report.files, report.directories);
  if (report.left_open > 0) fmt::print("{} files of it are open on this machine: they go when they are closed\n", report.left_open);
}

int run_gc(GcArguments& arguments) {
  log::set_level(log::Level::kWarn);
  if (const char* point = std::getenv("KVCACHEFS_KILL_POINT"); point != nullptr)  // set by tests
    if (Status armed = arm_kill_point(point); !armed) {
      std::fprintf(stderr, "kvcachefs gc: KVCACHEFS_KILL_POINT: %s\n", armed.error().message.c_str());
      return kExitUsage;
    }
  GcRequest& request = arguments.request;
  request.patience_ns = static_cast<int64_t>(arguments.patience_seconds) * 1'000'000'000;
  if (!arguments.quiet) request.tell = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  const auto report = collect_node(request);
  if (!report) {
    std::fprintf(stderr, "kvcachefs gc: %s\n", report.error().message.c_str());
    return report.error().code == Code::kInvalid ? kExitUsage : kExitFailed;
  }
  if (request.dry_run) {
    if (!arguments.quiet) print_what_would_go(request, *report);
    return kExitOk;
  }
  if (!arguments.quiet) print_report(request, *report);
  if (report->waits_for.empty()) return kExitOk;
  fmt::print(stderr, "kvcachefs gc: {}; waited {} s for {}. Run it again\n",
             request.remove ? "the names of the node are gone, the rest of it stays" : "not all that is dead was given back", arguments.patience_seconds,
             report->waits_for);
  return kExitFailed;
}

}  // namespace

Subcommand add_gc_command(CLI::App& parent) {
  auto arguments = std::make_shared<GcArguments>();
  GcRequest& request = arguments->request;
  request.where.purpose = "gc";
  CLI::App* app = parent.add_subcommand("gc", "Give back what a node holds that does not run any more, or remove the node");
  app->add_option("VOLUME", request.where.volume, "A volume; other nodes may have it mounted")->required();
  app->add_option("--node", request.where.node, "The node; it must not be mounted")->required();
  app->add_flag("--remove", request.remove, "Remove all that the node stored, and the node");
  app->add_flag("--dry-run", request.dry_run, "Only tell what would go");
  app->add_option("--wait", arguments->patience_seconds, "Seconds to wait for nodes that run to have read what went")
      ->capture_default_str()
      ->check(CLI::Range(uint64_t{0}, uint64_t{86'400}));
  app->add_option("--index", request.where.index_directory, "Where the index lies, when mounts give the option index=");
  app->add_flag("-q,--quiet", arguments->quiet, "Print errors only");
  app->footer(
      "Replays the node's journals, answers what other nodes removed of it, gives back what is dead, writes a checkpoint.\n"
      "Exit codes: 0 done, 1 failed (what was done stays done, and it can be run again), 2 wrong use.");
  return {app, [arguments] { return run_gc(*arguments); }};
}

}  // namespace kvcachefs

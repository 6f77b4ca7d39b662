// `kvcachefs check-volume`: tests whether nodes can share a file system; run on two machines at once.
#include <cstdio>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "store/base/log.h"
#include "store/base/node_name.h"
#include "store/pair_check/pair_check.h"
#include "tools/commands.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kDefaultWaitSeconds = 120;

struct CheckVolumeArguments {
  std::string volume;
  uint64_t wait_seconds = kDefaultWaitSeconds;
  unsigned rounds = PairCheckRequest{}.rounds;
  bool quiet = false;
};

void print_report(const CheckVolumeArguments& arguments, const PairCheckReport& report) {
  for (const PairCheckReport::Property& property : report.properties) {
    if (property.failures.empty()) {
      if (!arguments.quiet) fmt::print("holds: {}\n", property.name);
      continue;
    }
    fmt::print("FAILS: {}\n", property.name);
    for (const std::string& failure : property.failures) fmt::print("  {}\n", failure);
    fmt::print("  {}\n", property.consequence);
  }
  if (arguments.quiet && !report.same_machine) return;
  const char* const verdict = !report.holds()      ? "cannot be shared as it is"
                              : report.same_machine ? "holds between processes of one machine, whose kernel shows both the same; run one of the two checks on another machine"
                                                    : "can be shared";
  fmt::print("{} ({}), with {}: {}\n", report.root, report.filesystem, report.other_host, verdict);
}

int run_check_volume(const CheckVolumeArguments& arguments) {
  log::set_level(log::Level::kError);
  PairCheckRequest request;
  request.host = node_name_of_host();
  request.wait_ns = static_cast<int64_t>(arguments.wait_seconds) * 1'000'000'000;
  request.rounds = arguments.rounds;
  if (!arguments.quiet) request.tell = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  const auto report = check_volume(arguments.volume, request);
  if (!report) {
    std::fprintf(stderr, "kvcachefs check-volume: %s\n", report.error().message.c_str());
    return kExitFailed;
  }
  print_report(arguments, *report);
  return report->holds() ? kExitOk : kExitFailed;
}

}  // namespace

Subcommand add_check_volume_command(CLI::App& parent) {
  auto arguments = std::make_shared<CheckVolumeArguments>();
  CLI::App* app = parent.add_subcommand("check-volume", "Try, on two machines at once, whether a file system can be shared by nodes");
  app->add_option("VOLUME", arguments->volume, "A directory of the shared file system, or a volume; it may be in use")->required();
  app->add_option("--wait", arguments->wait_seconds, "Seconds to wait for the other machine")
      ->capture_default_str()
      ->check(CLI::Range(uint64_t{1}, uint64_t{86'400}));
  app->add_option("--rounds", arguments->rounds, "How often each property is tried in each direction")
      ->capture_default_str()
      ->check(CLI::Range(4u, 100'000u));
  app->add_flag("-q,--quiet", arguments->quiet, "Print what fails only");
  app->footer(
      "Start it on both machines within --wait seconds, with the directory as each has it mounted. It works in "
      ".kvcachefs-check-volume there, which it removes.\n"
      "Exit codes: 0 all hold, 1 one does not, or it could not be tried, 2 wrong use.");
  return {app, [arguments] { return run_check_volume(*arguments); }};
}

}  // namespace kvcachefs

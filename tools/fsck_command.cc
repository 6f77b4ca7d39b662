// `kvcachefs fsck`: checks a volume that is not mounted, and repairs it on request.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "store/base/clock.h"
#include "store/base/log.h"
#include "store/base/units.h"
#include "store/check/check.h"
#include "tools/commands.h"

namespace kvcachefs {

namespace {

// Exit codes of fsck(8).
constexpr int kClean = 0;
constexpr int kRepaired = 1;
constexpr int kErrorsLeft = 4;
constexpr int kNotChecked = 8;

constexpr int64_t kProgressIntervalNs = 1'000'000'000;

struct FsckArguments {
  OfflineRequest where;
  bool repair = false;
  bool remove_orphans = false;
  bool without_index = false;
  bool quiet = false;
};

// Shows a line on the terminal and overwrites it once a second.
std::function<void(uint64_t, uint64_t)> progress_line(const FsckArguments& arguments) {
  if (arguments.quiet || isatty(STDERR_FILENO) == 0) return nullptr;
  return [last_ns = system_clock().monotonic_ns()](uint64_t done_bytes, uint64_t total_bytes) mutable {
    const int64_t now_ns = system_clock().monotonic_ns();
    if (now_ns - last_ns < kProgressIntervalNs) return;
    last_ns = now_ns;
    fmt::print(stderr, "\rread {} of {}    ", format_size(done_bytes), format_size(total_bytes));
  };
}

void print_report(const FsckArguments& arguments, const OfflineNode& node, const CheckReport& report, double seconds) {
  for (const Finding& finding : report.findings)
    fmt::print("{}: {}\n", finding.repaired ? "repaired" : finding.lost ? "lost" : "error", finding.text);
  if (arguments.quiet) return;
  for (const std::string& note : report.notes) fmt::print("note: {}\n", note);
  fmt::print("volume {}, node {}: {} journal files, {} batches replayed, {} checkpoint records\n", node.volume->root(),
             node.identity.node, report.journal_files, report.batches, report.checkpoint_records);
  fmt::print("{} files, {} directories, {} names, {} in quarantine\n", report.files, report.directories, report.names,
             report.quarantined);
  fmt::print(
      "{} bodies read, {} in {:.1f} s; {} bad bodies, {} missing extents, {} orphan extents, {} in dead ranges of packs, "
      "{} index rows wrong\n",
      report.bodies_read, format_size(report.bytes_read), seconds, report.bad_bodies, report.missing_extents,
      report.orphan_extents, format_size(report.dead_range_bytes), report.index_differences);
  const uint64_t lost = report.errors_of_lost(), left = report.errors_left() - lost;
  if (report.findings.empty())
    fmt::print("clean\n");
  else if (left == 0 && lost > 0)
    fmt::print("{} errors repaired, {} of what cannot be repaired: it is lost, all else is in order, and the next fsck finds none of them\n", report.findings.size() - lost, lost);
  else if (left == 0)
    fmt::print("all {} errors repaired\n", report.findings.size());
  else
    fmt::print("{} errors left{}\n", left, arguments.repair ? "" : "; --repair puts right what can be");
}

// Returns the exit code in the sense of fsck(8); for kNotChecked, sets `why`.
int check_one(const FsckArguments& arguments, Error& why, bool names_it) {
  const int64_t started_ns = system_clock().monotonic_ns();
  auto node = open_offline_node(arguments.where, /*goes_without=*/true);
  auto report = !node ? std::unexpected(node.error())
                      : check_node(*node, {.repair = arguments.repair, .remove_orphans = arguments.remove_orphans, .without_index = arguments.without_index, .journals_only = false, .progress = progress_line(arguments)});
  if (!report) {
    why = report.error();
    return kNotChecked;
  }
  if (names_it && !(arguments.quiet && report->findings.empty())) fmt::print("--- node {}\n", node->identity.node);
  print_report(arguments, *node, *report, static_cast<double>(system_clock().monotonic_ns() - started_ns) / 1e9);
  if (report->findings.empty()) return kClean;
  return report->errors_left() == 0 ? kRepaired : kErrorsLeft;
}

// Checks all nodes. Nodes in use are named, and are no failure as long as another one was checked.
int check_all(FsckArguments arguments, const std::vector<std::string>& nodes) {
  int worst = kClean;
  size_t checked = 0;
  for (const std::string& node : nodes) {
    arguments.where.node = node;
    Error why;
    const int code = check_one(arguments, why, /*names_it=*/true);
    std::fflush(stdout);
    if (code == kNotChecked) fmt::print(stderr, "kvcachefs fsck: node {} was not checked: {}\n", node, why.message);
    if (code != kNotChecked) ++checked;
    if (code != kNotChecked || why.code != Code::kBusy) worst = std::max(worst, code);
  }
  if (!arguments.quiet) fmt::print("--- {} of {} nodes were checked\n", checked, nodes.size());
  return checked == 0 ? kNotChecked : worst;
}

int run_fsck(const FsckArguments& arguments) {
  log::set_level(log::Level::kError);  // everything important is in the report
  if (arguments.where.node.empty() && arguments.where.index_directory.empty())
    if (const auto nodes = nodes_of_volume(arguments.where.volume); nodes && nodes->size() > 1) return check_all(arguments, *nodes);
  Error why;
  const int code = check_one(arguments, why, /*names_it=*/false);
  if (code == kNotChecked) std::fprintf(stderr, "kvcachefs fsck: could not check: %s\n", why.message.c_str());
  return code;
}

}  // namespace

Subcommand add_fsck_command(CLI::App& parent) {
  auto arguments = std::make_shared<FsckArguments>();
  arguments->where.purpose = "fsck";
  CLI::App* app = parent.add_subcommand("fsck", "Check a volume: every journal, index row and byte");
  app->add_option("VOLUME", arguments->where.volume, "A volume that is not mounted")->required();
  CLI::Option* const repair = app->add_flag("--repair", arguments->repair,
                                            "Quarantine bad bodies, remove extents that nothing names, punch dead ranges, write a checkpoint in place of damaged journals "
                                            "(which are removed, with the index that is older), remove a wrong index or set it aside");
  app->add_flag("--remove-orphans", arguments->remove_orphans, "Also what is kept because records that were lost may have named it")->needs(repair);
  app->add_option("--node", arguments->where.node, "The part of this node alone; else of all that are not in use");
  CLI::Option* const index = app->add_option("--index", arguments->where.index_directory,
                  "Where the index lies, when mounts give the option index=");
  app->add_flag("--without-index", arguments->without_index, "Repair damaged journals although no index is found: there is none elsewhere that may have what they lost")
      ->needs(repair)
      ->excludes(index);
  app->add_flag("-q,--quiet", arguments->quiet, "Print errors only");
  app->footer(
      "Exit codes: 0 clean, 1 errors found and repaired, 4 errors left or names lost, 8 could not check; of several nodes the worst.\n"
      "What is in quarantine reads as absent; its bytes stay on the volume until the object is removed.");
  return {app, [arguments] { return run_fsck(*arguments); }};
}

}  // namespace kvcachefs

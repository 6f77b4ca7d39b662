#include "tools/bench/bench_command.h"

#include <sys/utsname.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "tools/bench/bench_runner.h"
#include "tools/bench/presets.h"
#include "tools/load/arena.h"
#include "tools/load/interrupt.h"

namespace kvcachefs {
namespace {

// The arguments as typed; `settings` is made from them once all are parsed.
struct Arguments {
  std::vector<std::string> workloads = {"restore"};
  std::vector<std::string> sizes = {"64K", "512K", "2M", "9M", "32M"};
  std::vector<std::string> styles = {"read"};
  std::vector<std::string> nodes;
  std::string pass_bytes = "256M", pool_bytes, buffers = "pool";
  bool json = false, no_raw_limit = false;
  const CLI::Option *size_given = nullptr, *style_given = nullptr, *threads_given = nullptr,
                    *time_scale_given = nullptr;
  BenchSettings settings;
};

void add_options(CLI::App& app, Arguments& arguments) {
  BenchSettings& settings = arguments.settings;
  app.add_option("WORKLOAD", arguments.workloads, "One or more of: " + workload_list())->capture_default_str();
  auto list = [&](const char* name, auto& value, const std::string& help) {
    return app.add_option(name, value, help)->allow_extra_args(false);
  };
  list("--dir", settings.targets.dirs, "Directory to measure; repeat it to compare, the first is the base of the ratios");
  list("--nodes", arguments.nodes,
       "DIR,DIR,...: mounts of one volume, or directories of each node's own, for multi-round: an instance on each; "
       "repeat it to compare. A --dir beside it serves as many instances");
  arguments.size_given =
      list("--size", arguments.sizes, "Chunk size of restore and store, repeatable")->delimiter(',')->capture_default_str();
  arguments.style_given =
      list("--style", arguments.styles, "How chunks are accessed, repeatable, not of scan and raw: " + access_style_list())
      ->delimiter(',')
      ->capture_default_str();
  arguments.threads_given =
      list("--threads", settings.threads, "Client threads of restore, store and probe, repeatable (each has its own default)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  app.add_option("--rounds", settings.rounds, "Interleaved rounds; medians are of these")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--pass-bytes", arguments.pass_bytes, "Bytes that one pass of restore, store, scan and raw moves")
      ->capture_default_str();
  app.add_option("--pool-bytes", arguments.pool_bytes, "Memory for read buffers (default: a quarter of what is free)");
  app.add_option("--buffers", arguments.buffers,
                 "pool: each chunk is read into a place of its own; hot: each thread reuses one buffer")
      ->check(CLI::IsMember({"pool", "hot"}))
      ->capture_default_str();
  app.add_option("--scale", settings.scale,
                 "Size of long-context, contexts, multi-round and probe; 1 is the real thing")
      ->check(CLI::Range(1e-6, 100.0))
      ->capture_default_str();
  arguments.time_scale_given =
      app.add_option("--time-scale", settings.time_scale,
                     "How much faster than real the requests of multi-round arrive (with --nodes: 1)")
      ->check(CLI::Range(1e-3, 1e6))
      ->capture_default_str();
  app.add_option("--volume", settings.volume, "Backing directory for raw, where the mount does not tell it");
  app.add_option("--restart-command", settings.restart_command,
                 "Shell command that restarts the mount $KVCACHEFS_BENCH_MOUNT: adds a phase after it to restores");
  app.add_flag("--no-raw-limit", arguments.no_raw_limit, "Do not measure the volume's raw rates beside each case");
  app.add_flag("--keep-caches", settings.keep_caches,
               "Do not drop caches before cold phases (a machine that others use)");
  app.add_flag("--json", arguments.json,
               "Print JSON: [{workload, dir, metric, unit, median, min, max, ratio_to_first_dir}]");
  app.footer(workload_help());
}

Status check_sizes(BenchSettings& settings, const Arguments& arguments) {
  for (const std::string& text : arguments.sizes) {
    KVC_ASSIGN(const uint64_t size, parse_size(text));
    if (size < kBlockBytes || size > 4 * kGiB || size % kBlockBytes != 0) {
      return fail(Code::kInvalid, "--size " + text + ": must be a multiple of 4K, from 4K to 4G");
    }
    settings.sizes.push_back(size);
  }
  return {};
}

Status finish_settings(const Arguments& arguments, BenchSettings& settings) {
  settings.workloads = arguments.workloads;
  KVC_ASSIGN(settings.targets.nodes, parse_nodes(arguments.nodes));
  if (settings.targets.columns() == 0) return fail(Code::kInvalid, "no --dir given; name one directory or more");
  // The other nodes see a node's writes some tenths of a second later, however fast the requests come.
  if (!settings.targets.nodes.empty() && arguments.time_scale_given->count() == 0) settings.time_scale = 1;
  KVC_TRY(check_sizes(settings, arguments));
  for (const std::string& text : arguments.styles) {
    KVC_ASSIGN(const AccessStyle style, parse_access_style(text));
    settings.styles.push_back(style);
  }
  KVC_ASSIGN(settings.pass_bytes, parse_size(arguments.pass_bytes));
  if (settings.pass_bytes < kBlockBytes) {
    return fail(Code::kInvalid, "--pass-bytes " + arguments.pass_bytes + ": must be at least 4K");
  }
  settings.pool_bytes = default_pool_bytes();
  if (!arguments.pool_bytes.empty()) {
    KVC_ASSIGN(settings.pool_bytes, parse_size(arguments.pool_bytes));
  }
  settings.hot_buffers = arguments.buffers == "hot";
  settings.raw_limit = !arguments.no_raw_limit;
  settings.seed = (uint64_t{std::random_device{}()} << 32) + std::random_device{}();
  return {};
}

// Facts about the machine for a reader of the figures; its noise shows in min and max.
std::string machine_line(const BenchSettings& settings) {
  utsname system;
  double load[1] = {0};
  if (::uname(&system) != 0 || ::getloadavg(load, 1) != 1) return "";
  return fmt::format("Linux {}, {} CPUs, load {:.2f} at the start; {} interleaved rounds\n", system.release,
                     ::sysconf(_SC_NPROCESSORS_ONLN), load[0], settings.rounds);
}

int run(const Arguments& arguments) {
  BenchSettings settings = arguments.settings;
  if (const Status checked = finish_settings(arguments, settings); !checked) {
    std::fprintf(stderr, "kvcachefs bench: %s\n", checked.error().message.c_str());
    return kExitUsage;
  }
  const GivenOptions given{arguments.size_given->count() > 0, arguments.style_given->count() > 0,
                           arguments.threads_given->count() > 0};
  for (const std::string& note : ignored_options(settings.workloads, given))
    std::fprintf(stderr, "kvcachefs bench: %s\n", note.c_str());
  const std::string machine = machine_line(settings);
  const InterruptGuard guard;
  Report report(column_names(settings.targets));
  const Status done = run_bench(settings, report);
  if (!done) {
    std::fprintf(stderr, "kvcachefs bench: %s\n", done.error().message.c_str());
    return exit_code(done.error());
  }
  if (arguments.json) {
    for (const std::string& note : report.notes()) std::fprintf(stderr, "note: %s\n", note.c_str());
    std::printf("%s\n", report.json().c_str());
  } else {
    std::printf("%s%s", machine.c_str(), report.table().c_str());
  }
  return std::fflush(stdout) == 0 ? kExitOk : kExitFailed;
}

}  // namespace

Subcommand add_bench_command(CLI::App& parent) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* app = parent.add_subcommand("bench", "Measure one or several directories the way engines use them");
  add_options(*app, *arguments);
  return {app, [arguments] { return run(*arguments); }};
}

}  // namespace kvcachefs

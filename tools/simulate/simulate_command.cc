#include "tools/simulate/simulate_command.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "store/base/units.h"
#include "store/evict/policy.h"
#include "tools/load/interrupt.h"
#include "tools/load/progress.h"
#include "tools/simulate/simulate_report.h"
#include "tools/simulate/svg_plot.h"

namespace kvcachefs {
namespace {

struct Arguments {
  std::vector<std::string> traces;
  std::vector<std::string> policies = {"prefix", "lru-list"};
  std::vector<std::string> capacities = {"1%", "3%", "10%", "30%"};
  std::string join, plot, restart, extent_size = "256M", bytes_per_token = "36K";
  double scan = 0;
  bool json = false;
  WorkloadSettings workload;
  SimSettings run;
};

void add_options(CLI::App& app, Arguments& arguments) {
  SimSettings& run = arguments.run;
  app.add_option("TRACE", arguments.traces, "Trace files, JSON lines, plain or gzip: each by itself, unless --join")
      ->required();
  app.add_option("--policy", arguments.policies,
                 "Policies, separated by commas: prefix, lru, fifo-reinsert, s3fifo, lru-list, min (lru and min are always "
                 "shown)")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--capacity", arguments.capacities,
                 "Capacities, separated by commas: tokens (K, M, G: thousands) or % of the distinct chunks")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--chunk-tokens", arguments.workload.chunk_tokens, "Tokens of a chunk (default: the trace's block)")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--seed", arguments.workload.seed, "Of session starts and of random draws")->capture_default_str();
  app.add_option("--session-spread", arguments.workload.session_spread_s,
                 "Seconds over which the starts of a trace's sessions are spread uniformly")
      ->check(CLI::Range(0.0, 1e8))
      ->capture_default_str();
  app.add_option("--join", arguments.join, "All traces as one workload: beside each other, or one after another")
      ->check(CLI::IsMember({"beside", "after"}));
  app.add_option("--scan", arguments.scan,
                 "Add a batch job in the third quarter that writes so many times the capacity of prompts used once; "
                 "only the others are counted")
      ->check(CLI::Range(0.0, 1e3));
  app.add_option("--restart", arguments.restart,
                 "Restart the store half way: with its tables, with names, times and links only, or with nothing")
      ->check(CLI::IsMember({"tables", "names", "lost"}));
  app.add_option("--skip", run.skip, "Part of the time (0 to 1) at the start that is served but not counted")
      ->check(CLI::Range(0.0, 0.99))
      ->capture_default_str();
  app.add_option("--windows", run.windows, "Show the ratio of so many equal parts of the requests, too")
      ->check(CLI::Range(1, 1000));
  app.add_flag("--learn-links", run.learn_links, "Learn the order of chunks from probes, as a mount does");
  app.add_option("--lost-boundaries", run.lost_boundaries,
                 "Part of the requests whose beginning cannot be seen (implies --learn-links)")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--cut-requests", run.cut_requests,
                 "Part of the requests that seem to be two (implies --learn-links)")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--interleave", run.interleave, "Requests whose chunks come mixed (with --learn-links: from one thread)")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag("--extents", run.extents.on, "Count what evictions cost extents that cannot be punched");
  app.add_flag("--punch", run.extents.punch, "With --extents: holes of 4 KiB can be punched");
  app.add_option("--extent-size", arguments.extent_size, "With --extents: size of an extent")->capture_default_str();
  app.add_option("--bytes-per-token", arguments.bytes_per_token, "With --extents: KV bytes of a token")
      ->capture_default_str();
  app.add_option("--fill", run.extents.fill, "With --extents: the part of the space that is held")
      ->check(CLI::Range(0.1, 0.99))
      ->capture_default_str();
  app.add_option("--give-up", run.extents.give_up,
                 "With --extents: compaction evicts what is worth at most so many times what is evicted anyway (0: it moves "
                 "all that lives)")
      ->check(CLI::Range(0.0, 1e6));
  app.add_flag("--json", arguments.json, "Print JSON: [{policy, capacity_tokens, hit_ratio, prefix_hit_ratio, ...}]");
  app.add_option("--plot", arguments.plot, "Write a picture of the prefix hit ratios to this file (SVG)");
}

// The policies of the store and those of the simulator, without repetitions, and those used for comparison.
Result<std::vector<std::string>> policies_of(const Arguments& arguments) {
  std::vector<std::string> policies;
  const auto add = [&](const std::string& name) {
    if (std::ranges::find(policies, name) == policies.end()) policies.push_back(name);
  };
  for (const std::string& name : arguments.policies) {
    if (!simulated_only(name)) {
      const auto made = evict::make_policy(name);
      if (!made) return fail(Code::kInvalid, "--policy: " + made.error().message + ", lru-list, min");
    }
    add(name);
  }
  add("lru");
  add("min");
  return policies;
}

struct Capacity {
  bool percent = false;
  double value = 0;
};

Result<Capacity> parse_capacity(const std::string& text) {
  const auto wrong = [&](const char* why) {
    return fail(Code::kInvalid, fmt::format("--capacity {}: {}; give tokens (500000, 300K, 1.5M) or a percentage of the "
                                            "distinct chunks (10%)",
                                            text, why));
  };
  Capacity capacity;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, capacity.value);
  if (error != std::errc() || !std::isfinite(capacity.value)) return wrong("not a number");
  if (capacity.value <= 0) return wrong("must be above 0");
  const std::string_view unit(rest, static_cast<size_t>(end - rest));
  if (unit == "%") {
    capacity.percent = true;
    if (capacity.value > 100) return wrong("more than all there is");
  } else if (unit == "K" || unit == "k") {
    capacity.value *= 1e3;
  } else if (unit == "M" || unit == "m") {
    capacity.value *= 1e6;
  } else if (unit == "G" || unit == "g") {
    capacity.value *= 1e9;
  } else if (!unit.empty()) {
    return wrong("unknown unit");
  }
  if (!capacity.percent && capacity.value > 1e15) return wrong("too large");
  return capacity;
}

Result<uint64_t> capacity_units(const Capacity& capacity, const std::string& text, const Workload& workload) {
  const double units = capacity.percent ? capacity.value / 100 * workload.distinct_units
                                        : capacity.value / static_cast<double>(workload.unit_tokens);
  if (units < 1) {
    return fail(Code::kInvalid, fmt::format("--capacity {}: less than one chunk of {} tokens ({}: {} distinct chunks)", text,
                                            workload.unit_tokens, workload.name, workload.distinct_units));
  }
  return static_cast<uint64_t>(units);
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

Result<std::vector<Workload>> load_workloads(const Arguments& arguments) {
  std::vector<Workload> workloads;
  for (const std::string& path : arguments.traces) {
    KVC_ASSIGN(const Trace trace, read_trace(path));
    KVC_ASSIGN(Workload workload, make_workload(trace, base_name(path), arguments.workload));
    workloads.push_back(std::move(workload));
    KVC_TRY(check_interrupt());
  }
  if (arguments.join.empty()) return workloads;
  KVC_ASSIGN(Workload joined, join(workloads, arguments.join == "after" ? Join::kAfter : Join::kBeside));
  workloads.clear();
  workloads.push_back(std::move(joined));
  return workloads;
}

Status finish_settings(const Arguments& arguments, SimSettings& run) {
  run.seed = arguments.workload.seed;
  run.learn_links |= run.lost_boundaries > 0 || run.cut_requests > 0;
  if (arguments.restart == "tables") run.restart = Restart::kTables;
  if (arguments.restart == "names") run.restart = Restart::kNames;
  if (arguments.restart == "lost") run.restart = Restart::kLost;
  if (!run.extents.on && (run.extents.punch || run.extents.give_up > 0))
    return fail(Code::kInvalid, "--punch and --give-up say nothing without --extents");
  KVC_ASSIGN(run.extents.extent_bytes, parse_size(arguments.extent_size));
  KVC_ASSIGN(run.extents.bytes_per_token, parse_size(arguments.bytes_per_token));
  if (run.extents.extent_bytes < kMiB || run.extents.extent_bytes > 64 * kGiB) {
    return fail(Code::kInvalid, "--extent-size " + arguments.extent_size + ": must be from 1M to 64G");
  }
  if (run.extents.bytes_per_token == 0 || run.extents.bytes_per_token > kGiB) {
    return fail(Code::kInvalid, "--bytes-per-token " + arguments.bytes_per_token + ": must be from 1 to 1G");
  }
  if (arguments.scan > 0) run.count_source = 0;
  return {};
}

Result<std::vector<SimRow>> simulate_all(const Arguments& arguments) {
  SimSettings run = arguments.run;
  KVC_TRY(finish_settings(arguments, run));
  KVC_ASSIGN(const std::vector<std::string> policies, policies_of(arguments));
  std::vector<Capacity> capacities;
  for (const std::string& text : arguments.capacities) {
    KVC_ASSIGN(const Capacity capacity, parse_capacity(text));
    capacities.push_back(capacity);
  }
  KVC_ASSIGN(std::vector<Workload> workloads, load_workloads(arguments));
  size_t steps = 0;
  for (const Workload& workload : workloads) steps += workload.requests.size() * policies.size() * capacities.size();
  Progress progress(steps);
  std::vector<SimRow> rows;
  for (const Workload& plain : workloads) {
    for (size_t i = 0; i < capacities.size(); ++i) {
      KVC_ASSIGN(run.capacity_units, capacity_units(capacities[i], arguments.capacities[i], plain));
      Workload scanned;
      if (arguments.scan > 0)
        scanned = with_scan(plain, static_cast<uint64_t>(arguments.scan * static_cast<double>(run.capacity_units)) + 1);
      const Workload& workload = arguments.scan > 0 ? scanned : plain;
      for (const std::string& policy : policies) {
        run.policy = policy;
        progress.show(fmt::format("{} {} {}", plain.name, arguments.capacities[i], policy));
        size_t shown = 0;
        run.progress = [&](size_t done) -> Status {
          const size_t at = done * plain.requests.size() / workload.requests.size();
          progress.advance(at - shown);
          shown = at;
          return check_interrupt();
        };
        KVC_ASSIGN(SimResult result, simulate(workload, run));
        progress.advance(plain.requests.size() - shown);
        rows.push_back({plain.name, policy, plain.unit_tokens, run.capacity_units,
                        static_cast<double>(run.capacity_units) / plain.distinct_units, std::move(result)});
      }
    }
  }
  return rows;
}

std::string plot_of(const std::vector<SimRow>& rows) {
  std::vector<PlotPanel> panels;
  for (const SimRow& row : rows) {
    if (panels.empty() || panels.back().title != row.trace)
      panels.push_back({row.trace, "capacity, tokens", "prefix hits, % of chunks", {}});
    std::vector<PlotSeries>& series = panels.back().series;
    auto found = std::ranges::find(series, row.policy, &PlotSeries::name);
    if (found == series.end()) found = series.insert(found, {row.policy, {}});
    found->points.emplace_back(static_cast<double>(row.capacity_units * row.unit_tokens),
                               100 * row.result.prefix_hit_ratio());
  }
  for (PlotPanel& panel : panels)
    for (PlotSeries& series : panel.series) std::ranges::sort(series.points);
  return svg_plot(panels);
}

Status write_file(const std::string& path, const std::string& text) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "w"), [](std::FILE* open) {
    return open == nullptr ? 0 : std::fclose(open);
  });
  if (file == nullptr) return fail_errno(errno, path + ": create the plot");
  if (std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() || std::fflush(file.get()) != 0)
    return fail_errno(errno, path + ": write the plot");
  return {};
}

int report_error(const Error& error) {
  std::fprintf(stderr, "kvcachefs simulate: %s\n", error.message.c_str());
  return exit_code(error);
}

int run(const Arguments& arguments) {
  const InterruptGuard guard;
  const auto rows = simulate_all(arguments);
  if (!rows) return report_error(rows.error());
  if (!arguments.plot.empty()) {
    if (const Status written = write_file(arguments.plot, plot_of(*rows)); !written) return report_error(written.error());
  }
  if (arguments.json) {
    std::printf("%s\n", simulation_json(*rows).c_str());
  } else {
    std::printf("%s", simulation_table(*rows).c_str());
  }
  return std::fflush(stdout) == 0 ? kExitOk : kExitFailed;
}

}  // namespace

Subcommand add_simulate_command(CLI::App& parent) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* app = parent.add_subcommand("simulate", "Tell what eviction policies and capacities are worth on traces");
  add_options(*app, *arguments);
  return {app, [arguments] { return run(*arguments); }};
}

}  // namespace kvcachefs

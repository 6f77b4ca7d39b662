#include "tools/replay/replay_command.h"

#include <cstdio>
#include <memory>
#include <random>

#include <CLI/CLI.hpp>

#include "store/base/units.h"
#include "tools/load/arena.h"
#include "tools/load/interrupt.h"
#include "tools/replay/replay_runner.h"

namespace kvcachefs {
namespace {

struct Arguments {
  std::string trace;
  std::string style = "vllm", store_order = "prefix", bytes_per_token = "36K", pool_bytes, deal = "round-robin";
  std::vector<std::string> nodes;
  bool json = false;
  ReplaySettings settings;
};

void add_options(CLI::App& app, Arguments& arguments) {
  ReplaySettings& settings = arguments.settings;
  app.add_option("TRACE", arguments.trace, "Trace file, JSON lines, plain or gzip")->required();
  app.add_option("--dir", settings.targets.dirs, "Directory to replay on; repeat it to compare, the first is the base")
      ->allow_extra_args(false);
  app.add_option("--nodes", arguments.nodes,
                 "DIR,DIR,...: mounts of one volume, or directories of each node's own, that serve the requests together, "
                 "an engine each; repeat it to compare. A --dir beside it serves all these engines")
      ->allow_extra_args(false);
  app.add_option("--deal", arguments.deal, "How requests come to the engines of --nodes")
      ->check(CLI::IsMember({"round-robin", "session"}))
      ->capture_default_str();
  app.add_option("--prefill-tokens-per-s", settings.engine.prefill_tokens_per_s, "How fast the engine computes misses")
      ->check(CLI::Range(1.0, 1e9))
      ->capture_default_str();
  app.add_option("--bytes-per-token", arguments.bytes_per_token,
                 "KV bytes of a token in one file (36K: 8B model, TP 4)")
      ->capture_default_str();
  app.add_option("--chunk-tokens", settings.engine.chunk_tokens, "Tokens of a chunk")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--style", arguments.style, "How chunks are accessed: " + access_style_list())->capture_default_str();
  app.add_option("--store-order", arguments.store_order, "Order in which a request's new chunks are written")
      ->check(CLI::IsMember({"prefix", "random"}))
      ->capture_default_str();
  app.add_flag("--open-loop", settings.run.open_loop, "Requests start by their timestamps, and prefill takes its time");
  app.add_option("--time-scale", settings.run.time_scale, "How much faster than recorded requests arrive (--open-loop)")
      ->check(CLI::Range(1e-3, 1e9))
      ->capture_default_str();
  app.add_option("--workers", settings.run.workers, "Requests served at a time (--nodes: by each engine)")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--requests", settings.requests, "Replay only so many, from the start of the trace (0: all)")
      ->capture_default_str();
  app.add_option("--rounds", settings.rounds, "Times each directory is replayed, interleaved")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--pool-bytes", arguments.pool_bytes, "Memory for read buffers (default: a quarter of what is free)");
  app.add_flag("--keep-caches", settings.keep_caches, "Do not drop caches before a round (a machine that others use)");
  app.add_flag("--json", arguments.json,
               "Print JSON: [{workload, dir, metric, unit, median, min, max, ratio_to_first_dir}]");
}

Status finish_settings(const Arguments& arguments, ReplaySettings& settings) {
  EngineOptions& engine = settings.engine;
  KVC_ASSIGN(engine.style, parse_access_style(arguments.style));
  KVC_ASSIGN(const uint64_t bytes_per_token, parse_size(arguments.bytes_per_token));
  if (bytes_per_token == 0 || bytes_per_token > kGiB) {
    return fail(Code::kInvalid, "--bytes-per-token " + arguments.bytes_per_token + ": must be from 1 to 1G");
  }
  engine.chunk_bytes = align_up(bytes_per_token * engine.chunk_tokens, kBlockBytes);
  if (engine.chunk_bytes > 4 * kGiB) {
    return fail(Code::kInvalid, "a chunk of " + format_size(engine.chunk_bytes) +
                                    " (--bytes-per-token times --chunk-tokens): must be at most 4G");
  }
  size_t pool_bytes = default_pool_bytes();
  if (!arguments.pool_bytes.empty()) {
    KVC_ASSIGN(pool_bytes, parse_size(arguments.pool_bytes));
  }
  KVC_ASSIGN(settings.targets.nodes, parse_nodes(arguments.nodes));
  settings.deal = arguments.deal == "session" ? Deal::kSession : Deal::kRoundRobin;
  if (settings.deal == Deal::kSession && settings.targets.nodes.empty()) {
    return fail(Code::kInvalid, "--deal session: there is one engine only; name its directories by --nodes DIR,DIR,...");
  }
  engine.pool_bytes = pool_bytes / (settings.run.workers * settings.targets.nodes_per_column());
  engine.random_store_order = arguments.store_order == "random";
  engine.sleep_prefill = settings.run.open_loop;
  settings.seed = (uint64_t{std::random_device{}()} << 32) + std::random_device{}();
  return {};
}

int report_error(const Error& error) {
  std::fprintf(stderr, "kvcachefs replay: %s\n", error.message.c_str());
  return exit_code(error);
}

int run(const Arguments& arguments) {
  ReplaySettings settings = arguments.settings;
  if (const Status checked = finish_settings(arguments, settings); !checked) return report_error(checked.error());
  const auto trace = read_trace(arguments.trace);
  if (!trace) return report_error(trace.error());
  const InterruptGuard guard;
  Report report(column_names(settings.targets));
  if (const Status done = run_replay(settings, *trace, report); !done) return report_error(done.error());
  if (arguments.json) {
    for (const std::string& note : report.notes()) std::fprintf(stderr, "note: %s\n", note.c_str());
    std::printf("%s\n", report.json().c_str());
  } else {
    std::printf("%s", report.table().c_str());
  }
  return std::fflush(stdout) == 0 ? kExitOk : kExitFailed;
}

}  // namespace

Subcommand add_replay_command(CLI::App& parent) {
  auto arguments = std::make_shared<Arguments>();
  arguments->settings.run.workers = 4;
  CLI::App* app =
      parent.add_subcommand("replay", "Drive directories with a recorded request trace, as an engine would");
  add_options(*app, *arguments);
  return {app, [arguments] { return run(*arguments); }};
}

}  // namespace kvcachefs

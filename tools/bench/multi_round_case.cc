// multi-round: 15 users x 20 rounds arriving at 2 requests/s, served by two instances that share one directory: every
// turn finds its history written by the other instance. With --nodes there are as many instances as a list has directories,
// each on its own directory.
#include <map>

#include <fmt/format.h>

#include "tools/bench/conversation.h"
#include "tools/bench/presets.h"
#include "tools/load/cold_start.h"
#include "tools/load/outcome_report.h"
#include "tools/load/request_run.h"
#include "tools/load/statistics.h"

namespace kvcachefs {
namespace {

constexpr ConversationShape kManyRounds{.conversations = 15, .turns = 20, .first_tokens = 2048, .turn_tokens = 512};
constexpr unsigned kInstances = 2;  // if there are no nodes
constexpr double kRequestsPerS = 2;

// The figures by which columns are compared.
struct Worth {
  double hit_tokens = 0;
  double ttft_p50_s = 0;
};

Worth worth_of(std::span<const RequestOutcome> outcomes) {
  Worth worth;
  std::vector<double> ttft_s;
  for (const RequestOutcome& one : outcomes) {
    worth.hit_tokens += static_cast<double>(one.hit_tokens);
    ttft_s.push_back(one.ttft_s());
  }
  worth.ttft_p50_s = percentile(ttft_s, 50);
  return worth;
}

class MultiRoundCase final : public BenchCase {
 public:
  MultiRoundCase(const BenchSettings& settings, AccessStyle style)
      : seed_(settings.seed),
        time_scale_(settings.time_scale),
        nodes_(!settings.targets.nodes.empty()),
        instances_(nodes_ ? static_cast<unsigned>(settings.targets.nodes_per_column()) : kInstances),
        options_(paced_engine(conversation_engine(settings, style), settings.time_scale)) {
    options_.pool_bytes = settings.pool_bytes / (2 * instances_);
  }

  std::string workload() const override { return "multi-round"; }
  std::string scenario() const override {
    return fmt::format("{}users/{}rounds/{}/{}", kManyRounds.conversations, kManyRounds.turns, format_size(options_.chunk_bytes),
                       access_style_name(options_.style));
  }
  uint64_t bytes_needed() const override {
    return conversation_chunks(kManyRounds) * (file_bytes(options_.style, options_.chunk_bytes) + kSidecarBytes);
  }
  bool wants_raw_limit() const override { return true; }

  Status round(BenchContext& context, const CaseDir& dir, unsigned round) override {
    const auto requests = conversation_requests(kManyRounds, seed_ + round, instances_, kRequestsPerS);
    KVC_TRY(cold_start(dir.roots, context.settings.keep_caches, context.report));
    const RunOptions run{.engines = instances_, .workers = 1, .open_loop = true, .time_scale = time_scale_};
    KVC_ASSIGN(const RunResult result, run_requests(dir.roots, options_, run, requests, [] {}));
    const size_t index = dir.target.index();
    const uint64_t bytes = file_bytes(options_.style, options_.chunk_bytes);
    report_outcomes(context.report, workload(), scenario(), index, result.outcomes, bytes);
    if (nodes_) {
      report_engines(context.report, workload(), scenario(), index, requests, result.outcomes, instances_, bytes);
      compare(context.report, round, index, worth_of(result.outcomes));
    }
    uint64_t chunks = 0;
    for (const RequestOutcome& one : result.outcomes) chunks += one.hit_chunks + one.stored_chunks;
    add_costs(context.report, metric("", ""), index, "", result.cost, static_cast<double>(chunks * bytes));
    return remove_contents(dir.roots);
  }

 private:
  // The report compares with its first column. This adds comparisons of a column with each of the later ones, round by
  // round.
  void compare(Report& report, unsigned round, size_t index, const Worth& worth) {
    auto& columns = worth_[round];
    for (const auto& [other, others] : columns) {
      const auto add = [&](size_t column, size_t to, const Worth& of, const Worth& base) {
        if (column == 0 || base.hit_tokens == 0) return;
        report.add(metric(fmt::format("hit_tokens_to_[{}]", to + 1), "x"), column, of.hit_tokens / base.hit_tokens);
        report.add(metric(fmt::format("ttft_p50_to_[{}]", to + 1), "x"), column, of.ttft_p50_s / base.ttft_p50_s);
      };
      if (index < other) add(index, other, worth, others);
      if (other < index) add(other, index, others, worth);
    }
    columns[index] = worth;
  }

  uint64_t seed_;
  double time_scale_;
  bool nodes_;
  unsigned instances_;
  EngineOptions options_;
  std::map<unsigned, std::map<size_t, Worth>> worth_;  // by round and column
};

}  // namespace

BenchCases multi_round_cases(const BenchSettings& settings) {
  BenchCases cases;
  for (const AccessStyle style : settings.styles) cases.push_back(std::make_unique<MultiRoundCase>(settings, style));
  return cases;
}

}  // namespace kvcachefs

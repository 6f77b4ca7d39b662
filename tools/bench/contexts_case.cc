// contexts: 10 contexts x 5 turns with growing history. Measures the cost of storing in the first turn, and the time to restore in each later
// turn, with caches dropped between turns.
#include <optional>

#include <fmt/format.h>

#include "tools/bench/conversation.h"
#include "tools/bench/presets.h"
#include "tools/load/cold_start.h"
#include "tools/load/interrupt.h"
#include "tools/load/phase.h"
#include "tools/load/statistics.h"

namespace kvcachefs {
namespace {

constexpr ConversationShape kLongContexts{.conversations = 10, .turns = 5, .first_tokens = 8192, .turn_tokens = 2048};

struct TurnSums {
  std::vector<double> restore_ms, store_ms, ttft_ms;
  uint64_t hit_chunks = 0, stored_chunks = 0;
  double read_s = 0, store_s = 0, client_cpu_s = 0;
};

class ContextsCase final : public BenchCase {
 public:
  ContextsCase(const BenchSettings& settings, AccessStyle style)
      : seed_(settings.seed), options_(conversation_engine(settings, style)) {}

  std::string workload() const override { return "contexts"; }
  std::string scenario() const override {
    return fmt::format("{}x{}turns/{}/{}", kLongContexts.conversations, kLongContexts.turns, format_size(options_.chunk_bytes),
                       access_style_name(options_.style));
  }
  uint64_t bytes_needed() const override {
    return conversation_chunks(kLongContexts) * (file_bytes(options_.style, options_.chunk_bytes) + kSidecarBytes);
  }
  bool wants_raw_limit() const override { return true; }

  Status round(BenchContext& context, const CaseDir& dir, unsigned round) override;

 private:
  Result<TurnSums> serve_turn(const CaseDir& dir, RequestEngine& engine, std::span<const EngineRequest> requests,
                              PhaseCost& cost) const;
  void report_turn(Report& report, size_t dir, unsigned turn, const TurnSums& sums, PhaseCost cost) const;

  uint64_t seed_;
  EngineOptions options_;
};

Result<TurnSums> ContextsCase::serve_turn(const CaseDir& dir, RequestEngine& engine,
                                          std::span<const EngineRequest> requests, PhaseCost& cost) const {
  TurnSums sums;
  auto serve = [&](unsigned) -> Status {
    for (const EngineRequest& request : requests) {
      KVC_TRY(check_interrupt());
      KVC_ASSIGN(const RequestOutcome outcome, engine.serve(request));
      sums.restore_ms.push_back((outcome.probe_s + outcome.read_s) * 1e3);
      sums.store_ms.push_back(outcome.store_s * 1e3);
      sums.ttft_ms.push_back(outcome.ttft_s() * 1e3);
      sums.hit_chunks += outcome.hit_chunks;
      sums.stored_chunks += outcome.stored_chunks;
      sums.read_s += outcome.read_s;
      sums.store_s += outcome.store_s;
      sums.client_cpu_s += outcome.client_cpu_s;
    }
    return {};
  };
  KVC_ASSIGN(cost, run_phase(dir.root, 1, serve));
  return sums;
}

void ContextsCase::report_turn(Report& report, size_t dir, unsigned turn, const TurnSums& sums, PhaseCost cost) const {
  const std::string prefix = fmt::format("turn{}_", turn + 1);
  report.add(metric(prefix + "restore", "ms"), dir, percentile(sums.restore_ms, 50));
  report.add(metric(prefix + "store", "ms"), dir, percentile(sums.store_ms, 50));
  report.add(metric(prefix + "ttft", "ms"), dir, percentile(sums.ttft_ms, 50));
  report.add(metric(prefix + "hit_chunks", "count"), dir, static_cast<double>(sums.hit_chunks));
  const auto bytes = static_cast<double>(file_bytes(options_.style, options_.chunk_bytes));
  const auto rate = [&](const char* what, uint64_t chunks, double seconds, Limit limit) {
    if (chunks == 0) return;
    const double gib = static_cast<double>(chunks) * bytes / static_cast<double>(kGiB);
    report.add(metric(prefix + what, "GiB/s", limit), dir, gib / seconds);
  };
  rate("read_rate", sums.hit_chunks, sums.read_s, Limit::kRawRead);
  rate("store_rate", sums.stored_chunks, sums.store_s, Limit::kRawWrite);
  cost.client_cpu_s = sums.client_cpu_s;
  add_costs(report, metric("", ""), dir, prefix, cost, static_cast<double>(sums.hit_chunks + sums.stored_chunks) * bytes);
}

Status ContextsCase::round(BenchContext& context, const CaseDir& dir, unsigned round) {
  const auto requests = conversation_requests(kLongContexts, seed_ + round, 1, 1);
  KVC_ASSIGN(RequestEngine engine, RequestEngine::create(dir.root, options_, 0, max_chunks(requests)));
  for (unsigned turn = 0; turn < kLongContexts.turns; ++turn) {
    KVC_TRY(cold_start(dir.root, context.settings.keep_caches, context.report));
    PhaseCost cost;
    const auto of_turn = std::span(requests).subspan(turn * kLongContexts.conversations, kLongContexts.conversations);
    KVC_ASSIGN(const TurnSums sums, serve_turn(dir, engine, of_turn, cost));
    report_turn(context.report, dir.target.index(), turn, sums, std::move(cost));
  }
  return remove_contents(dir.roots);
}

}  // namespace

BenchCases contexts_cases(const BenchSettings& settings) {
  BenchCases cases;
  for (const AccessStyle style : settings.styles) cases.push_back(std::make_unique<ContextsCase>(settings, style));
  return cases;
}

}  // namespace kvcachefs

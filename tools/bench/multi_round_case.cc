// multi-round: 15 users x 20 rounds arriving at 2 requests/s, served by two instances that share one directory: every
// turn finds its history written by the other instance.
#include <fmt/format.h>

#include "tools/bench/conversation.h"
#include "tools/bench/presets.h"
#include "tools/load/cold_start.h"
#include "tools/load/request_run.h"

namespace kvcachefs {
namespace {

constexpr ConversationShape kManyRounds{.conversations = 15, .turns = 20, .first_tokens = 2048, .turn_tokens = 512};
constexpr unsigned kInstances = 2;
constexpr double kRequestsPerS = 2;

class MultiRoundCase final : public BenchCase {
 public:
  MultiRoundCase(const BenchSettings& settings, AccessStyle style)
      : seed_(settings.seed),
        time_scale_(settings.time_scale),
        options_(paced_engine(conversation_engine(settings, style), settings.time_scale)) {}

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
    const auto requests = conversation_requests(kManyRounds, seed_ + round, kInstances, kRequestsPerS);
    KVC_TRY(cold_start(dir.root, context.settings.keep_caches, context.report));
    const RunOptions run{.workers = kInstances, .pinned = true, .open_loop = true, .time_scale = time_scale_};
    KVC_ASSIGN(const RunResult result, run_requests(dir.root, options_, run, requests, [] {}));
    const size_t index = dir.target.index();
    report_outcomes(context.report, workload(), scenario(), index, result.outcomes,
                    file_bytes(options_.style, options_.chunk_bytes));
    uint64_t chunks = 0;
    for (const RequestOutcome& one : result.outcomes) chunks += one.hit_chunks + one.stored_chunks;
    add_costs(context.report, metric("", ""), index, "", result.cost,
              static_cast<double>(chunks * file_bytes(options_.style, options_.chunk_bytes)));
    return remove_contents(dir.root);
  }

 private:
  uint64_t seed_;
  double time_scale_;
  EngineOptions options_;
};

}  // namespace

BenchCases multi_round_cases(const BenchSettings& settings) {
  BenchCases cases;
  for (const AccessStyle style : settings.styles) cases.push_back(std::make_unique<MultiRoundCase>(settings, style));
  return cases;
}

}  // namespace kvcachefs

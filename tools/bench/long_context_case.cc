// long-context: 100,000 tokens of a model split over 4 tensor-parallel ranks, each rank restoring its own files beside
// the others, for several chunk lengths.
#include <optional>

#include <fmt/format.h>

#include "tools/bench/presets.h"
#include "tools/bench/restore_pass.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kContextTokens = 100'000;
constexpr unsigned kRanks = 4;

class LongContextCase final : public BenchCase {
 public:
  LongContextCase(const BenchSettings& settings, AccessStyle style, uint64_t chunk_tokens)
      : chunk_tokens_(chunk_tokens), spec_{style, scaled_chunk_bytes(settings, chunk_tokens), 1} {
    for (unsigned rank = 0; rank < kRanks; ++rank) {
      chains_.push_back(chunk_chain(style, settings.seed ^ chunk_tokens, rank, kContextTokens / chunk_tokens));
    }
  }

  std::string workload() const override { return "long-context"; }
  std::string scenario() const override {
    return fmt::format("{}tokens/{}files-of-{}/{}", chunk_tokens_, files(), format_size(spec_.chunk_bytes),
                       access_style_name(spec_.style));
  }
  uint64_t bytes_needed() const override {
    return files() * (file_bytes(spec_.style, spec_.chunk_bytes) + kSidecarBytes);
  }
  bool wants_raw_limit() const override { return true; }

  Status set_up(BenchContext& context) override {
    KVC_ASSIGN(pool_, make_pool(context.settings, spec_, files(), kRanks));
    return {};
  }
  Status prepare(BenchContext&, const CaseDir& dir) override { return store_chains(dir.root, spec_, chains_); }
  Status round(BenchContext& context, const CaseDir& dir, unsigned) override {
    return restore_phases(context, dir, metric("", ""), spec_, chains_, *pool_);
  }

 private:
  size_t files() const { return chains_[0].size() * kRanks; }

  uint64_t chunk_tokens_;
  PassSpec spec_;
  std::vector<Chain> chains_;
  std::optional<SlotPool> pool_;
};

}  // namespace

BenchCases long_context_cases(const BenchSettings& settings) {
  BenchCases cases;
  for (const AccessStyle style : settings.styles) {
    for (const uint64_t tokens : {256u, 512u, 1024u, 2048u}) {
      cases.push_back(std::make_unique<LongContextCase>(settings, style, tokens));
    }
  }
  return cases;
}

}  // namespace kvcachefs

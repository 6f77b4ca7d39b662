// restore: one prefix read back, serially and by several threads, by one style and chunk size.
#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "tools/bench/presets.h"
#include "tools/bench/restore_pass.h"

namespace kvcachefs {
namespace {

class RestoreCase final : public BenchCase {
 public:
  RestoreCase(const BenchSettings& settings, AccessStyle style, uint64_t chunk_bytes, unsigned threads)
      : spec_{style, chunk_bytes, threads},
        chains_{chunk_chain(style, settings.seed ^ chunk_bytes, 0,
                            std::max<size_t>(threads, settings.pass_bytes / chunk_bytes))} {}

  std::string workload() const override { return "restore"; }
  std::string scenario() const override {
    return fmt::format("{}/{}/{}t", format_size(spec_.chunk_bytes), access_style_name(spec_.style),
                       spec_.threads_per_chain);
  }
  uint64_t bytes_needed() const override {
    return chains_[0].size() * (file_bytes(spec_.style, spec_.chunk_bytes) + kSidecarBytes);
  }
  bool wants_raw_limit() const override { return true; }

  Status set_up(BenchContext& context) override {
    KVC_ASSIGN(pool_, make_pool(context.settings, spec_, chains_[0].size(), spec_.threads_per_chain));
    return {};
  }
  Status prepare(BenchContext&, const CaseDir& dir) override { return store_chains(dir.root, spec_, chains_); }
  Status round(BenchContext& context, const CaseDir& dir, unsigned) override {
    return restore_phases(context, dir, metric("", ""), spec_, chains_, *pool_);
  }

 private:
  PassSpec spec_;
  std::vector<Chain> chains_;
  std::optional<SlotPool> pool_;
};

}  // namespace

BenchCases restore_cases(const BenchSettings& settings) {
  BenchCases cases;
  for (const AccessStyle style : settings.styles) {
    for (const uint64_t size : settings.sizes) {
      for (const unsigned threads : threads_or(settings, {1, 4})) {
        cases.push_back(std::make_unique<RestoreCase>(settings, style, size, threads));
      }
    }
  }
  return cases;
}

}  // namespace kvcachefs

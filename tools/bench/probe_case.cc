// probe: how fast the directory answers whether a chunk exists.
#include <algorithm>
#include <atomic>

#include <fmt/format.h>

#include "tools/bench/presets.h"
#include "tools/bench/restore_pass.h"
#include "tools/load/chunk_io.h"
#include "tools/load/cold_start.h"
#include "tools/load/interrupt.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kNames = 10'000;   // at --scale 1
constexpr uint64_t kProbes = 80'000;  // per phase, at --scale 1
constexpr uint64_t kProbedChunkBytes = 4096;

class ProbeCase final : public BenchCase {
 public:
  ProbeCase(const BenchSettings& settings, AccessStyle style, unsigned threads)
      : spec_{style, kProbedChunkBytes, 1},
        threads_(threads),
        probes_(scaled(settings, kProbes)),
        present_{chunk_chain(style, settings.seed, 0, scaled(settings, kNames))},
        absent_(chunk_chain(style, settings.seed + 1, 0, scaled(settings, kNames))) {}

  std::string workload() const override { return "probe"; }
  std::string scenario() const override { return fmt::format("{}/{}t", access_style_name(spec_.style), threads_); }
  uint64_t bytes_needed() const override { return present_[0].size() * 2 * (kProbedChunkBytes + kSidecarBytes); }

  Status prepare(BenchContext&, const CaseDir& dir) override { return store_chains(dir.root, spec_, present_); }

  Status round(BenchContext& context, const CaseDir& dir, unsigned) override {
    KVC_TRY(cold_start(dir.root, context.settings.keep_caches, context.report));
    KVC_TRY(phase(context.report, dir, "present_cold", present_[0], true, present_[0].size()));
    KVC_TRY(phase(context.report, dir, "present", present_[0], true, probes_));
    return phase(context.report, dir, "absent", absent_, false, probes_);
  }

 private:
  static uint64_t scaled(const BenchSettings& settings, uint64_t count) {
    return std::max<uint64_t>(32, static_cast<uint64_t>(static_cast<double>(count) * settings.scale));
  }

  // Each thread probes its own part of the names in prefix order, over and over.
  Status phase(Report& report, const CaseDir& dir, const std::string& name, const Chain& chain, bool expected,
               uint64_t probes) const {
    const uint64_t each = std::max<uint64_t>(1, probes / threads_);
    auto ask = [&](unsigned thread) -> Status {
      const ChunkIo io(dir.root, spec_.style, thread);
      const uint64_t begin = thread * chain.size() / threads_;
      const uint64_t length = std::max<uint64_t>(1, chain.size() / threads_);
      for (uint64_t i = 0; i < each; ++i) {
        const ChunkName& chunk = chain[(begin + i % length) % chain.size()];
        KVC_ASSIGN(const bool there, io.probe(chunk));
        if (there == expected) continue;
        return fail(Code::kCorrupt, chunk.path + (expected ? ": stored and not found" : ": found and never stored"));
      }
      return check_interrupt();
    };
    KVC_ASSIGN(const PhaseCost cost, run_phase(dir.root, threads_, ask));
    const double done = static_cast<double>(each * threads_);
    report.add(metric(name + "_rate", "probes/s"), dir.target.index(), done / cost.wall_s);
    report.add(metric(name + "_client_cpu", "us/probe"), dir.target.index(), cost.client_cpu_s / done * 1e6);
    if (cost.daemon_cpu_s) {
      report.add(metric(name + "_daemon_cpu", "us/probe"), dir.target.index(), *cost.daemon_cpu_s / done * 1e6);
    }
    add_costs(report, metric("", ""), dir.target.index(), name + "_", cost, 0);
    return {};
  }

  PassSpec spec_;
  unsigned threads_;
  uint64_t probes_;
  std::vector<Chain> present_;  // one chain
  Chain absent_;
};

}  // namespace

BenchCases probe_cases(const BenchSettings& settings) {
  BenchCases cases;
  for (const AccessStyle style : settings.styles) {
    for (const unsigned threads : threads_or(settings, {1, 2, 4, 8, 16, 32})) {
      cases.push_back(std::make_unique<ProbeCase>(settings, style, threads));
    }
  }
  return cases;
}

}  // namespace kvcachefs

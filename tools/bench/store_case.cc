// store: one or several threads write new chunks of one prefix. Measures when each call returns, and when all is durable.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>

#include <fmt/format.h>

#include "tools/bench/presets.h"
#include "tools/bench/restore_pass.h"
#include "tools/load/arena.h"
#include "tools/load/chunk_io.h"
#include "tools/load/cold_start.h"
#include "tools/load/cpu_time.h"
#include "tools/load/interrupt.h"
#include "tools/load/payload.h"
#include "tools/load/statistics.h"

namespace kvcachefs {
namespace {

class StoreCase final : public BenchCase {
 public:
  StoreCase(const BenchSettings& settings, AccessStyle style, uint64_t chunk_bytes, unsigned threads)
      : seed_(settings.seed ^ chunk_bytes),
        spec_{style, chunk_bytes, 1},
        threads_(threads),
        chunks_(std::max<size_t>(threads, settings.pass_bytes / chunk_bytes)),
        bytes_(file_bytes(style, chunk_bytes)) {}

  std::string workload() const override { return "store"; }
  std::string scenario() const override {
    return fmt::format("{}/{}/{}t", format_size(spec_.chunk_bytes), access_style_name(spec_.style), threads_);
  }
  uint64_t bytes_needed() const override { return chunks_ * (bytes_ + kSidecarBytes); }
  bool wants_raw_limit() const override { return true; }

  Status set_up(BenchContext&) override;
  Status round(BenchContext& context, const CaseDir& dir, unsigned round) override;

 private:
  std::span<std::byte> content(size_t chunk) const { return content_.span().subspan(chunk * stride(), bytes_); }
  size_t stride() const { return align_up(bytes_, kBlockBytes); }
  double copy_us() const;
  Status verify(const std::string& root, const Chain& chain) const;
  void report(Report& report, size_t dir, const PhaseCost& cost, double durable_s, std::vector<double> put_us) const;

  uint64_t seed_;
  PassSpec spec_;
  unsigned threads_;
  size_t chunks_;
  uint64_t bytes_;
  Arena content_;  // of every chunk of a round; filled while the clock is stopped
};

Status StoreCase::set_up(BenchContext&) {
  KVC_ASSIGN(content_, Arena::create(stride() * chunks_));
  return {};
}

// Measures the memory copy that any write must do, so that it can be subtracted.
double StoreCase::copy_us() const {
  auto target = Arena::create(bytes_);
  if (!target) return 0;
  std::vector<double> samples;
  for (size_t i = 0; i < 9; ++i) {
    const double start = monotonic_s();
    std::memcpy(target->span().data(), content(i % chunks_).data(), bytes_);
    samples.push_back((monotonic_s() - start) * 1e6);
  }
  return summarize(samples).median;
}

Status StoreCase::verify(const std::string& root, const Chain& chain) const {
  const ChunkIo io(root, spec_.style, 0);
  KVC_ASSIGN(SlotPool pool, SlotPool::create(bytes_, 1, 1, bytes_));
  for (const ChunkName& name : chain) {
    KVC_TRY(check_interrupt());
    KVC_ASSIGN(const bool there, io.load(name, bytes_, pool.at(0)));
    if (!there) return fail(Code::kNotFound, name.path + ": stored and not there any more (evicted?)");
    KVC_TRY(pool.at(0).verify());
  }
  return {};
}

Status StoreCase::round(BenchContext& context, const CaseDir& dir, unsigned round) {
  const Chain chain = chunk_chain(spec_.style, seed_ + round + 1, 0, chunks_);
  for (size_t i = 0; i < chunks_; ++i) Payload(chain[i].payload_seed).fill(content(i));
  KVC_TRY(drain_writes(dir.roots, context.report));
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::vector<double> put_us;
  auto put = [&](unsigned thread) -> Status {
    ChunkIo io(dir.root, spec_.style, thread);
    std::vector<double> mine;
    for (size_t i = next++; i < chunks_; i = next++) {
      KVC_TRY(check_interrupt());
      const double start = monotonic_s();
      KVC_TRY(io.store(chain[i], content(i)));
      mine.push_back((monotonic_s() - start) * 1e6);
    }
    std::lock_guard lock(mutex);
    put_us.insert(put_us.end(), mine.begin(), mine.end());
    return {};
  };
  KVC_ASSIGN(const PhaseCost cost, run_phase(dir.root, threads_, put));
  const double drain_start = monotonic_s();
  KVC_TRY(drain_writes(dir.roots, context.report));
  const double durable_s = cost.wall_s + monotonic_s() - drain_start;
  KVC_TRY(verify(dir.root, chain));
  report(context.report, dir.target.index(), cost, durable_s, std::move(put_us));
  return remove_contents(dir.roots);
}

void StoreCase::report(Report& report, size_t dir, const PhaseCost& cost, double durable_s,
                       std::vector<double> put_us) const {
  const double gib = static_cast<double>(chunks_ * bytes_) / static_cast<double>(kGiB);
  const double copy = copy_us();
  report.add(metric("return_rate", "GiB/s", Limit::kRawWrite), dir, gib / cost.wall_s);
  report.add(metric("durable_rate", "GiB/s", Limit::kRawWrite), dir, gib / durable_s);
  report.add(metric("time_to_return", "ms"), dir, cost.wall_s * 1e3);
  report.add(metric("time_to_durable", "ms"), dir, durable_s * 1e3);
  report.add(metric("put_p50", "us"), dir, percentile(put_us, 50));
  report.add(metric("put_p99", "us"), dir, percentile(put_us, 99));
  report.add(metric("put_minus_copy_p50", "us"), dir, percentile(put_us, 50) - copy);
  report.add(metric("put_minus_copy_p99", "us"), dir, percentile(put_us, 99) - copy);
  add_costs(report, metric("", ""), dir, "", cost, static_cast<double>(chunks_ * bytes_));
}

}  // namespace

BenchCases store_cases(const BenchSettings& settings) {
  BenchCases cases;
  for (const AccessStyle style : settings.styles) {
    for (const uint64_t size : settings.sizes) {
      for (const unsigned threads : threads_or(settings, {1, 4})) {
        cases.push_back(std::make_unique<StoreCase>(settings, style, size, threads));
      }
    }
  }
  return cases;
}

}  // namespace kvcachefs

// raw: the volume itself, the limit that the other workloads are compared with.
#include <fmt/format.h>

#include "tools/bench/presets.h"
#include "tools/bench/raw_io.h"
#include "tools/load/arena.h"

namespace kvcachefs {
namespace {

class RawCase final : public BenchCase {
 public:
  explicit RawCase(const BenchSettings& settings) : bytes_(align_up(std::max(settings.pass_bytes, kMiB), kMiB)) {}

  std::string workload() const override { return "raw"; }
  std::string scenario() const override { return fmt::format("{}/1M-depth-8", format_size(bytes_)); }
  uint64_t bytes_needed() const override { return bytes_; }

  Status set_up(BenchContext&) override {
    KVC_ASSIGN(buffer_, Arena::create(bytes_));
    return {};
  }

  Status round(BenchContext& context, const CaseDir& dir, unsigned) override {
    KVC_ASSIGN(const std::string place, raw_directory(dir.target.directory(), context.settings.volume));
    KVC_ASSIGN(const RawRates rates, measure_raw(place, buffer_.span().first(bytes_)));
    const size_t index = dir.target.index();
    context.report.add(metric("read_rate", "GiB/s"), index, rates.read_gib_s);
    context.report.add(metric("write_rate", "GiB/s"), index, rates.write_gib_s);
    context.report.add(metric("read_client_cpu", "s/GiB"), index, rates.read_cpu_s_per_gib);
    context.report.add(metric("write_client_cpu", "s/GiB"), index, rates.write_cpu_s_per_gib);
    return {};
  }

 private:
  uint64_t bytes_;
  Arena buffer_;
};

}  // namespace

BenchCases raw_cases(const BenchSettings& settings) {
  BenchCases cases;
  cases.push_back(std::make_unique<RawCase>(settings));
  return cases;
}

}  // namespace kvcachefs

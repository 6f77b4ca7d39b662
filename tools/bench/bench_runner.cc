#include "tools/bench/bench_runner.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "tools/bench/presets.h"
#include "tools/bench/raw_io.h"
#include "tools/load/arena.h"
#include "tools/load/interrupt.h"
#include "tools/load/progress.h"
#include "tools/load/target.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kLimitBytes = 128 * kMiB;  // enough for a rate; takes 0.15 s of a round on a 2 GiB/s volume

// Measures the raw rates of each volume, once a round beside every case that is bounded by them.
class LimitProbe {
 public:
  LimitProbe(const BenchSettings& settings, Report& report) : settings_(settings), report_(report) {}

  void measure(const BenchCase& bench_case, const std::vector<CaseDir>& dirs);

 private:
  const BenchSettings& settings_;
  Report& report_;
  Arena buffer_;
};

void LimitProbe::measure(const BenchCase& bench_case, const std::vector<CaseDir>& dirs) {
  const uint64_t bytes = std::max(kMiB, align_down(std::min(kLimitBytes, settings_.pass_bytes), kMiB));
  if (buffer_.span().empty()) {
    auto buffer = Arena::create(bytes);
    if (!buffer) return report_.note("no raw limit: " + buffer.error().message);
    buffer_ = std::move(*buffer);
  }
  std::map<dev_t, RawRates> by_device;  // directories of one volume share its limit
  for (const CaseDir& dir : dirs) {
    const auto place = raw_directory(dir.target.directory(), settings_.volume);
    struct stat info;
    if (!place || ::stat(place->c_str(), &info) != 0) {
      report_.note("no raw limit for " + dir.target.directory() + (place ? "" : ": " + place.error().message));
      continue;
    }
    if (!by_device.contains(info.st_dev)) {
      const auto rates = measure_raw(*place, buffer_.span().first(bytes));
      if (!rates) {
        report_.note("no raw limit: " + rates.error().message);
        continue;
      }
      by_device[info.st_dev] = *rates;
    }
    const RawRates& rates = by_device[info.st_dev];
    const size_t index = dir.target.index();
    const std::string workload = bench_case.workload(), scenario = bench_case.scenario();
    report_.add_raw_rate(workload, scenario, index, Limit::kRawRead, rates.read_gib_s);
    report_.add_raw_rate(workload, scenario, index, Limit::kRawWrite, rates.write_gib_s);
  }
}

class Runner {
 public:
  Runner(const BenchSettings& settings, Report& report, std::vector<Target>& targets, size_t cases)
      : settings_(settings),
        context_{settings, report},
        targets_(targets),
        limits_(settings, report),
        progress_(cases * (settings.rounds + 1) * targets.size()) {}

  Status run(BenchCase& bench_case, size_t number);

 private:
  Status rounds(BenchCase& bench_case, const std::vector<CaseDir>& dirs);
  void show(const BenchCase& bench_case, const char* what, const CaseDir& dir);

  const BenchSettings& settings_;
  BenchContext context_;
  std::vector<Target>& targets_;
  LimitProbe limits_;
  Progress progress_;
};

void Runner::show(const BenchCase& bench_case, const char* what, const CaseDir& dir) {
  progress_.show(
      fmt::format("{} {} {} [{}]", bench_case.workload(), bench_case.scenario(), what, dir.target.index() + 1));
}

Status Runner::rounds(BenchCase& bench_case, const std::vector<CaseDir>& dirs) {
  for (unsigned round = 0; round < settings_.rounds; ++round) {
    if (settings_.raw_limit && bench_case.wants_raw_limit()) limits_.measure(bench_case, dirs);
    for (size_t i = 0; i < dirs.size(); ++i) {
      const CaseDir& dir = dirs[(i + round) % dirs.size()];
      KVC_TRY(check_interrupt());
      show(bench_case, fmt::format("round {}", round + 1).c_str(), dir);
      KVC_TRY(dir.target.blamed(bench_case.round(context_, dir, round)));
      progress_.advance();
    }
  }
  return {};
}

Status Runner::run(BenchCase& bench_case, size_t number) {
  KVC_TRY(check_space(
      targets_, bench_case.bytes_needed(),
      fmt::format("free some, or lower --pass-bytes or --scale (workload {})", bench_case.workload())));
  KVC_TRY(bench_case.set_up(context_));
  std::vector<CaseDir> dirs;
  for (const Target& target : targets_) {
    KVC_ASSIGN(std::vector<std::string> roots, target.make_dirs(std::to_string(number)));
    dirs.push_back({target, roots.front(), roots});
  }
  for (const CaseDir& dir : dirs) {
    show(bench_case, "prepare", dir);
    KVC_TRY(dir.target.blamed(bench_case.prepare(context_, dir)));
    progress_.advance();
  }
  KVC_TRY(rounds(bench_case, dirs));
  for (const CaseDir& dir : dirs) KVC_TRY(dir.target.remove_dirs(dir.roots));
  return {};
}

}  // namespace

Status run_bench(const BenchSettings& settings, Report& report) {
  KVC_ASSIGN(BenchCases cases, make_cases(settings));
  KVC_ASSIGN(std::vector<Target> targets, open_targets(settings.targets, "bench"));
  for (const Target& target : targets) {
    if (const auto shared = target.shared_volume_note()) report.note(*shared);
  }
  Runner runner(settings, report, targets, cases.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string place = cases[i]->workload() + " " + cases[i]->scenario();
    Status done = runner.run(*cases[i], i);
    if (!done) return std::unexpected(std::move(done).error().at(place));
    cases[i].reset();  // its buffers
  }
  return {};
}

}  // namespace kvcachefs

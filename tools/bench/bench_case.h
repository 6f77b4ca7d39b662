// A benchmark case: a workload with its parameters, run on every directory in turn, round after round.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/base/result.h"
#include "tools/bench/bench_settings.h"
#include "tools/load/report.h"
#include "tools/load/target.h"

namespace kvcachefs {

struct BenchContext {
  const BenchSettings& settings;
  Report& report;
};

// A directory for this case only, below a target; its path ends with a slash.
struct CaseDir {
  const Target& target;
  std::string root;                // on the only node, or the first
  std::vector<std::string> roots;  // on each node
};

// Used by one thread. The order is: set_up(), prepare() on every directory, then rounds of round() on every directory.
class BenchCase {
 public:
  virtual ~BenchCase() = default;

  virtual std::string workload() const = 0;
  virtual std::string scenario() const = 0;
  // Most bytes that the case stores on each directory at a time.
  virtual uint64_t bytes_needed() const = 0;
  // Whether the raw rates of the volume are measured beside it.
  virtual bool wants_raw_limit() const { return false; }

  // Allocates memory; called once.
  virtual Status set_up(BenchContext&) { return {}; }
  // Writes the data that the rounds read.
  virtual Status prepare(BenchContext&, const CaseDir&) { return {}; }
  virtual Status round(BenchContext&, const CaseDir&, unsigned round) = 0;

 protected:
  Metric metric(std::string measure, std::string unit, Limit limit = Limit::kNone) const {
    return {workload(), scenario(), std::move(measure), std::move(unit), limit};
  }
};

}  // namespace kvcachefs

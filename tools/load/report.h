// Samples of a run by (workload, case, measure) and directory; printed as a table for people or as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/result.h"
#include "tools/load/phase.h"

namespace kvcachefs {

// Which rate of the raw volume bounds a measure.
enum class Limit : uint8_t { kNone, kRawRead, kRawWrite };

struct Metric {
  std::string workload;  // "restore"
  std::string scenario;  // "64K/read/1t": what was varied; rows of one scenario are printed together
  std::string measure;   // "cold_rate"
  std::string unit;      // "GiB/s"
  Limit limit = Limit::kNone;
  bool omit_zeros = false;  // a row of nothing but zeros is left out

  std::string name() const { return scenario.empty() ? measure : scenario + "/" + measure; }
};

// Not thread-safe.
class Report {
 public:
  // `dirs` are the columns; the others are compared with the first.
  explicit Report(std::vector<std::string> dirs) : dirs_(std::move(dirs)) {}

  void add(const Metric& metric, size_t dir, double value);
  // An extra column that is not a directory ("recompute"); returns its index.
  size_t add_column(std::string name);
  // A sentence for the user; repeated notes appear once.
  void note(const std::string& text);
  // A raw rate for the limit column: metric raw_read_rate or raw_write_rate of the scenario beside which it was measured.
  void add_raw_rate(const std::string& workload, const std::string& scenario, size_t dir, Limit limit, double gib_s);

  // [{workload, dir, metric, unit, median, min, max, ratio_to_first_dir}]; the ratio is null where there is none.
  std::string json() const;
  std::string table() const;
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct Row {
    Metric metric;
    std::vector<std::vector<double>> samples;  // by column
  };
  Row& row(const Metric& metric);
  const Row* raw_row(const Row& of) const;
  static bool omitted(const Row& row);
  void print_row(std::string& out, const Row& row) const;

  std::vector<std::string> dirs_;
  std::vector<Row> rows_;  // in the order first added
  std::vector<std::string> notes_;
};

// Adds CPU seconds per GiB of client and daemon, and the daemon's counters, for `bytes` moved by a phase. `prefix` starts each
// measure ("cold_").
void add_costs(Report& report, Metric base, size_t dir, const std::string& prefix, const PhaseCost& cost, double bytes);

}  // namespace kvcachefs

#include "tools/load/report.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "store/base/units.h"
#include "tools/load/statistics.h"

namespace kvcachefs {
namespace {

const char* raw_measure(Limit limit) { return limit == Limit::kRawRead ? "raw_read_rate" : "raw_write_rate"; }

std::optional<double> ratio(double value, const std::vector<double>& base) {
  if (base.empty()) return std::nullopt;
  const double median = summarize(base).median;
  if (median == 0 || !std::isfinite(value / median)) return std::nullopt;
  return value / median;
}

// Formats with four significant digits, never in powers of ten for the sizes that occur.
std::string number(double value) {
  if (value == 0) return "0";
  const double size = std::abs(value);
  return fmt::format("{:.{}f}", value, size >= 1000 ? 0 : size >= 100 ? 1 : size >= 1 ? 2 : 4);
}

}  // namespace

Report::Row& Report::row(const Metric& metric) {
  auto same = [&](const Row& r) {
    return r.metric.measure == metric.measure && r.metric.scenario == metric.scenario &&
           r.metric.workload == metric.workload;
  };
  if (auto found = std::ranges::find_if(rows_, same); found != rows_.end()) return *found;
  return rows_.emplace_back(metric, std::vector<std::vector<double>>(dirs_.size()));
}

void Report::add(const Metric& metric, size_t dir, double value) { row(metric).samples.at(dir).push_back(value); }

size_t Report::add_column(std::string name) {
  dirs_.push_back(std::move(name));
  for (Row& r : rows_) r.samples.emplace_back();
  return dirs_.size() - 1;
}

void Report::note(const std::string& text) {
  if (std::ranges::find(notes_, text) == notes_.end()) notes_.push_back(text);
}

void Report::add_raw_rate(const std::string& workload, const std::string& scenario, size_t dir, Limit limit,
                          double gib_s) {
  add({workload, scenario, raw_measure(limit), "GiB/s"}, dir, gib_s);
}

const Report::Row* Report::raw_row(const Row& of) const {
  if (of.metric.limit == Limit::kNone) return nullptr;
  const auto found = std::ranges::find_if(rows_, [&](const Row& r) {
    return r.metric.measure == raw_measure(of.metric.limit) && r.metric.scenario == of.metric.scenario &&
           r.metric.workload == of.metric.workload;
  });
  return found == rows_.end() ? nullptr : &*found;
}

bool Report::omitted(const Row& row) {
  auto zeros = [](const std::vector<double>& samples) {
    return std::ranges::all_of(samples, [](double value) { return value == 0; });
  };
  return row.metric.omit_zeros && std::ranges::all_of(row.samples, zeros);
}

std::string Report::json() const {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const Row& r : rows_) {
    if (omitted(r)) continue;
    for (size_t dir = 0; dir < dirs_.size(); ++dir) {
      if (r.samples[dir].empty()) continue;
      const Summary summary = summarize(r.samples[dir]);
      nlohmann::ordered_json entry = {
          {"workload", r.metric.workload}, {"dir", dirs_[dir]},  {"metric", r.metric.name()}, {"unit", r.metric.unit},
          {"median", summary.median},      {"min", summary.min}, {"max", summary.max}};
      const auto to_first = ratio(summary.median, r.samples[0]);
      entry["ratio_to_first_dir"] = to_first ? nlohmann::ordered_json(*to_first) : nlohmann::ordered_json();
      array.push_back(std::move(entry));
    }
  }
  return array.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);  // names need not be UTF-8
}

void Report::print_row(std::string& out, const Row& r) const {
  const Row* raw = raw_row(r);
  bool first_line = true;
  for (size_t dir = 0; dir < dirs_.size(); ++dir) {
    if (r.samples[dir].empty()) continue;
    const Summary summary = summarize(r.samples[dir]);
    const std::string label = first_line ? fmt::format("{} ({})", r.metric.measure, r.metric.unit) : "";
    const std::string spread =
        summary.count > 1 ? fmt::format("{} .. {}", number(summary.min), number(summary.max)) : "";
    const auto to_first = dir == 0 ? std::nullopt : ratio(summary.median, r.samples[0]);
    const auto of_limit = raw == nullptr ? std::nullopt : ratio(summary.median, raw->samples[dir]);
    std::string line = fmt::format("  {:<44} [{}] {:>12} {:>26} {:>8} {:>8}", label, dir + 1, number(summary.median),
                                   spread, to_first ? fmt::format("{:.2f}x", *to_first) : "",
                                   of_limit ? fmt::format("{:.2f}", *of_limit) : "");
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
    first_line = false;
  }
}

std::string Report::table() const {
  std::string out;
  for (size_t dir = 0; dir < dirs_.size(); ++dir) out += fmt::format("[{}] {}\n", dir + 1, dirs_[dir]);
  out += fmt::format("\n  {:<44} dir {:>12} {:>26} {:>8} {:>8}\n", "measure (unit)", "median", "min .. max", "to [1]",
                     "of raw");
  std::vector<const Row*> todo;
  for (const Row& r : rows_) {
    if (!omitted(r)) todo.push_back(&r);
  }
  // Rows of one scenario are printed together, at the place of the first.
  while (!todo.empty()) {
    const Metric head = todo.front()->metric;
    out += fmt::format("{} {}\n", head.workload, head.scenario);
    std::erase_if(todo, [&](const Row* r) {
      if (r->metric.workload != head.workload || r->metric.scenario != head.scenario) return false;
      print_row(out, *r);
      return true;
    });
  }
  for (const std::string& text : notes_) out += "note: " + text + "\n";
  return out;
}

void add_costs(Report& report, Metric base, size_t dir, const std::string& prefix, const PhaseCost& cost,
               double bytes) {
  auto add = [&](const std::string& measure, const char* unit, double value) {
    base.measure = prefix + measure;
    base.unit = unit;
    base.limit = Limit::kNone;
    report.add(base, dir, value);
  };
  const double gib = bytes / static_cast<double>(kGiB);
  if (gib > 0) {
    add("client_cpu", "s/GiB", cost.client_cpu_s / gib);
    if (cost.daemon_cpu_s) add("daemon_cpu", "s/GiB", *cost.daemon_cpu_s / gib);
  }
  base.omit_zeros = true;
  for (const auto& [path, change] : cost.counters) {
    const bool is_bytes = path.find("bytes") != std::string::npos;
    add("status." + path, is_bytes ? "bytes" : "count", change);
  }
}

}  // namespace kvcachefs

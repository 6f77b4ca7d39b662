#include "tools/simulate/simulate_report.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvcachefs {
namespace {

std::string tokens_text(uint64_t tokens) {
  if (tokens >= 10'000'000) return fmt::format("{:.1f}M", static_cast<double>(tokens) / 1e6);
  if (tokens >= 1'000'000) return fmt::format("{:.2f}M", static_cast<double>(tokens) / 1e6);
  if (tokens >= 10'000) return fmt::format("{:.0f}K", static_cast<double>(tokens) / 1e3);
  return fmt::format("{}", tokens);
}

// Finds the result of another policy for the same trace and capacity.
const SimResult* find(const std::vector<SimRow>& rows, const SimRow& like, const std::string& policy) {
  const auto found = std::ranges::find_if(rows, [&](const SimRow& row) {
    return row.policy == policy && row.trace == like.trace && row.capacity_units == like.capacity_units;
  });
  return found == rows.end() ? nullptr : &found->result;
}

}  // namespace

std::string simulation_table(const std::vector<SimRow>& rows) {
  std::string out;
  const bool extents = std::ranges::any_of(rows, [](const SimRow& row) { return row.result.extents.written_bytes > 0; });
  const bool learned = std::ranges::any_of(rows, [](const SimRow& row) { return row.result.wrong_links > 0; });
  std::string trace;
  uint64_t capacity = 0;
  for (const SimRow& row : rows) {
    if (row.trace != trace) {
      out += fmt::format("{}{}\n{:<10} {:<14} {:>8} {:>9} {:>10} {:>9} {:>9} {:>8} {:>7}{}{}\n", out.empty() ? "" : "\n",
                         row.trace, "capacity", "policy", "blocks %", "prefix %", "hit tokens", "to lru", "of min %",
                         "ns/touch", "B/unit", extents ? "  rewritten  units/range" : "", learned ? "  wrong links" : "");
      trace = row.trace;
      capacity = 0;
    }
    const SimResult& result = row.result;
    const SimResult* lru = find(rows, row, "lru");
    const SimResult* min = find(rows, row, "min");
    const auto difference =
        lru == nullptr ? "" : fmt::format("{:+.2f}", 100 * (result.prefix_hit_ratio() - lru->prefix_hit_ratio()));
    const auto of_min = min == nullptr || min->prefix_hits == 0
                            ? ""
                            : fmt::format("{:.1f}", 100 * result.prefix_hit_ratio() / min->prefix_hit_ratio());
    out += fmt::format("{:<10} {:<14} {:>8.2f} {:>9.2f} {:>10} {:>9} {:>9}",
                       row.capacity_units == capacity ? "" : tokens_text(row.capacity_units * row.unit_tokens),
                       row.policy, 100 * result.hit_ratio(), 100 * result.prefix_hit_ratio(),
                       tokens_text(result.hit_tokens), difference, of_min);
    if (!simulated_only(row.policy)) {
      out += fmt::format(" {:>8.0f} {:>7.1f}", result.ns_per_touch, result.bytes_per_unit);
      if (extents) {
        out += fmt::format("  {:>9.3f}  {:>11.1f}", result.extents.write_amplification() - 1,
                           result.extents.units_per_range());
      }
      if (learned) out += fmt::format("  {:>10.1f}%{}", 100 * result.wrong_links, result.by_recency ? " (recency)" : "");
    }
    out += '\n';
    capacity = row.capacity_units;
    if (!result.window_ratios.empty()) {
      out += "             by parts:";
      for (const double ratio : result.window_ratios) out += fmt::format(" {:.1f}", 100 * ratio);
      out += '\n';
    }
  }
  return out;
}

std::string simulation_json(const std::vector<SimRow>& rows) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const SimRow& row : rows) {
    const SimResult& result = row.result;
    nlohmann::ordered_json entry = {
        {"trace", row.trace},
        {"policy", row.policy},
        {"capacity_tokens", row.capacity_units * row.unit_tokens},
        {"capacity_chunks", row.capacity_units},
        {"capacity_part", row.capacity_part},
        {"hit_ratio", result.hit_ratio()},
        {"prefix_hit_ratio", result.prefix_hit_ratio()},
        {"requests", result.requests},
        {"chunks", result.units},
        {"chunk_hits", result.unit_hits},
        {"prefix_hits", result.prefix_hits},
        {"tokens", result.tokens},
        {"hit_tokens", result.hit_tokens},
        {"evicted_chunks", result.evicted_units},
    };
    if (!simulated_only(row.policy)) {
      entry["ns_per_touch"] = result.ns_per_touch;
      entry["bytes_per_chunk"] = result.bytes_per_unit;
    }
    if (result.extents.written_bytes > 0) {
      entry["written_bytes"] = result.extents.written_bytes;
      entry["rewritten_bytes"] = result.extents.rewritten_bytes;
      entry["write_amplification"] = result.extents.write_amplification();
      entry["chunks_per_range"] = result.extents.units_per_range();
    }
    if (!result.window_ratios.empty()) entry["prefix_hit_ratio_by_part"] = result.window_ratios;
    array.push_back(std::move(entry));
  }
  return array.dump(2);
}

}  // namespace kvcachefs

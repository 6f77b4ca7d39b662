// The figures of a run, for people and as JSON.
#pragma once

#include <string>
#include <vector>

#include "tools/simulate/simulator.h"

namespace kvcachefs {

struct SimRow {
  std::string trace;
  std::string policy;
  uint64_t unit_tokens = 0;
  uint64_t capacity_units = 0;
  double capacity_part = 0;  // of the distinct units
  SimResult result;
};

std::string simulation_table(const std::vector<SimRow>& rows);
// [{trace, policy, capacity_tokens, hit_ratio, prefix_hit_ratio, ...}]
std::string simulation_json(const std::vector<SimRow>& rows);

}  // namespace kvcachefs

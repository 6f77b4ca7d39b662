#include "tools/load/outcome_report.h"

#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace kvcachefs {
namespace outcome_report_test {

std::map<std::string, double> medians(const Report& report) {
  std::map<std::string, double> found;
  for (const auto& entry : nlohmann::json::parse(report.json())) found[entry["metric"]] = entry["median"];
  return found;
}

TEST(ReportOutcomes, HitRatioIsOfTokens) {
  RequestOutcome half;
  half.input_tokens = 100;
  half.hit_tokens = 50;
  half.prefill_s = 0.25;
  Report report({"/d"});
  report_outcomes(report, "replay", "s", 0, std::vector{half, half}, 4096);
  EXPECT_EQ(medians(report).at("s/hit_ratio"), 50);
  EXPECT_EQ(medians(report).at("s/ttft_p50"), 250);
}

TEST(ReportOutcomes, WhatWasNotFoundAgainAndSinceWhen) {
  RequestOutcome one, other;
  one.hit_chunks = other.stored_chunks = 1;
  one.read_s = other.store_s = 1;
  one.unfound_chunks = 2;
  one.unfound_age_s = 0.5;
  other.unfound_chunks = 3;
  other.unfound_age_s = 0.25;
  Report report({"/d"});
  report_outcomes(report, "replay", "s", 0, std::vector{one, other}, 4096);
  EXPECT_EQ(medians(report).at("s/unfound"), 5);
  EXPECT_EQ(medians(report).at("s/unfound_age_max"), 0.5);
}

TEST(ReportEngines, EachHasItsOwnRequestsOnly) {
  std::vector<EngineRequest> requests(3);
  std::vector<RequestOutcome> outcomes(3);
  for (unsigned i = 0; i < 3; ++i) {
    requests[i].engine = i % 2;
    outcomes[i].input_tokens = 100;
    outcomes[i].hit_tokens = 10 * (i + 1);
    outcomes[i].prefill_s = i;
  }
  Report report({"/d"});
  report_engines(report, "replay", "s", 0, requests, outcomes, 2, 4096);
  const auto found = medians(report);
  EXPECT_EQ(found.at("s/node1/hit_tokens"), 40);
  EXPECT_EQ(found.at("s/node1/hit_ratio"), 20);
  EXPECT_EQ(found.at("s/node1/ttft_p99"), 2000);
  EXPECT_EQ(found.at("s/node2/hit_tokens"), 20);
  EXPECT_EQ(found.at("s/node2/ttft_p99"), 1000);
  EXPECT_FALSE(found.contains("s/node3/hit_tokens"));
}

}  // namespace outcome_report_test
}  // namespace kvcachefs

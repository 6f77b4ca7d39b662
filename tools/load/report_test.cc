#include "tools/load/report.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace kvcachefs {
namespace report_test {

const Metric kRate{"restore", "64K/read/1t", "cold_rate", "GiB/s", Limit::kRawRead};

TEST(Report, JsonHasTheFieldsOfEverySample) {
  Report report({"/plain", "/mount"});
  for (double value : {1.0, 3.0, 2.0}) report.add(kRate, 0, value);
  for (double value : {4.0, 5.0, 6.0}) report.add(kRate, 1, value);
  const auto json = nlohmann::json::parse(report.json());
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[1]["workload"], "restore");
  EXPECT_EQ(json[1]["dir"], "/mount");
  EXPECT_EQ(json[1]["metric"], "64K/read/1t/cold_rate");
  EXPECT_EQ(json[1]["unit"], "GiB/s");
  EXPECT_EQ(json[1]["median"], 5.0);
  EXPECT_EQ(json[1]["min"], 4.0);
  EXPECT_EQ(json[1]["max"], 6.0);
  EXPECT_EQ(json[1]["ratio_to_first_dir"], 2.5);
  EXPECT_EQ(json[0]["ratio_to_first_dir"], 1.0);
}

TEST(Report, NoRatioWhereTheFirstHasNothing) {
  Report report({"/plain", "/mount"});
  report.add({"restore", "x", "daemon_cpu", "s/GiB"}, 1, 4);
  report.add({"replay", "x", "hits", "tokens"}, 0, 0);
  report.add({"replay", "x", "hits", "tokens"}, 1, 3);
  for (const auto& entry : nlohmann::json::parse(report.json())) {
    EXPECT_TRUE(entry["ratio_to_first_dir"].is_null()) << entry;
  }
}

TEST(Report, AColumnAddedLateHasItsOwnSamples) {
  Report report({"/plain"});
  report.add(kRate, 0, 2);
  report.add(kRate, report.add_column("recompute-only"), 1);
  const auto json = nlohmann::json::parse(report.json());
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[1]["dir"], "recompute-only");
  EXPECT_EQ(json[1]["ratio_to_first_dir"], 0.5);
}

TEST(Report, TableShowsRatioLimitAndNotesOnce) {
  Report report({"/plain", "/mount"});
  report.add(kRate, 0, 1);
  report.add(kRate, 1, 1.5);
  report.add_raw_rate("restore", "64K/read/1t", 1, Limit::kRawRead, 2.0);
  report.note("said once");
  report.note("said once");
  const std::string table = report.table();
  EXPECT_NE(table.find("1.50x"), std::string::npos) << table;
  EXPECT_NE(table.find("0.75"), std::string::npos) << table;
  EXPECT_EQ(table.find("said once"), table.rfind("said once"));
}

TEST(Report, CountersCountTheRoundsInWhichTheyDidNotMove) {
  Report report({"/mount"});
  for (const double late : {0.0, 0.0, 90.0}) {
    PhaseCost cost;
    cost.counters = {{"prefetch.late_bytes", late}, {"errors.read", 0}};
    add_costs(report, {"restore", "s", "", ""}, 0, "cold_", cost, 0);
  }
  report.add({"restore", "s", "lost", "count"}, 0, 0);
  const auto json = nlohmann::json::parse(report.json());
  ASSERT_EQ(json.size(), 2u) << json;
  EXPECT_EQ(json[0]["metric"], "s/cold_status.prefetch.late_bytes");
  EXPECT_EQ(json[0]["median"], 0);
  EXPECT_EQ(json[0]["max"], 90);
  EXPECT_EQ(json[1]["metric"], "s/lost") << "only counters are left out for being zero";
  EXPECT_EQ(report.table().find("errors.read"), std::string::npos);
}

TEST(Report, NamesThatAreNotUtf8DoNotBreakJson) {
  Report report({"/d\xff"});
  report.add(kRate, 0, 1);
  EXPECT_TRUE(nlohmann::json::accept(report.json()));
}

}  // namespace report_test
}  // namespace kvcachefs

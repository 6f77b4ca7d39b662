#include "tools/replay/volume_io.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tools/load/test_mount.h"
#include "tools/replay/prefetch_report.h"

namespace kvcachefs {
namespace volume_io_test {

TEST(VolumeIo, OfAMountReadAheadCountsOnceAndPassedThroughReadsToo) {
  const StatusNumbers numbers = {
      {"reads.bytes_from_volume", 100}, {"prefetch.read_bytes", 60}, {"prefetch.kernel_bytes", 20}, {"writes.volume_bytes", 7}};
  const VolumeIo io = volume_io_of_mount(numbers, {.read_bytes = 1000, .written_bytes = 5000});
  EXPECT_EQ(io.read_bytes, 1120);
  EXPECT_EQ(io.written_bytes, 7);
}

TEST(VolumeIo, OfSeveralMountsIsTheirSum) {
  if (!TestMount::permitted()) GTEST_SKIP() << "needs root (a mount)";
  const TestMount a("ramfs"), b("ramfs");
  a.write_status(R"({"writes": {"volume_bytes": 100}})");
  b.write_status(R"({"writes": {"volume_bytes": 7}})");
  EXPECT_EQ(read_volume_io({a.path()}).written_bytes, 100);
  EXPECT_EQ(read_volume_io({a.path(), b.path(), b.path()}).written_bytes, 107);
}

TEST(PrefetchReport, SharesOfTheBytesReadAhead) {
  Report report({"/mount"});
  report_prefetch(report, {"replay", "s", "", "%"}, 0,
                  {{"prefetch.read_bytes", 100}, {"prefetch.used_bytes", 80}, {"prefetch.wasted_bytes", 15}}, 160);
  const auto json = nlohmann::json::parse(report.json());
  ASSERT_EQ(json.size(), 3u);
  EXPECT_EQ(json[0]["metric"], "s/prefetch_accuracy");
  EXPECT_EQ(json[0]["median"], 80);
  EXPECT_EQ(json[1]["median"], 15);
  EXPECT_EQ(json[2]["median"], 50);
  EXPECT_TRUE(report.notes().empty());
}

TEST(PrefetchReport, SaysWhatItDoesNotCover) {
  Report report({"/mount"});
  report_prefetch(report, {"replay", "s", "", "%"}, 0, {{"reads.passthrough_opens", 0}}, 160);
  EXPECT_TRUE(report.notes().empty());
  report_prefetch(report, {"replay", "s", "", "%"}, 0, {{"reads.passthrough_opens", 3}}, 160);
  ASSERT_EQ(report.notes().size(), 1u);
  EXPECT_NE(report.notes()[0].find("passed through"), std::string::npos);
}

}  // namespace volume_io_test
}  // namespace kvcachefs

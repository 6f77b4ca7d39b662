#include "store/base/health.h"

#include <gtest/gtest.h>

#include <thread>

namespace kvcachefs {
namespace {

Status failed(const char* message) { return fail(Code::kIo, message); }

TEST(Health, AnErrorStandsUntilTheSameWorkSucceeds) {
  Health health;
  health.start(5);
  EXPECT_EQ(health.state().reason, "");
  EXPECT_EQ(health.state().since_ns, 5);
  health.report(Health::Of::kJournal, failed("journal"), 10);
  health.report(Health::Of::kData, {}, 11);  // success of other work
  EXPECT_EQ(health.state().reason, "journal");
  EXPECT_EQ(health.state().since_ns, 10);
  health.report(Health::Of::kData, failed("data"), 12);
  EXPECT_EQ(health.state().reason, "data");  // the first kind in order
  EXPECT_EQ(health.state().since_ns, 10);    // it has failed since then
  EXPECT_EQ(health.error(Health::Of::kJournal)->message, "journal");
  health.report(Health::Of::kData, {}, 13);
  EXPECT_EQ(health.state().reason, "journal");
  health.report(Health::Of::kJournal, {}, 14);
  EXPECT_EQ(health.state().reason, "");
  EXPECT_EQ(health.state().since_ns, 14);
  EXPECT_FALSE(health.error(Health::Of::kJournal));
}

TEST(Health, ReportsFromSeveralThreads) {
  Health health;
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) health.report(Health::Of::kIndex, i % 2 == 0 ? failed("index") : Status{}, i);
  });
  for (int i = 0; i < 1000; ++i) {
    health.report(Health::Of::kData, i % 2 == 0 ? failed("data") : Status{}, i);
    const std::string reason = health.state().reason;
    EXPECT_TRUE(reason.empty() || reason == "index" || reason == "data") << reason;
  }
  other.join();
  EXPECT_EQ(health.state().reason, "");
}

}  // namespace
}  // namespace kvcachefs

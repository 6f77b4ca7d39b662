#include "store/base/health.h"

#include <gtest/gtest.h>

#include <thread>

namespace kvcachefs {
namespace health_test {

Status failed(const char* message) { return fail(Code::kIo, message); }

TEST(Health, AnErrorStandsUntilTheSameWorkSucceeds) {
  ManualClock clock(5);
  Health health(clock);
  health.start();
  EXPECT_EQ(health.state().reason, "");
  EXPECT_EQ(health.state().since_ns, 5);
  clock.advance_ns(5);
  health.report(Health::Of::kJournal, failed("journal"));
  clock.advance_ns(1);
  health.report(Health::Of::kData, {});  // success of other work
  EXPECT_EQ(health.state().reason, "journal");
  EXPECT_EQ(health.state().since_ns, 10);
  clock.advance_ns(1);
  health.report(Health::Of::kData, failed("data"));
  EXPECT_EQ(health.state().reason, "data");  // the first kind in order
  EXPECT_EQ(health.state().since_ns, 10);    // it has failed since then
  EXPECT_EQ(health.error(Health::Of::kJournal)->message, "journal");
  clock.advance_ns(1);
  health.report(Health::Of::kData, {});
  EXPECT_EQ(health.state().reason, "journal");
  clock.advance_ns(1);
  health.report(Health::Of::kJournal, {});
  EXPECT_EQ(health.state().reason, "");
  EXPECT_EQ(health.state().since_ns, 14);
  EXPECT_FALSE(health.error(Health::Of::kJournal));
}

TEST(Health, ReportsFromSeveralThreads) {
  Health health(system_clock());
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) health.report(Health::Of::kIndex, i % 2 == 0 ? failed("index") : Status{});
  });
  for (int i = 0; i < 1000; ++i) {
    health.report(Health::Of::kData, i % 2 == 0 ? failed("data") : Status{});
    const std::string reason = health.state().reason;
    EXPECT_TRUE(reason.empty() || reason == "index" || reason == "data") << reason;
  }
  other.join();
  EXPECT_EQ(health.state().reason, "");
}

}  // namespace health_test
}  // namespace kvcachefs

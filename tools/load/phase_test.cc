#include "tools/load/phase.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <fstream>

#include <gtest/gtest.h>

#include "store/base/units.h"
#include "tools/load/test_mount.h"

namespace kvcachefs {
namespace phase_test {

TEST(Phase, RunsEveryBodyAndReturnsTheFirstError) {
  std::atomic<unsigned> ran = 0;
  const auto body = [&](unsigned thread) -> Status {
    ++ran;
    return thread == 2 ? Status(fail(Code::kIo, "of thread 2")) : Status();
  };
  const auto cost = run_phase("/", 4, body);
  ASSERT_FALSE(cost);
  EXPECT_EQ(cost.error().message, "of thread 2");
  EXPECT_EQ(ran, 4u);
}

TEST(Phase, CountersOfSeveralMountsAreAddedUpEachOnce) {
  if (!TestMount::permitted()) GTEST_SKIP() << "needs root (a mount)";
  const TestMount a("ramfs"), b("ramfs");
  a.write_status(R"({"reads": {"opens": 10}})");
  b.write_status(R"({"reads": {"opens": 20}})");
  const auto cost = run_phase({a.path(), b.path(), a.path()}, 1, [&](unsigned) -> Status {
    a.write_status(R"({"reads": {"opens": 11}})");
    b.write_status(R"({"reads": {"opens": 25}})");
    return {};
  });
  ASSERT_TRUE(cost);
  EXPECT_EQ(cost->counters.at("reads.opens"), 6);
}

// Limits the address space of the process to this much more than it has now.
class SpaceLimit {
 public:
  explicit SpaceLimit(uint64_t more) {
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    ::getrlimit(RLIMIT_AS, &before_);
    const rlimit limit = {pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) + more, before_.rlim_max};
    ::setrlimit(RLIMIT_AS, &limit);
  }
  SpaceLimit(const SpaceLimit&) = delete;
  SpaceLimit& operator=(const SpaceLimit&) = delete;
  ~SpaceLimit() { ::setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_ = {};
};

TEST(Phase, ThreadsThatCannotBeStartedAreAnError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers end the process where memory is limited";
#endif
  std::atomic<unsigned> ran = 0;
  auto body = [&](unsigned) -> Status {
    ++ran;
    return {};
  };
  Result<PhaseCost> cost = PhaseCost{};
  {
    const SpaceLimit limit(64 * kMiB);  // the stacks of some threads, not of all
    cost = run_phase("/", 1000, body);
  }
  ASSERT_FALSE(cost);
  EXPECT_TRUE(cost.error().message.starts_with("cannot start 1000 threads: ")) << cost.error().message;
  EXPECT_EQ(ran, 0u);
  EXPECT_TRUE(run_phase("/", 4, body));
}

}  // namespace phase_test
}  // namespace kvcachefs

#include "store/api/probe_counts.h"

#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace kvcachefs {
namespace probe_counts_test {

using Miss = ProbeCounts::Miss;
using Window = ProbeCounts::Window;
constexpr ObjectId kDirectory = ObjectId::make(0, 1, 1);
constexpr int64_t kSecond = 1'000'000'000, kMinute = 60 * kSecond, kHour = 60 * kMinute;

class ProbeCountsTest : public ::testing::Test {
 protected:
  void probe(int hits, int never_seen, int evicted) {
    for (int i = 0; i < hits; ++i) counts_.hit();
    for (int i = 0; i < never_seen; ++i) counts_.missed(7, kDirectory, "new", Miss::kNeverSeen);
    for (int i = 0; i < evicted; ++i) counts_.missed(7, kDirectory, "gone", Miss::kEvicted);
  }
  // Sampled each second, as the store does.
  void pass(int64_t ns) {
    for (const int64_t end = now_ + ns; now_ < end; now_ += kSecond) counts_.sample(now_);
  }
  int64_t now_ = 1'000 * kSecond;
  ProbeCounts counts_{now_};
};

TEST_F(ProbeCountsTest, LookupsOfAllKindsCountOnceTheyAreJudged) {
  probe(3, 2, 1);
  EXPECT_EQ(counts_.lookups(), 5u) << "the last one may be made yet";
  counts_.stored(7, kDirectory, "gone");
  EXPECT_EQ(counts_.lookups(), 6u);
  EXPECT_EQ(counts_.totals().before_store, 1u);
}

TEST_F(ProbeCountsTest, MissesAreToldByTheirReason) {
  probe(3, 2, 1);
  counts_.missed(8, kDirectory, "bad", Miss::kQuarantined);
  const ProbeCounts::Totals totals = counts_.totals();
  EXPECT_EQ(totals.hits, 3u);
  EXPECT_EQ(totals.never_seen, 2u);
  EXPECT_EQ(totals.evicted, 1u);
  EXPECT_EQ(totals.quarantined, 1u);
  EXPECT_EQ(totals.misses(), 4u);
  EXPECT_DOUBLE_EQ(*totals.hit_ratio(), 3.0 / 7);
  EXPECT_DOUBLE_EQ(*totals.evicted_ratio(), 1.0 / 4);
  EXPECT_FALSE(ProbeCounts::Totals().hit_ratio());
}

TEST_F(ProbeCountsTest, ANameThatIsMadeRightAfterwardsWasNotProbedFor) {
  counts_.missed(1, kDirectory, "a", Miss::kNeverSeen);      // a probe
  counts_.missed(1, kDirectory, "a.tmp", Miss::kNeverSeen);  // then what the kernel asks before a create and a rename
  counts_.stored(1, kDirectory, "a.tmp");
  counts_.missed(1, kDirectory, "a", Miss::kNeverSeen);
  counts_.stored(1, kDirectory, "a");
  EXPECT_EQ(counts_.totals().never_seen, 1u);
  EXPECT_EQ(counts_.totals().before_store, 2u);
  counts_.missed(1, kDirectory, "b", Miss::kNeverSeen);
  counts_.stored(2, kDirectory, "b");  // by another thread: the first one did probe
  counts_.stored(1, kDirectory, "c");
  EXPECT_EQ(counts_.totals().never_seen, 2u);
  EXPECT_EQ(counts_.totals().before_store, 2u);
}

TEST_F(ProbeCountsTest, WindowsForgetWhatIsOlder) {
  probe(10, 0, 0);
  EXPECT_EQ(counts_.over(Window::kMinute, now_).hits, 10u) << "since the mount";
  pass(2 * kMinute);
  probe(0, 3, 1);
  EXPECT_EQ(counts_.over(Window::kMinute, now_).hits, 0u);
  EXPECT_EQ(counts_.over(Window::kMinute, now_).misses(), 4u);
  EXPECT_EQ(counts_.over(Window::kHour, now_).hits, 10u);
  pass(2 * kHour);
  EXPECT_FALSE(counts_.over(Window::kHour, now_).hit_ratio());
  EXPECT_DOUBLE_EQ(*counts_.over(Window::kDay, now_).hit_ratio(), 10.0 / 14);
  EXPECT_DOUBLE_EQ(*counts_.over(Window::kDay, now_).evicted_ratio(), 0.25);
  pass(26 * kHour);
  EXPECT_EQ(counts_.over(Window::kDay, now_).misses(), 0u);
}

TEST_F(ProbeCountsTest, AWindowIsAsLongAsItSays) {
  for (int second = 0; second < 600; ++second) {
    probe(1, 0, 0);
    pass(kSecond);
  }
  EXPECT_NEAR(static_cast<double>(counts_.over(Window::kMinute, now_).hits), 60, 2);
  EXPECT_NEAR(static_cast<double>(counts_.over(Window::kHour, now_).hits), 600, 2);
}

TEST_F(ProbeCountsTest, NothingIsLostBetweenThreads) {
  constexpr int kThreads = 4, kProbes = 20'000;
  std::vector<std::thread> threads;
  for (uint32_t id = 0; id < kThreads; ++id)
    threads.emplace_back([this, id] {
      for (int i = 0; i < kProbes; ++i) {
        const std::string name = std::to_string(i);
        counts_.missed(id, kDirectory, name, Miss::kEvicted);
        if (i % 2 == 0) counts_.stored(id, kDirectory, name);
        if (i % 1000 == 0) counts_.sample(static_cast<int64_t>(i) * kSecond);
      }
    });
  for (std::thread& thread : threads) thread.join();
  const ProbeCounts::Totals totals = counts_.totals();
  EXPECT_EQ(totals.evicted + totals.before_store, static_cast<uint64_t>(kThreads * kProbes));
}

}  // namespace probe_counts_test
}  // namespace kvcachefs

#include "store/commit/unsaved_read_times.h"

#include <gtest/gtest.h>

#include "store/base/units.h"

namespace kvcachefs {
namespace unsaved_read_times_test {

TEST(UnsavedReadTimes, ACommitTakesSoManyThatTheirRowsFitIntoMemory) {
  UnsavedReadTimes times;
  for (uint64_t number = 1; number <= 3; ++number) times.note(ObjectId{number}, 10, 5 * kMiB);
  for (uint64_t number = 4; number <= 20'000; ++number) times.note(ObjectId{number}, 10, 0);
  EXPECT_EQ(times.take().atimes_ns.size(), 2u) << "10 MiB of attributes";
  EXPECT_EQ(times.take().atimes_ns.size(), UnsavedReadTimes::kMostOfCommit);
  EXPECT_EQ(times.take().atimes_ns.size(), UnsavedReadTimes::kMostOfCommit);
  EXPECT_EQ(times.take().atimes_ns.size(), 20'000 - 2 - 2 * UnsavedReadTimes::kMostOfCommit);
  EXPECT_FALSE(times.claim_commit(UnsavedReadTimes::kWaitNs));
}

TEST(UnsavedReadTimes, TimesThatWereNotJournaledGoNextUnlessThereAreNewerOnes) {
  UnsavedReadTimes times;
  times.note(ObjectId{1}, 10, 0);
  times.note(ObjectId{2}, 10, 0);
  const TouchRecord taken = times.take();
  times.note(ObjectId{2}, 20, 0);
  times.put_back(taken);
  const TouchRecord again = times.take();
  ASSERT_EQ(again.atimes_ns.size(), 2u);
  EXPECT_EQ(again.atimes_ns[0].second, 10);
  EXPECT_EQ(again.atimes_ns[1].second, 20);
}

}  // namespace unsaved_read_times_test
}  // namespace kvcachefs

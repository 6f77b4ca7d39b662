#include <gtest/gtest.h>

#include <thread>

#include "store/base/units.h"
#include "store/writeback/urgent_queue.h"
#include "store/writeback/volume_refusals.h"

namespace kvcachefs {
namespace writeback_test {

constexpr int64_t kSecondNs = 1'000'000'000;

TEST(UrgentQueue, ADeferredCallComesBackWhenASealEnds) {
  UrgentQueue queue;
  queue.add({.object = nullptr, .content_version = 1, .sync = false, .done = {}});
  std::vector<UrgentItem> items = queue.take();
  ASSERT_EQ(items.size(), 1u);
  queue.defer(std::move(items.front()));
  EXPECT_TRUE(queue.take().empty());
  queue.requeue_deferred();
  items = queue.take();
  ASSERT_EQ(items.size(), 1u);
  EXPECT_EQ(items.front().content_version, 1u);
}

TEST(UrgentQueue, AStoppedQueueIsEmptiedFirst) {
  UrgentQueue queue;
  queue.add({});
  queue.stop();
  EXPECT_TRUE(queue.wait());
  EXPECT_EQ(queue.take().size(), 1u);
  EXPECT_FALSE(queue.wait());
}

TEST(UrgentQueue, WakesTheLane) {
  UrgentQueue queue;
  size_t taken = 0;
  std::thread lane([&] {
    while (queue.wait()) taken += queue.take().size();
  });
  for (int i = 0; i < 1000; ++i) queue.add({});
  queue.stop();
  lane.join();
  EXPECT_EQ(taken, 1000u);
}

TEST(VolumeRefusals, PausesGrowAndWaitersHearOfWhatLasts) {
  ManualClock clock(kSecondNs);
  Space space;
  space.configure(kMiB, 0);
  VolumeRefusals refusals(clock, space);
  EXPECT_TRUE(refusals.may_try());
  EXPECT_FALSE(refusals.succeeded());
  refusals.failed(Error{Code::kNoSpace, 0, "no inodes"});
  EXPECT_FALSE(refusals.may_try());
  EXPECT_TRUE(refusals.is_failing());
  EXPECT_EQ(refusals.last()->message, "no inodes");
  EXPECT_EQ(space.room_bytes(), 0u) << "what it does not take is not accepted";
  EXPECT_FALSE(refusals.lasting());
  clock.advance_ns(2 * kSecondNs);
  EXPECT_TRUE(refusals.may_try());
  refusals.failed(Error{Code::kNoSpace, 0, "no inodes"});
  EXPECT_EQ(refusals.lasting()->message, "no inodes");
  EXPECT_TRUE(refusals.succeeded());
  EXPECT_FALSE(refusals.last());
  EXPECT_GT(space.room_bytes(), 0u);
  EXPECT_FALSE(refusals.lasting());
}

// A file system at its quota gives space back half a minute late, and bodies would take it.
TEST(VolumeRefusals, TheJournalGoesFirstWhereItLacksRoomForAWhile) {
  ManualClock clock(kSecondNs);
  Space space;
  VolumeRefusals refusals(clock, space);
  EXPECT_FALSE(refusals.journal_lacks_room());
  refusals.journal_ended(fail(Code::kIo, "device"));
  EXPECT_FALSE(refusals.journal_lacks_room()) << "that is another matter";
  EXPECT_FALSE(refusals.may_try_journal());
  EXPECT_TRUE(refusals.may_try()) << "bodies are written elsewhere";
  refusals.try_soon();
  EXPECT_TRUE(refusals.may_try_journal());
  refusals.journal_ended(fail(Code::kNoSpace, "quota"));
  refusals.try_soon();
  EXPECT_TRUE(refusals.journal_lacks_room());
  clock.advance_ns(30 * kSecondNs);
  refusals.journal_ended(fail(Code::kNoSpace, "quota"));
  EXPECT_TRUE(refusals.journal_lacks_room());
  clock.advance_ns(6 * kSecondNs);
  EXPECT_FALSE(refusals.journal_lacks_room()) << "bodies are tried again, though the next batch fails as well";
  refusals.journal_ended(fail(Code::kNoSpace, "quota"));
  EXPECT_TRUE(refusals.journal_lacks_room());
  refusals.journal_ended({});
  EXPECT_FALSE(refusals.journal_lacks_room());
}

TEST(VolumeRefusals, WhatMayPassByItselfIsToldLater) {
  ManualClock clock(kSecondNs);
  Space space;
  space.configure(kMiB, 0);
  VolumeRefusals refusals(clock, space);
  refusals.failed(Error{Code::kIo, 5, "device"});
  clock.advance_ns(2 * kSecondNs);
  EXPECT_FALSE(refusals.lasting());
  clock.advance_ns(9 * kSecondNs);
  EXPECT_TRUE(refusals.lasting());
}

}  // namespace writeback_test
}  // namespace kvcachefs

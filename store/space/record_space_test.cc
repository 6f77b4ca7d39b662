#include "store/space/record_space.h"

#include <gtest/gtest.h>

#include "store/base/units.h"

namespace kvcachefs {
namespace record_space_test {

constexpr uint64_t kLimit = 256 * kMiB, kMemory = 16 * kMiB;

class RecordSpaceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    space_.configure(kLimit, 0);
    records_.measured(at_);
  }
  uint64_t room() const { return space_.room_bytes(); }
  void append(uint64_t bytes, uint64_t records) { records_.appended(appended_ += bytes, bytes, records); }

  Space space_;
  RecordSpace records_{space_, kMemory};
  RecordSpace::Measured at_{.index_bytes = 64 * kKiB};
  uint64_t appended_ = 0;
};

TEST_F(RecordSpaceTest, WhatIsAcceptedIsSetAsideBeforeItIsWritten) {
  const uint64_t before = room();
  records_.accept(8 * kMiB);
  EXPECT_LE(room(), before - 3 * 8 * kMiB) << "in the journal, in the next checkpoint, in the index";
  const uint64_t set_aside = before - room(), taken = records_.take();
  append(8 * kMiB, 100);
  records_.settle(taken, /*journaled=*/true);
  EXPECT_GE(before - room(), set_aside) << "not less once it is there";
  EXPECT_LE(before - room(), set_aside + 2 * kMiB);
  EXPECT_EQ(space_.physical_bytes(), 8 * kMiB + at_.index_bytes);
}

TEST_F(RecordSpaceTest, WhatCouldNotBeJournaledIsStillAccepted) {
  records_.accept(kMiB);
  const uint64_t taken = records_.take();
  EXPECT_EQ(taken, kMiB);
  records_.settle(taken, /*journaled=*/false);
  EXPECT_EQ(records_.accepted_bytes(), kMiB);
  EXPECT_EQ(records_.take(), kMiB);
}

TEST_F(RecordSpaceTest, AttributesCountUntilTheyAreJournaledOrTheirObjectIsGone) {
  constexpr uint64_t kMost = RecordSpace::kMostXattrBytes;
  UnjournaledXattrs first;
  {
    UnjournaledXattrs second;
    records_.keep_xattrs(first, kMost / 2);
    records_.keep_xattrs(second, 1);
    records_.keep_xattrs(second, kMost / 2 - 100);  // of the same object: its new total
    EXPECT_TRUE(records_.has_room_for_xattrs(100));
    EXPECT_FALSE(records_.has_room_for_xattrs(101));
  }
  EXPECT_TRUE(records_.has_room_for_xattrs(kMost / 2));
  EXPECT_FALSE(records_.has_room_for_xattrs(kMost / 2 + 1));
  first.journaled();
  first.journaled();
  EXPECT_TRUE(records_.has_room_for_xattrs(kMost));
}

TEST_F(RecordSpaceTest, WhatIsAppendedWhileItIsMeasuredCountsOnce) {
  append(kMiB, 1);
  at_.appended_bytes = appended_;
  at_.journal_bytes = kMiB;
  append(2 * kMiB, 1);  // after the journals were measured
  records_.measured(at_);
  EXPECT_EQ(space_.physical_bytes(), 3 * kMiB + at_.index_bytes);
  at_.appended_bytes = at_.journal_bytes = appended_ + kMiB;  // the other way round: it is in the file, and not told yet
  records_.measured(at_);
  EXPECT_EQ(space_.physical_bytes(), 4 * kMiB + at_.index_bytes);
  append(kMiB, 1);
  EXPECT_EQ(space_.physical_bytes(), 4 * kMiB + at_.index_bytes);
}

TEST_F(RecordSpaceTest, WhatComesWithABodyIsSetAsideAndNotWaitedFor) {
  const uint64_t before = room();
  records_.accept(64 * kMiB);
  const uint64_t taken = records_.take();
  records_.await_body(64 * kMiB);
  records_.settle(taken, /*journaled=*/true);  // with other records
  EXPECT_LE(room(), before - 3 * 64 * kMiB);
  EXPECT_FALSE(records_.crowded());
  records_.body_came(64 * kMiB);
  EXPECT_EQ(room(), before);
}

TEST_F(RecordSpaceTest, AnIndexElsewhereTakesNothingAndTellsHowLongACheckpointGets) {
  at_ = {.checkpoint_bytes = 8 * kMiB, .index_bytes = 6 * kMiB, .index_is_elsewhere = true};
  records_.measured(at_);
  EXPECT_EQ(space_.physical_bytes(), at_.checkpoint_bytes);
  EXPECT_EQ(room(), kLimit - records_.most_journal_bytes() - at_.checkpoint_bytes - at_.index_bytes);
  records_.accept(kMiB);
  EXPECT_EQ(room(), kLimit - records_.most_journal_bytes() - at_.checkpoint_bytes - at_.index_bytes - kMiB) << "of the checkpoint alone: journals are shorter yet";
}

TEST_F(RecordSpaceTest, WhatIsKeptOfOtherNodesCountsAsItIsToldWhateverIsMeasured) {
  const uint64_t there = space_.physical_bytes(), before = room();
  records_.set_peers(kMiB, 3 * kMiB);
  EXPECT_EQ(space_.physical_bytes(), there + kMiB);
  EXPECT_EQ(room(), before - kMiB) << "what is to come waits for its claim";
  EXPECT_EQ(space_.wanted_bytes(), 3 * kMiB);
  records_.measured(at_);
  EXPECT_EQ(room(), before - kMiB);
  records_.set_peers(4 * kMiB, 0);
  EXPECT_EQ(space_.physical_bytes(), there + 4 * kMiB);
  EXPECT_EQ(room(), before - 4 * kMiB);
  records_.set_peers(0, 0);
  EXPECT_EQ(space_.physical_bytes(), there) << "less of it, too";
  EXPECT_EQ(room(), before);
}

TEST_F(RecordSpaceTest, JournalsUpToACheckpointTakeNothingMore) {
  const uint64_t before = room();
  for (uint64_t bytes = 0; bytes < records_.most_journal_bytes(); bytes += 64 * kKiB) {
    at_.journal_bytes = bytes;
    records_.measured(at_);
    EXPECT_GE(room() + at_.index_bytes, before) << "who removes finds room for the record";
  }
  EXPECT_FALSE(records_.wants_checkpoint());
  at_.journal_bytes = records_.most_journal_bytes() + 1;
  records_.measured(at_);
  EXPECT_TRUE(records_.wants_checkpoint());
  EXPECT_FALSE(records_.crowded());
  at_.journal_bytes = 2 * records_.most_journal_bytes() + 1;
  records_.measured(at_);
  EXPECT_TRUE(records_.crowded());
}

TEST_F(RecordSpaceTest, TooMuchThatWaitsForTheIndexIsCrowdedUntilItIsCommitted) {
  space_.configure(64 * 1024 * kMiB, 0);  // journals may get longer than this
  append(9 * kMiB, 1);
  EXPECT_TRUE(records_.wants_index_commit());
  EXPECT_FALSE(records_.crowded());
  records_.index_commit_begins();
  append(8 * kMiB, 1);
  EXPECT_TRUE(records_.crowded());
  EXPECT_FALSE(records_.overcrowded());
  at_.journal_bytes = 0;  // a checkpoint
  records_.measured(at_);
  records_.index_committed();
  EXPECT_FALSE(records_.crowded());
  EXPECT_FALSE(records_.wants_index_commit());
}

TEST_F(RecordSpaceTest, WhatTheIndexTookCountsBeforeItIsMeasured) {
  const uint64_t before = room();
  append(8 * kMiB, 100);
  const uint64_t with_overlay = before - room();
  records_.index_commit_begins();
  records_.index_committed();
  EXPECT_GE(before - room() + 2 * kMiB, with_overlay) << "the rows have moved from the overlay to the file";
}

TEST_F(RecordSpaceTest, WhatEachCommitOfTheIndexWritesAnewIsSetAside) {
  const uint64_t before = room();
  records_.set_notes(300 * kKiB);
  EXPECT_EQ(room(), before - 300 * kKiB);
  records_.index_commit_begins();
  records_.index_committed();
  records_.measured(at_);
  EXPECT_EQ(room(), before - 300 * kKiB) << "for the next commit";
  records_.set_notes(0);
  EXPECT_EQ(room(), before);
  at_.index_is_elsewhere = true;
  records_.measured(at_);
  const uint64_t elsewhere = room();
  records_.set_notes(300 * kKiB);
  EXPECT_EQ(room(), elsewhere);
}

// What is not written yet counts several times: with much memory it would displace what a small volume holds.
TEST_F(RecordSpaceTest, OfASmallCapacityLessIsUnwritten) {
  for (const uint64_t capacity : {64 * kMiB, 64 * kGiB}) {
    const bool is_small = capacity == 64 * kMiB;
    space_.configure(capacity, 0);
    RecordSpace records(space_, kGiB);
    records.measured(at_);
    records.accept(3 * kMiB);
    EXPECT_EQ(records.crowded(), is_small) << "waits for the journal";
    records.settle(records.take(), /*journaled=*/true);
    EXPECT_FALSE(records.crowded());
    records.appended(5 * kMiB, 5 * kMiB, 1);
    EXPECT_EQ(records.wants_index_commit(), is_small);
    at_.appended_bytes = 5 * kMiB;  // a checkpoint has taken the place of the journals
    records.measured(at_);
    EXPECT_EQ(records.crowded(), is_small) << "waits for the index";
    records.index_commit_begins();
    records.index_committed();
    EXPECT_FALSE(records.crowded());
    at_.appended_bytes = 0;
  }
}

TEST_F(RecordSpaceTest, TheIndexHasItsPartWithWhatIsOnItsWayThere) {
  constexpr uint64_t kPart = kLimit / RecordSpace::kIndexPart;
  at_.index_bytes = kPart - 3 * kMiB;
  records_.measured(at_);
  append(kMiB, 1);
  records_.accept(kMiB);
  records_.await_body(kMiB);
  EXPECT_FALSE(records_.index_has_its_part());
  records_.accept(1);
  EXPECT_TRUE(records_.index_has_its_part());
  records_.body_came(kMiB);
  EXPECT_FALSE(records_.index_has_its_part()) << "the file was removed";
  at_.index_bytes = kPart;
  records_.measured(at_);
  EXPECT_TRUE(records_.index_has_its_part());
  at_.files_bytes = 4 * kMiB;
  records_.measured(at_);
  EXPECT_FALSE(records_.index_has_its_part()) << "files can be evicted";
  at_.files_bytes = 0;
  at_.index_is_elsewhere = true;
  records_.measured(at_);
  EXPECT_FALSE(records_.index_has_its_part());
  at_.index_is_elsewhere = false;
  space_.configure(2 * kLimit, 0);
  records_.measured(at_);
  EXPECT_FALSE(records_.index_has_its_part());
}

TEST_F(RecordSpaceTest, NamesWithoutABodyHaveTheSamePart) {
  constexpr uint64_t kPart = kLimit / RecordSpace::kIndexPart;
  at_.bodiless_bytes = kPart;
  records_.measured(at_);
  EXPECT_FALSE(records_.bodiless_have_their_part());
  at_.bodiless_bytes += 1024;
  records_.measured(at_);
  EXPECT_TRUE(records_.bodiless_have_their_part());
  at_.index_is_elsewhere = true;
  records_.measured(at_);
  EXPECT_FALSE(records_.bodiless_have_their_part());
}

TEST_F(RecordSpaceTest, UnusedPagesOfTheIndexAreRoomInItsPart) {
  at_.index_bytes = kLimit / RecordSpace::kIndexPart + 3 * kMiB;
  records_.measured(at_);
  EXPECT_TRUE(records_.index_has_its_part());
  at_.index_unused_bytes = 3 * kMiB;
  records_.measured(at_);
  EXPECT_FALSE(records_.index_has_its_part());
  records_.accept(1);
  EXPECT_TRUE(records_.index_has_its_part());
}

TEST_F(RecordSpaceTest, APartIsMeasuredAnewOnceSomethingWasRemovedOrIfItIsOnlyEstimated) {
  constexpr uint64_t kPart = kLimit / RecordSpace::kIndexPart;
  const auto commit = [this] {
    records_.index_commit_begins();
    records_.index_committed();
    records_.measured(at_);
  };
  at_.bodiless_bytes = kPart + 1;
  commit();
  EXPECT_FALSE(records_.is_to_be_measured(Growth::kBodiless));
  space_.hope();
  EXPECT_FALSE(records_.is_to_be_measured(Growth::kBodiless)) << "evictions are no reason";
  records_.note_shrunk();
  EXPECT_TRUE(records_.is_to_be_measured(Growth::kBodiless));
  EXPECT_TRUE(records_.is_to_be_measured(Growth::kLinks));
  EXPECT_FALSE(records_.is_to_be_measured(Growth::kXattrs)) << "no concern of these";
  EXPECT_FALSE(records_.is_to_be_measured(Growth::kFiles));
  EXPECT_FALSE(records_.is_to_be_measured(Growth::kNone));
  records_.measured(at_);
  EXPECT_TRUE(records_.is_to_be_measured(Growth::kBodiless)) << "without a commit of the index";
  const uint64_t measurings = records_.measurings();
  records_.index_commit_begins();
  records_.measured(at_);
  EXPECT_TRUE(records_.is_to_be_measured(Growth::kBodiless)) << "the commit failed";
  EXPECT_EQ(records_.measurings(), measurings);
  records_.index_commit_begins();
  records_.note_shrunk();
  records_.index_committed();
  records_.measured(at_);
  EXPECT_TRUE(records_.is_to_be_measured(Growth::kBodiless)) << "the commit may lack what was removed meanwhile";
  commit();
  EXPECT_FALSE(records_.is_to_be_measured(Growth::kBodiless));
  at_.bodiless_bytes = 0;
  at_.index_bytes = kPart - 1;
  commit();
  records_.await_body(1);
  EXPECT_FALSE(records_.is_to_be_measured(Growth::kXattrs)) << "there is room";
  records_.accept(1);
  EXPECT_TRUE(records_.is_to_be_measured(Growth::kXattrs)) << "the same value may have been set twice";
  EXPECT_TRUE(records_.is_to_be_measured(Growth::kLinks));
  EXPECT_FALSE(records_.is_to_be_measured(Growth::kBodiless));
  records_.await_body(1);
  EXPECT_FALSE(records_.is_to_be_measured(Growth::kXattrs)) << "no commit has that body";
}

TEST_F(RecordSpaceTest, WhoWaitsIsRunOnceSomethingWasWritten) {
  int run = 0;
  records_.accept(64 * kMiB);
  ASSERT_TRUE(records_.crowded());
  records_.wait([&] { ++run; });
  EXPECT_TRUE(records_.take_waiting().empty());
  records_.settle(records_.take(), /*journaled=*/false);
  for (auto& retry : records_.take_waiting()) retry();
  EXPECT_EQ(run, 1) << "it hears that nothing can be written";
  records_.wait([&] { ++run; });
  EXPECT_TRUE(records_.take_waiting().empty());
  records_.settle(records_.take(), /*journaled=*/true);
  for (auto& retry : records_.take_waiting()) retry();
  EXPECT_EQ(run, 2);
  records_.wait([&] { ++run; });
  EXPECT_EQ(records_.take_waiting().size(), 1u) << "all was written between its look and its wait";
  records_.accept(64 * kMiB);
  records_.wait([&] { ++run; });
  EXPECT_EQ(records_.take_waiting(/*all=*/true).size(), 1u);
}

}  // namespace record_space_test
}  // namespace kvcachefs

#include "store/peers/directory_classes.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvcachefs {
namespace directory_classes_test {

using Ids = std::vector<ObjectId>;
constexpr ObjectId own(uint64_t number) { return ObjectId::make(0, 1, number); }
constexpr ObjectId theirs(uint64_t number) { return ObjectId::make(2, 1, number); }

TEST(DirectoryClasses, TheIdStaysWhileAMemberDoes) {
  DirectoryClasses classes;
  EXPECT_EQ(classes.note(kRootId, "a", {theirs(5)}, 1), theirs(5));
  EXPECT_EQ(classes.note(kRootId, "a", {own(7), theirs(5)}, 2), theirs(5));
  EXPECT_EQ(classes.note(kRootId, "a", {own(7)}, 3), theirs(5)) << "the first one left, the directory is the same";
  const auto known = classes.find(theirs(5));
  ASSERT_TRUE(known);
  EXPECT_EQ(known->members, Ids{own(7)});
  EXPECT_EQ(known->as_of, 3u);
  EXPECT_FALSE(classes.find(own(7)));
}

TEST(DirectoryClasses, AnotherDirectoryOfThatPathHasAnotherId) {
  DirectoryClasses classes;
  classes.note(kRootId, "a", {own(7)}, 1);
  EXPECT_EQ(classes.id_of(kRootId, "a", {own(8)}), own(8));
  EXPECT_EQ(classes.note(kRootId, "a", {own(8)}, 2), own(8));
  EXPECT_FALSE(classes.find(own(7)));
  EXPECT_EQ(classes.count(), 1u);
}

TEST(DirectoryClasses, NoTwoGoByOneId) {
  DirectoryClasses classes;
  classes.note(kRootId, "a", {own(7), theirs(5)}, 1);
  classes.note(kRootId, "a", {theirs(5)}, 2);  // still own(7), though that was moved to:
  const ObjectId moved = classes.note(kRootId, "b", {own(7)}, 2);
  EXPECT_EQ(moved.node_ordinal(), kClassOrdinal);
  EXPECT_EQ(classes.find(moved)->members, Ids{own(7)});
  EXPECT_EQ(classes.find(own(7))->name, "a");
  EXPECT_EQ(classes.note(kRootId, "b", {own(7)}, 3), moved);
  EXPECT_NE(classes.note(kRootId, "c", {own(7)}, 3), moved);
}

TEST(DirectoryClasses, AnIdThatOneGoesByIsNotGivenToAnotherIfThereIsAChoice) {
  DirectoryClasses classes;
  classes.note(kRootId, "a", {own(7), theirs(5)}, 1);  // goes by own(7)
  EXPECT_EQ(classes.id_of(kRootId, "b", {own(7), theirs(6)}), theirs(6));
  EXPECT_EQ(classes.note(kRootId, "b", {own(7), theirs(6)}, 2), theirs(6));
}

TEST(DirectoryClasses, WhenItsMembersWereWorkedOutIsTold) {
  DirectoryClasses classes;
  classes.note(kRootId, "a", {own(7)}, 4);
  EXPECT_EQ(classes.find_as_of(kRootId, "a", 4), own(7));
  EXPECT_FALSE(classes.find_as_of(kRootId, "a", 5));
  EXPECT_FALSE(classes.find_as_of(kRootId, "b", 4));
  EXPECT_FALSE(classes.find_as_of(own(7), "a", 4));
}

TEST(DirectoryClasses, TheLeastUsedGoFirst) {
  DirectoryClasses classes(3);
  for (uint64_t number = 1; number <= 3; ++number) classes.note(kRootId, std::to_string(number), {own(number)}, 1);
  EXPECT_TRUE(classes.find(own(1)));
  classes.note(kRootId, "4", {own(4)}, 1);
  EXPECT_FALSE(classes.find(own(2)));
  EXPECT_TRUE(classes.find(own(1)));
  EXPECT_EQ(classes.count(), 3u);
}

TEST(DirectoryClasses, WhatIsHeldOrHasDirectoriesBelowStays) {
  DirectoryClasses classes(3);
  classes.note(kRootId, "a", {own(1)}, 1);
  classes.note(own(1), "b", {own(2)}, 1);
  classes.pin(own(2));
  for (uint64_t number = 10; number < 30; ++number) classes.note(kRootId, std::to_string(number), {own(number)}, 1);
  EXPECT_EQ(classes.count(), 3u);
  EXPECT_TRUE(classes.find(own(1)));
  EXPECT_TRUE(classes.find(own(2)));
  classes.unpin(own(2));
  for (uint64_t number = 30; number < 50; ++number) classes.note(kRootId, std::to_string(number), {own(number)}, 1);
  EXPECT_FALSE(classes.find(own(2)));
  EXPECT_FALSE(classes.find(own(1)));
  // More is held than there is room for: nothing is lost by it.
  for (uint64_t number = 60; number < 70; ++number) classes.hold(kRootId, std::to_string(number), own(number), own(number));
  for (uint64_t number = 60; number < 70; ++number) EXPECT_TRUE(classes.find(own(number))) << number;
}

TEST(DirectoryClasses, OneThatWasJustMadeIsHeldUntilTheIndexHasIt) {
  DirectoryClasses classes(1);
  classes.hold(kRootId, "a", own(3), own(3));
  EXPECT_EQ(classes.find(own(3))->held, own(3));
  EXPECT_FALSE(classes.find_as_of(kRootId, "a", 1)) << "others may have it as well";
  classes.note(kRootId, "a", {own(3), theirs(4)}, 1);
  classes.hold(kRootId, "moved", own(3), own(3));
  EXPECT_EQ(classes.find(own(3))->name, "moved");
  classes.release(own(3));
  EXPECT_FALSE(classes.find(own(3))->held.valid());
  classes.note(kRootId, "b", {own(5)}, 1);
  EXPECT_FALSE(classes.find(own(3)));
}

}  // namespace directory_classes_test
}  // namespace kvcachefs

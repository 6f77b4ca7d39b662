#include "store/tree/lost_versions.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

namespace kvcachefs {
namespace lost_versions_test {

constexpr ObjectId kParent{1};

ObjectId id_of(uint64_t number) { return ObjectId::make(0, 1, number); }

LostVersions::Lost version(uint64_t number, uint64_t bytes, bool only_in_ram = false, int64_t until_ns = 100) {
  return {.id = id_of(number), .object = std::make_shared<Object>(id_of(number), Attributes{}), .parent = kParent, .name = "x.tmp", .bytes = bytes, .only_in_ram = only_in_ram, .until_ns = until_ns};
}

std::optional<ObjectId> id_in(const std::optional<LostVersions::Lost>& lost) { return lost ? std::optional(lost->object->id) : std::nullopt; }

TEST(LostVersions, BeyondTheBoundTheOldestGo) {
  LostVersions lost;
  for (uint64_t i = 1; i <= 3; ++i) lost.add(version(i, 10));
  EXPECT_FALSE(lost.take_excess(30, 0));
  EXPECT_EQ(id_in(lost.take_excess(20, 0)), id_of(1));
  EXPECT_FALSE(lost.take_excess(20, 0));
  lost.clear();
  lost.add(version(4, 20));
  EXPECT_FALSE(lost.take_excess(20, 0)) << "nothing of those that were cleared counts";
}

TEST(LostVersions, WhatIsInRamAloneHasItsOwnBound) {
  LostVersions lost;
  lost.add(version(1, 100));
  lost.add(version(2, 10, true));
  lost.add(version(3, 10, true));
  EXPECT_FALSE(lost.take_excess(200, 20));
  EXPECT_EQ(id_in(lost.take_excess(200, 10)), id_of(2)) << "the older one of those";
  EXPECT_FALSE(lost.take_excess(200, 10));
  EXPECT_TRUE(lost.has(id_of(1)));
}

TEST(LostVersions, OneThatIsBeingRenamedDoesNotGo) {
  LostVersions lost;
  for (uint64_t i = 1; i <= 2; ++i) lost.add(version(i, 10));
  lost.hold(id_of(1));
  EXPECT_EQ(id_in(lost.take_excess(5, 0)), id_of(2));
  EXPECT_FALSE(lost.take_excess(5, 0));
  EXPECT_TRUE(lost.has(id_of(1)));
  lost.hold({});
  EXPECT_EQ(id_in(lost.take_excess(5, 0)), id_of(1));
}

TEST(LostVersions, OfOneWhoseBytesWereGivenUpItsWriterStaysKnown) {
  LostVersions lost;
  for (uint64_t i = 1; i <= 2; ++i) lost.add(version(i, 10));
  lost.give_up(*lost.take_excess(10, 0));
  EXPECT_FALSE(lost.take_excess(10, 0)) << "its bytes do not count any more";
  EXPECT_FALSE(lost.has(id_of(1)));
  EXPECT_TRUE(lost.has(id_of(2)));
  const auto left = lost.of(kParent, "x.tmp");
  ASSERT_EQ(left.size(), 2U);
  EXPECT_EQ(left[0]->id, id_of(2)) << "the newest first";
  EXPECT_EQ(left[1]->id, id_of(1));
  EXPECT_FALSE(left[1]->object);
  EXPECT_EQ(lost.of_writer(0).size(), 2U);
  EXPECT_TRUE(lost.of(kParent, "x.tm").empty());
  lost.give_up(*lost.take(id_of(1)));
  EXPECT_EQ(lost.of(kParent, "x.tmp").size(), 1U) << "nothing is left of it";
  EXPECT_TRUE(lost.take_over(100));
  EXPECT_TRUE(lost.empty());
  EXPECT_FALSE(lost.has_name(kParent, "x.tmp"));
}

TEST(LostVersions, AreBoundedInNumberWithThoseOfWhichTheBytesWereGivenUp) {
  LostVersions lost;
  for (uint64_t i = 1; i <= 1500; ++i) {
    lost.add(version(i, 10));
    while (auto oldest = lost.take_excess(100, 0)) lost.give_up(*std::move(oldest));
  }
  EXPECT_EQ(lost.of(kParent, "x.tmp").size(), 1024U);
  EXPECT_TRUE(lost.has(id_of(1491)));
  EXPECT_FALSE(lost.has(id_of(1490)));
}

}  // namespace lost_versions_test
}  // namespace kvcachefs

#include "store/tree/given_up_objects.h"

#include <gtest/gtest.h>

#include <set>

namespace kvcachefs {
namespace given_up_objects_test {

using Ids = std::vector<ObjectId>;

ObjectId id(uint32_t ordinal, uint64_t number) { return ObjectId::make(ordinal, 1, number); }
ObjectId there(uint64_t number) { return id(0, number); }
Place packed(uint64_t offset) { return {PlaceKind::kPacked, ExtentId{1, 1}, offset, 8192}; }

struct GivenUpObjectsTest : ::testing::Test {
  Ids still_read(uint32_t ordinal, size_t most = 100) { return objects.still_read(ordinal, most, is_read); }
  GivenUpObjects objects;
  std::set<ObjectId> read;
  GivenUpObjects::IsRead is_read = [this](ObjectId each) { return read.contains(each); };
};

TEST_F(GivenUpObjectsTest, IsToldWhileItIsReadAndToItsNodeAlone) {
  read = {id(1, 5), id(1, 3), id(2, 5)};
  for (const ObjectId each : read) objects.add(each, packed(each.number() * 4096));
  EXPECT_EQ(still_read(1), (Ids{there(3), there(5)}));
  EXPECT_EQ(still_read(2), (Ids{there(5)}));
  read.erase(id(1, 3));
  EXPECT_EQ(still_read(1), (Ids{there(5)}));
  EXPECT_EQ(objects.size(), 2u);
}

TEST_F(GivenUpObjectsTest, WhatHasItsPlaceNowIsToldWithIt) {
  read = {id(1, 5)};
  objects.add(id(1, 5), packed(4096));
  objects.has_place(id(1, 9), packed(4096));
  objects.has_place(id(1, 9), packed(4096));
  objects.has_place(id(1, 10), packed(8192));
  objects.has_place(id(2, 11), packed(4096));  // another node's file of that name
  objects.has_place(id(1, 2), packed(4096));   // an older id, as of a name that was given by a link
  EXPECT_EQ(still_read(1), (Ids{there(2), there(5), there(9)}));
  for (uint64_t i = 20; i < 1000; ++i) objects.has_place(id(1, i), packed(4096));
  EXPECT_EQ(still_read(1), (Ids{there(5), there(998), there(999)})) << "what it can be given up as is the last one";
  read.clear();
  EXPECT_TRUE(still_read(1).empty());
  objects.has_place(id(1, 12), packed(4096));
  EXPECT_EQ(objects.size(), 0u);
}

TEST_F(GivenUpObjectsTest, OneThatIsReadInSeveralStatesHasAPlaceForEach) {
  read = {id(1, 5)};
  objects.add(id(1, 5), packed(4096));
  objects.add(id(1, 5), packed(16384));
  objects.add(id(1, 5), packed(16384));
  objects.has_place(id(1, 9), packed(16384));
  objects.has_place(id(1, 10), packed(4096));
  EXPECT_EQ(still_read(1), (Ids{there(5), there(9), there(10)}));
  read.clear();
  EXPECT_TRUE(still_read(1).empty());
  objects.has_place(id(1, 12), packed(4096));
  EXPECT_EQ(objects.size(), 0u);
}

TEST_F(GivenUpObjectsTest, ABodyInARecordHasNoPlaceThatAnotherGets) {
  read = {id(1, 5)};
  objects.add(id(1, 5), Place{PlaceKind::kInline, {}, 0, 100});
  objects.has_place(id(1, 6), Place{PlaceKind::kInline, {}, 0, 100});
  EXPECT_EQ(still_read(1), (Ids{there(5)}));
}

TEST_F(GivenUpObjectsTest, AboutSoManyAreTold) {
  for (uint64_t i = 1; i <= 50; ++i) {
    read.insert(id(1, i));
    objects.add(id(1, i), packed(i * 8192));
  }
  EXPECT_EQ(still_read(1, 10).size(), 10u);
  EXPECT_EQ(objects.size(), 50u);
}

TEST_F(GivenUpObjectsTest, WhatIsNotReadAnyMoreIsForgottenThoughNobodyAsksForItsNode) {
  for (uint64_t i = 1; i <= 10'000; ++i) {
    objects.add(id(7, i), packed(i * 8192));
    objects.drop_read(is_read);
  }
  EXPECT_LT(objects.size(), 65u);
  objects.forget_node(7);
  EXPECT_EQ(objects.size(), 0u);
}

}  // namespace given_up_objects_test
}  // namespace kvcachefs

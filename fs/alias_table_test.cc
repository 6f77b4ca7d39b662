// Aliases are kept while the kernel knows them, while they are in use, or while they are among the last that it forgot; then they are dropped.
#include "fs/alias_table.h"

#include <gtest/gtest.h>

#include <set>

namespace kvcachefs {
namespace alias_table_test {

const ObjectId kObject = ObjectId::make(0, 7, 1);

class AliasTableTest : public ::testing::Test {
 protected:
  ObjectId give_and_tell(ObjectId object) {
    const ObjectId alias = table_.give(object);
    table_.told(alias);
    return alias;
  }
  void forgot(ObjectId node, uint64_t times = 1) {
    table_.forgot(node, times, [&](ObjectId each) { return used_.contains(each.value); });
  }
  // Pushes the aliases forgotten before out of the last ones.
  void forget_others(int count) {
    for (int i = 0; i < count; ++i) forgot(give_and_tell(ObjectId::make(0, 8, next_++)));
  }
  static constexpr int kMost = 4;
  AliasTable table_{kMost};
  std::set<uint64_t> used_;
  uint64_t next_ = 1;
};

TEST_F(AliasTableTest, TheLastOneIsTheCurrentOne) {
  EXPECT_EQ(table_.current(kObject), kObject);
  const ObjectId first = give_and_tell(kObject), second = give_and_tell(kObject);
  EXPECT_NE(first, second);
  EXPECT_EQ(table_.current(kObject), second);
  EXPECT_EQ(table_.object_of(first), kObject);
  EXPECT_EQ(table_.object_of(second), kObject);
  EXPECT_EQ(table_.object_of(kObject), kObject);
}

TEST_F(AliasTableTest, AnEarlierOneCanBecomeTheCurrentOneAgain) {
  EXPECT_FALSE(table_.has_aliases(kObject));
  const ObjectId first = give_and_tell(kObject), second = give_and_tell(kObject);
  table_.make_current(first);
  EXPECT_EQ(table_.current(kObject), first);
  table_.make_current(kObject);
  EXPECT_EQ(table_.current(kObject), kObject);
  EXPECT_TRUE(table_.has_aliases(kObject));
  forgot(first), forgot(second);
  forget_others(1000);
  EXPECT_FALSE(table_.has_aliases(kObject));
  EXPECT_EQ(table_.current(kObject), kObject);
}

TEST_F(AliasTableTest, ForgottenOnesGoWhenThereAreMany) {
  const ObjectId alias = give_and_tell(kObject);
  forgot(alias);
  EXPECT_EQ(table_.object_of(alias), kObject) << "a file handle may have it";
  forget_others(1000);
  EXPECT_EQ(table_.size(), static_cast<size_t>(kMost));
  EXPECT_EQ(table_.object_of(alias), alias);
  EXPECT_EQ(table_.current(kObject), kObject);
}

TEST_F(AliasTableTest, WhatTheKernelKnowsStays) {
  const ObjectId twice = give_and_tell(kObject);
  table_.told(twice);
  forgot(twice);  // the other answer is on its way
  forget_others(1000);
  EXPECT_EQ(table_.current(kObject), twice);
  forgot(twice);
  table_.told(twice);  // by a lookup while it is among the last
  forget_others(1000);
  EXPECT_EQ(table_.current(kObject), twice);
  forgot(twice);
  forget_others(1000);
  EXPECT_EQ(table_.size(), static_cast<size_t>(kMost));
}

TEST_F(AliasTableTest, WhatIsInUseStays) {
  const ObjectId older = give_and_tell(kObject), current = give_and_tell(kObject);
  used_.insert(older.value);
  forgot(older);
  forgot(current);
  forget_others(1000);
  EXPECT_EQ(table_.object_of(older), kObject);
  EXPECT_EQ(table_.current(kObject), current) << "readers of the older one have an older body";
  used_ = {kObject.value};
  forget_others(1000);
  EXPECT_EQ(table_.object_of(older), older);
  EXPECT_EQ(table_.current(kObject), current) << "readers of the first nodeid have an older body";
  used_.clear();
  forget_others(1000);
  EXPECT_EQ(table_.current(kObject), kObject);
  EXPECT_EQ(table_.size(), static_cast<size_t>(kMost));
}

TEST_F(AliasTableTest, WhatTheKernelNeverAskedForGoesAsWell) {
  const ObjectId alias = table_.give(kObject);
  used_.insert(alias.value);  // promised
  forget_others(1000);
  EXPECT_EQ(table_.current(kObject), alias);
  used_.clear();
  forget_others(1000);
  EXPECT_EQ(table_.current(kObject), kObject);
}

TEST_F(AliasTableTest, NoneIsGivenTwice) {
  const ObjectId alias = give_and_tell(kObject);
  forgot(alias);
  forget_others(100);
  EXPECT_NE(table_.give(kObject), alias);
}

}  // namespace alias_table_test
}  // namespace kvcachefs

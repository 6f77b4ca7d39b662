#include "store/evict/unit_table.h"

#include <gtest/gtest.h>

namespace kvcachefs::evict {
namespace unit_table_test {

ObjectId object(uint64_t number) { return ObjectId::make(0, 1, number); }
constexpr std::string_view kHash = "0123456789abcdef";

TEST(UnitTableTest, ObjectsOfOneHashAreOneUnit) {
  UnitTable table;
  const uint32_t root = table.directory(kRootId);
  const uint32_t a = table.add(object(1), root, 10, table.name_of(root, std::string(kHash) + "_0"));
  const uint32_t b = table.add(object(2), root, 11, table.name_of(root, std::string(kHash) + "_1"));
  const uint32_t c = table.add(object(3), root, 12, table.name_of(root, "ffffffffffff"));
  EXPECT_EQ(table.at(a).unit, table.at(b).unit);
  EXPECT_NE(table.at(a).unit, table.at(c).unit);
  EXPECT_EQ(table.at(table.first_of(table.at(a).unit)).members, 2);
  const UnitKey unit = table.at(a).unit;
  table.remove(a);
  EXPECT_EQ(table.first_of(unit), b);
  EXPECT_EQ(table.at(b).members, 1);
  table.move(b, root, 13, table.name_of(root, "ffffffffffff"));
  EXPECT_EQ(table.first_of(unit), kNoSlot);
  EXPECT_EQ(table.at(table.first_of(table.at(c).unit)).members, 2);
  EXPECT_EQ(table.find(object(1)), kNoSlot);
  EXPECT_EQ(table.objects(), 2u);
}

TEST(UnitTableTest, TheUnitOfANameFollowsTheStemOfItsDirectory) {
  UnitTable table;
  table.directory(kRootId);
  table.name_directory(kRootId, "model-a", object(1));
  const uint32_t directory = table.find_directory(object(1));
  const UnitName before = table.name_of(directory, kHash);
  EXPECT_EQ(table.name_of(directory, kHash), before) << "as the second time";
  table.name_directory(kRootId, "model-b", object(1));
  EXPECT_NE(table.name_of(directory, kHash), before);
  EXPECT_EQ(table.name_of(directory, kHash), unit_name(directory_stem(kRootStem, "model-b"), kHash));
}

TEST(UnitTableTest, ADirectoryIsKeptAsLongAsSomethingIsInIt) {
  UnitTable table;
  table.directory(kRootId);
  table.name_directory(kRootId, "a", object(1));
  table.name_directory(object(1), "b", object(2));
  const uint32_t b = table.find_directory(object(2));
  const uint32_t file = table.add(object(3), b, 1, table.name_of(b, "x"));
  table.directory_at(table.find_directory(object(1))).pinned = true;
  EXPECT_TRUE(table.below_pinned(b));
  table.remove_directory(object(1));
  table.remove_directory(object(2));
  EXPECT_EQ(table.directories(), 3u);
  table.remove(file);
  EXPECT_EQ(table.directories(), 1u);
  EXPECT_EQ(table.find_directory(object(2)), kNoSlot);
}

}  // namespace unit_table_test
}  // namespace kvcachefs::evict

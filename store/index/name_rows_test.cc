#include "store/index/name_rows.h"

#include <gtest/gtest.h>

#include <random>

namespace kvcachefs {
namespace name_rows_test {

TEST(NameRows, FindsWhatAMapFindsAlsoAfterLayersAreMerged) {
  std::mt19937_64 random(1);
  const auto key = [&] { return NameKey{{1 + random() % 3}, random() % 40'000 * 0x9e3779b97f4a7c15ULL}; };
  NameRows rows;
  NameRows::Rows expected;
  for (int layer = 0; layer < 4; ++layer) {
    NameRows newer;
    NameRows::Rows of_newer;
    for (int i = 0; i < 10'000; ++i) {
      const NameKey at = key();
      const NameRow row{NameEntry{std::to_string(layer), ObjectId{at.cookie}, 0, at.cookie}};
      newer.emplace(at, row);
      of_newer.emplace(at, row);
    }
    rows.absorb(std::move(newer));
    for (const auto& [at, row] : of_newer) expected.insert_or_assign(at, row);
    ASSERT_EQ(rows.size(), expected.size());
    for (int i = 0; i < 20'000; ++i) {
      const NameKey at = key();
      const auto found = rows.find(at);
      const auto wanted = expected.find(at);
      ASSERT_EQ(found == rows.end(), wanted == expected.end());
      if (found != rows.end()) {
        ASSERT_EQ(found->second.front().name, wanted->second.front().name);
      }
    }
  }
}

TEST(NameRows, NothingIsFoundWhereNothingIs) {
  NameRows rows;
  EXPECT_TRUE(rows.find({kRootId, 7}) == rows.end());
  rows.absorb(NameRows());
  EXPECT_TRUE(rows.find({kRootId, 7}) == rows.end());
}

}  // namespace name_rows_test
}  // namespace kvcachefs

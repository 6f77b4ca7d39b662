// Random batches against the plain model, with commits and reopens at random points. Seeds are printed; one run can be
// repeated with KVCACHEFS_SEED.
#include <cstdlib>
#include <iostream>

#include <gtest/gtest.h>

#include "store/index/index_test_util.h"
#include "store/index/rows.h"

namespace kvcachefs::index_test {

class IndexModelTest : public testing::TestWithParam<uint64_t> {
 protected:
  // Narrow cookies: many names share one.
  void SetUp() override { set_cookie_mask_for_tests(GetParam() % 2 == 0 ? ~uint64_t{0} : 15); }
  void TearDown() override { set_cookie_mask_for_tests(~uint64_t{0}); }
  static uint64_t seed() {
    const char* given = std::getenv("KVCACHEFS_SEED");
    return given != nullptr ? std::strtoull(given, nullptr, 10) : 20260101 + GetParam();
  }
};

TEST_P(IndexModelTest, AnswersLikeTheModel) {
  std::cout << "seed " << seed() << "\n";
  const ScratchDirectory scratch;
  auto index = open_index(scratch.path("index"), Index::Found::kFresh);
  ASSERT_NE(index, nullptr);
  Model model;
  BatchMaker maker(seed());
  JournalPosition at{1, 0, 0};
  for (int round = 0; round < 400 && !HasFailure(); ++round) {
    const Batch batch = maker.make(model);
    at.offset += 100;
    const auto expected = model.apply(batch);
    const auto freed = index->apply(batch, at);
    ASSERT_TRUE(freed) << freed.error().message;
    std::set<std::pair<ExtentId, uint64_t>> got;
    for (const FreedPlace& place : *freed) EXPECT_TRUE(got.emplace(place.place.extent, place.place.offset).second);
    EXPECT_EQ(got, expected) << "round " << round;
    EXPECT_EQ(index->stamp(), batch.stamp);
    const uint64_t dice = maker.below(100);
    if (dice < 12) {
      ASSERT_TRUE(index->commit());
      EXPECT_EQ(index->position(), at);
      EXPECT_EQ(index->overlay_rows(), 0u);
    }
    if (dice < 2) {
      if (dice == 0) {
        ASSERT_TRUE(index->close_clean());
      }
      index.reset();
      index = open_index(scratch.path("index"), Index::Found::kOpened);
      ASSERT_NE(index, nullptr);
      EXPECT_EQ(index->position(), at);
      EXPECT_EQ(index->stamp(), batch.stamp);
    }
    if (round % 16 == 0) expect_same(*index, model);
  }
  expect_same(*index, model);
  ASSERT_TRUE(index->commit());
  expect_same(*index, model);
  expect_same_scans(*index, model);
}

TEST_P(IndexModelTest, ALoadedCheckpointEqualsTheAppliedBatches) {
  std::cout << "seed " << seed() << "\n";
  const ScratchDirectory scratch;
  auto applied = open_index(scratch.path("applied"), Index::Found::kFresh);
  auto loaded = open_index(scratch.path("loaded"), Index::Found::kFresh);
  ASSERT_TRUE(applied && loaded);
  Model model;
  BatchMaker maker(seed());
  JournalPosition at{1, 0, 0};
  const auto step = [&](Index& index) {
    const Batch batch = maker.make(model);
    model.apply(batch);
    at.offset += 100;
    ASSERT_TRUE(index.apply(batch, at));
  };
  for (int round = 0; round < 500; ++round) step(*applied);
  ASSERT_TRUE(applied->commit());
  ASSERT_TRUE(copy_by_load(*applied, *loaded, at));
  expect_same(*loaded, model);
  expect_same_scans(*loaded, model);
  EXPECT_EQ(loaded->position(), at);
  EXPECT_EQ(loaded->stamp(), applied->stamp());
  // It goes on as an applied one would.
  for (int round = 0; round < 100; ++round) step(*loaded);
  ASSERT_TRUE(loaded->commit());
  loaded.reset();
  loaded = open_index(scratch.path("loaded"), Index::Found::kOpened);
  ASSERT_NE(loaded, nullptr);
  expect_same(*loaded, model);
  expect_same_scans(*loaded, model);
}

INSTANTIATE_TEST_SUITE_P(Seeds, IndexModelTest, testing::Range<uint64_t>(0, 12));

}  // namespace kvcachefs::index_test

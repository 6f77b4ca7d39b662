#include "store/chain/successors.h"

#include <gtest/gtest.h>

#include <map>

namespace kvcachefs {
namespace successors_test {

constexpr size_t kMegabyte = 1 << 20;

ObjectId id(uint64_t n) { return ObjectId{n}; }

TEST(SuccessorTable, LearnsAChainAndItsWayBack) {
  SuccessorTable table(kMegabyte, nullptr);
  for (uint64_t i = 1; i < 10; ++i) table.learn(id(i), id(i + 1));
  for (uint64_t i = 1; i < 10; ++i) EXPECT_EQ(table.next(id(i)), id(i + 1));
  for (uint64_t i = 2; i < 10; ++i) EXPECT_EQ(table.predecessor(id(i)), id(i - 1));
  EXPECT_FALSE(table.next(id(10)).valid());
  EXPECT_FALSE(table.next(id(4711)).valid());
  EXPECT_FALSE(table.next(ObjectId{}).valid());
}

TEST(SuccessorTable, IgnoresNothingAndItself) {
  SuccessorTable table(kMegabyte, nullptr);
  table.learn(id(1), id(1));
  table.learn(ObjectId{}, id(1));
  table.learn(id(1), ObjectId{});
  EXPECT_EQ(table.dirty_count(), 0u);
}

TEST(SuccessorTable, TheLastSeenWinsTiesAndMoreSightingsWin) {
  SuccessorTable table(kMegabyte, nullptr);
  table.learn(id(1), id(10));
  table.learn(id(1), id(20));
  EXPECT_EQ(table.next(id(1)), id(20));
  for (int i = 0; i < 6; ++i) table.learn(id(1), id(20));
  table.learn(id(1), id(10));
  EXPECT_EQ(table.next(id(1)), id(20));  // one request leaves a well-known chain
  table.learn(id(1), id(10));
  table.learn(id(1), id(10));
  EXPECT_EQ(table.next(id(1)), id(10));
}

TEST(SuccessorTable, NothingIsFollowedWhereEveryContinuationIsAsLikely) {
  SuccessorTable table(kMegabyte, nullptr);
  for (uint64_t prompt = 100; prompt < 110; ++prompt) table.learn(id(1), id(prompt));
  EXPECT_FALSE(table.next(id(1)).valid());
  std::vector<ObjectId> all;
  table.successors(id(1), all);
  EXPECT_EQ(all.size(), SuccessorTable::kMaxSuccessors);
  EXPECT_EQ(all.front(), id(109));
}

TEST(SuccessorTable, AHeadThatFollowsManyTailsHasNoPredecessor) {
  SuccessorTable table(kMegabyte, nullptr);
  for (uint64_t tail = 100; tail < 110; ++tail) table.learn(id(tail), id(1));
  for (uint64_t tail = 103; tail < 110; ++tail) EXPECT_FALSE(table.next(id(tail)).valid()) << tail;
  EXPECT_FALSE(table.predecessor(id(1)).valid());
}

TEST(SuccessorTable, OneStrayObservationDoesNotBreakAKnownLink) {
  SuccessorTable table(kMegabyte, nullptr);
  table.learn(id(1), id(2));
  table.learn(id(1), id(2));
  table.learn(id(50), id(2));
  EXPECT_EQ(table.next(id(1)), id(2));
  EXPECT_EQ(table.predecessor(id(2)), id(1));
  EXPECT_FALSE(table.next(id(50)).valid());
  table.learn_if_unknown(id(60), id(2));
  EXPECT_FALSE(table.has_successor(id(60)));
}

TEST(SuccessorTable, ARewrittenPredecessorIsTrustedAtOnce) {
  SuccessorTable table(kMegabyte, nullptr);
  for (int i = 0; i < 5; ++i) table.learn(id(1), id(2));
  table.erase(id(1));
  table.learn(id(3), id(2));
  EXPECT_EQ(table.next(id(3)), id(2));
  EXPECT_EQ(table.predecessor(id(2)), id(3));
}

TEST(SuccessorTable, EraseCutsTheNeighbours) {
  SuccessorTable table(kMegabyte, nullptr);
  table.learn(id(1), id(2));
  table.learn(id(2), id(3));
  table.drain_dirty(100);
  table.erase(id(2));
  EXPECT_FALSE(table.has_successor(id(1)));
  EXPECT_FALSE(table.predecessor(id(3)).valid());
  EXPECT_FALSE(table.row(id(2)).has_value());
  std::map<uint64_t, SuccessorRow> rows;
  for (auto& [object, row] : table.drain_dirty(100)) rows[object.value] = row;
  EXPECT_EQ(rows.size(), 2u);  // 1 and 3, without 2
  EXPECT_EQ(rows.at(1), SuccessorRow{});
  EXPECT_EQ(rows.at(3), SuccessorRow{});
}

TEST(SuccessorTable, SiblingsAreARing) {
  SuccessorTable table(kMegabyte, nullptr);
  for (uint64_t rank = 1; rank < 4; ++rank) table.link_siblings(id(10 + rank - 1), id(10 + rank));
  std::vector<ObjectId> others;
  for (uint64_t rank = 0; rank < 4; ++rank) {
    table.siblings(id(10 + rank), 8, others);
    EXPECT_EQ(others.size(), 3u) << rank;
  }
  table.siblings(id(10), 2, others);
  EXPECT_EQ(others.size(), 2u);
  table.erase(id(12));
  table.siblings(id(10), 8, others);
  EXPECT_EQ(others.size(), 2u);
  EXPECT_EQ(std::count(others.begin(), others.end(), id(12)), 0);
  table.siblings(id(99), 8, others);
  EXPECT_TRUE(others.empty());
}

TEST(SuccessorTable, ADamagedRingEnds) {
  SuccessorTable table(kMegabyte, [](ObjectId object) -> std::optional<SuccessorRow> {
    SuccessorRow row;
    row.sibling = object == id(1) ? id(2) : object == id(2) ? id(3) : id(2);  // 1 is not in the ring it points into
    return row;
  });
  std::vector<ObjectId> others;
  table.siblings(id(1), 100, others);
  EXPECT_EQ(others.size(), 2u);
}

TEST(SuccessorTable, RowsSurviveInTheStoreAndComeBack) {
  std::map<uint64_t, SuccessorsRecord> disk;
  size_t loads = 0;
  const auto loader = [&](ObjectId object) -> std::optional<SuccessorRow> {
    ++loads;
    auto found = disk.find(object.value);
    if (found == disk.end()) return std::nullopt;
    return from_record(found->second);
  };
  {
    SuccessorTable table(kMegabyte, loader);
    for (uint64_t i = 1; i < 100; ++i) table.learn(id(i), id(i + 1));
    table.learn(id(50), id(500));
    table.link_siblings(id(7), id(8));
    for (auto& [object, row] : table.drain_dirty(SIZE_MAX)) disk[object.value] = to_record(object, row);
    EXPECT_EQ(table.dirty_count(), 0u);
    EXPECT_TRUE(table.drain_dirty(10).empty());
  }
  SuccessorTable table(kMegabyte, loader);
  loads = 0;
  for (uint64_t i = 1; i < 100; ++i) EXPECT_EQ(table.next(id(i)), i == 50 ? id(500) : id(i + 1)) << i;
  EXPECT_LE(loads, 101u);  // each row once
  EXPECT_EQ(table.predecessor(id(20)), id(19));
  std::vector<ObjectId> others;
  table.siblings(id(7), 8, others);
  EXPECT_EQ(others, std::vector<ObjectId>{id(8)});
}

TEST(SuccessorTable, WhatIsErasedAfterARestartFollowsNothingAnyMore) {
  std::map<uint64_t, SuccessorsRecord> disk;
  const auto loader = [&](ObjectId object) -> std::optional<SuccessorRow> {
    auto found = disk.find(object.value);
    return found == disk.end() ? std::nullopt : std::optional(from_record(found->second));
  };
  {
    SuccessorTable table(kMegabyte, loader);
    table.learn(id(1), id(2));
    table.learn(id(2), id(3));
    for (auto& [object, row] : table.drain_dirty(SIZE_MAX)) disk[object.value] = to_record(object, row);
  }
  SuccessorTable table(kMegabyte, loader);
  table.erase(id(2));
  std::vector<ObjectId> after;
  table.successors(id(1), after);
  EXPECT_TRUE(after.empty());
  const auto changed = table.drain_dirty(SIZE_MAX);
  EXPECT_TRUE(std::any_of(changed.begin(), changed.end(), [](const auto& each) { return each.first == id(1); }));
}

TEST(SuccessorTable, RecordKeepsMostLikelyFirstAndTheSiblingLast) {
  SuccessorRow row{{{id(5), 9}, {id(6), 1}}, id(3), id(4)};
  const SuccessorsRecord record = to_record(id(1), row);
  ASSERT_EQ(record.successors.size(), 3u);
  EXPECT_EQ(record.successors[0], (std::pair{id(5), 9u}));
  EXPECT_EQ(record.successors[2], (std::pair{id(4), 0u}));
  EXPECT_EQ(from_record(record), row);
}

TEST(SuccessorTable, BoundedMemoryWithoutLosingWhatIsDrained) {
  std::map<uint64_t, SuccessorRow> disk;
  SuccessorTable table(64 * 1024, [&](ObjectId object) -> std::optional<SuccessorRow> {
    auto found = disk.find(object.value);
    return found == disk.end() ? std::nullopt : std::optional(found->second);
  });
  EXPECT_LE(table.memory_bytes(), 64u * 1024);
  constexpr uint64_t kObjects = 20'000;  // twenty times the size of the table
  for (uint64_t i = 1; i < kObjects; ++i) {
    table.learn(id(i), id(i + 1));
    if (i % 500 == 0) {
      for (auto& [object, row] : table.drain_dirty(SIZE_MAX)) disk[object.value] = row;
    }
  }
  for (auto& [object, row] : table.drain_dirty(SIZE_MAX)) disk[object.value] = row;
  EXPECT_EQ(table.lost_rows(), 0u);
  for (uint64_t i = 1; i < kObjects; ++i) ASSERT_EQ(table.next(id(i)), id(i + 1)) << i;
}

TEST(SuccessorTable, NobodyDrains) {
  SuccessorTable table(64 * 1024, nullptr);
  for (uint64_t i = 1; i < 300'000; ++i) table.learn(id(i), id(i + 1));
  EXPECT_LE(table.dirty_count(), 70'000u);
  EXPECT_GT(table.lost_rows(), 0u);
}

TEST(SuccessorTable, ReadingTheSameChainAgainIsNotWrittenEachTime) {
  SuccessorTable table(kMegabyte, nullptr);
  size_t written = 0;
  for (int pass = 0; pass < 200; ++pass) {
    for (uint64_t i = 1; i < 20; ++i) table.learn(id(i), id(i + 1));
    written += table.drain_dirty(SIZE_MAX).size();
  }
  EXPECT_LE(written, 20u * 9);
}

TEST(SuccessorTable, RowsOfChosenObjectsAreDrainedAndTakenBack) {
  SuccessorTable table(kMegabyte, nullptr);
  for (uint64_t i = 1; i < 5; ++i) table.learn(id(i), id(i + 1));
  const std::vector<ObjectId> chosen{id(2), id(4), id(99)};
  const auto drained = table.drain_dirty_of(chosen);
  ASSERT_EQ(drained.size(), 2u);
  EXPECT_EQ(drained[0].first, id(2));
  EXPECT_EQ(drained[1].first, id(4));
  EXPECT_TRUE(table.drain_dirty_of(chosen).empty());
  table.keep_dirty(drained[0].first, drained[0].second);
  std::map<uint64_t, SuccessorRow> rows;
  for (auto& [object, row] : table.drain_dirty(100)) EXPECT_TRUE(rows.emplace(object.value, row).second) << object.value;
  EXPECT_EQ(rows.size(), 4u);  // 1, 2, 3, 5
  EXPECT_EQ(rows.at(2), drained[0].second);
  EXPECT_FALSE(rows.contains(4));
}

// The row left the table in between.
TEST(SuccessorTable, ARowThatIsTakenBackIsTheOneThatWasDrained) {
  SuccessorTable table(1, nullptr);  // 8 rows
  table.learn(id(1), id(2));
  const std::vector<ObjectId> chosen{id(1)};
  const auto drained = table.drain_dirty_of(chosen);
  ASSERT_EQ(drained.size(), 1u);
  for (uint64_t i = 10; i < 40; ++i) table.learn(id(i), id(i + 1));
  table.keep_dirty(id(1), drained[0].second);
  EXPECT_EQ(table.row(id(1)), drained[0].second);
}

}  // namespace successors_test
}  // namespace kvcachefs

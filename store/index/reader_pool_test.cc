// The account of readers that takes the place of LMDB's reader table.
#include "store/index/reader_pool.h"

#include <atomic>
#include <future>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace kvcachefs {

namespace reader_pool_test {

// Stands for LMDB: a transaction is a number that is never looked at, and has the snapshot it was started at.
class ReaderPoolTest : public testing::Test {
 protected:
  MDB_txn* handle(size_t number) { return reinterpret_cast<MDB_txn*>(&places_.at(number)); }
  uint64_t snapshot_of(const ReaderPool::Reader& reader) {
    return places_.at(static_cast<size_t>(reinterpret_cast<uint64_t*>(reader.txn) - places_.data()));
  }
  void commit(ReaderPool& pool) {
    pool.await_overtaken();
    pool.close_gate();
    ++newest_;
    EXPECT_EQ(pool.open_gate(true), 0);
  }

  std::vector<uint64_t> places_ = std::vector<uint64_t>(1000);
  std::atomic<size_t> made_ = 0;
  std::atomic<uint64_t> newest_ = 1;
  std::atomic<int> refusal_ = 0;
  ReaderPool pool_{[this](MDB_txn*& txn) {
    if (refusal_ != 0) {
      txn = nullptr;
      return refusal_.load();
    }
    if (txn == nullptr) txn = handle(made_++);
    *reinterpret_cast<uint64_t*>(txn) = newest_;
    return 0;
  }};
};

TEST_F(ReaderPoolTest, AReaderGetsTheNewestSnapshotAndTransactionsAreUsedAgain) {
  for (int n = 0; n < 5; ++n) {
    const auto reader = pool_.take();
    EXPECT_EQ(snapshot_of(reader), newest_);
    pool_.give_back(reader);
    const size_t made = made_;
    const auto again = pool_.take();
    EXPECT_EQ(made_, made);
    pool_.give_back(again);
    commit(pool_);
  }
  EXPECT_LE(made_, ReaderPool::kProvided + 1);
}

TEST_F(ReaderPoolTest, DuringACommitReadersGetWhatWasProvidedAndNoneIsStarted) {
  pool_.close_gate();
  refusal_ = 5;  // a reader started now would read a meta page that is being written
  std::vector<ReaderPool::Reader> readers;
  for (size_t n = 0; n < ReaderPool::kProvided; ++n) {
    readers.push_back(pool_.take());
    ASSERT_NE(readers.back().txn, nullptr);
    EXPECT_EQ(snapshot_of(readers.back()), 1u);
  }
  // One more waits for another reader, not for the commit.
  auto one_more = std::async(std::launch::async, [this] { return pool_.take(); });
  pool_.give_back(readers.back());
  readers.pop_back();
  readers.push_back(one_more.get());
  EXPECT_NE(readers.back().txn, nullptr);
  refusal_ = 0;
  newest_ = 2;
  EXPECT_EQ(pool_.open_gate(true), 0);
  const auto newer = pool_.take();
  EXPECT_EQ(snapshot_of(newer), 2u);
  pool_.give_back(newer);
  for (const auto& reader : readers) pool_.give_back(reader);
  const auto newest = pool_.take();
  EXPECT_EQ(snapshot_of(newest), 2u) << "an old transaction was used again as it was";
  pool_.give_back(newest);
}

TEST_F(ReaderPoolTest, AWriterWaitsForReadersOfOlderSnapshotsOnly) {
  const auto old = pool_.take();
  commit(pool_);  // begun while `old` was of the newest: its pages are safe
  const auto current = pool_.take();
  std::atomic<bool> begun = false;
  std::thread writer([&] {
    pool_.await_overtaken();
    begun = true;
  });
  const auto other = pool_.take();  // readers come and go meanwhile
  pool_.give_back(other);
  EXPECT_FALSE(begun) << "the pages of an old reader may be overwritten";
  pool_.give_back(old);
  writer.join();
  EXPECT_TRUE(begun);
  pool_.give_back(current);
}

TEST_F(ReaderPoolTest, WhatAReaderSpoiledOrLostServesNobodyAsItIs) {
  const auto spoiled = pool_.take();
  *reinterpret_cast<uint64_t*>(spoiled.txn) = 0;
  pool_.give_back(spoiled, ReaderPool::Left::kSpoiled);
  const auto anew = pool_.take();
  EXPECT_EQ(snapshot_of(anew), 1u) << "not started anew";
  pool_.give_back(anew, ReaderPool::Left::kLost);
  const auto other = pool_.take();
  EXPECT_NE(other.txn, anew.txn);
  pool_.give_back(other);
  EXPECT_EQ(pool_.retire().size(), 1u);
}

TEST_F(ReaderPoolTest, AfterACommitThatBrokeTheEnvironmentReadersGoOn) {
  pool_.close_gate();
  refusal_ = 7;
  EXPECT_EQ(pool_.open_gate(false), 7);
  const auto reader = pool_.take();
  ASSERT_NE(reader.txn, nullptr);
  EXPECT_EQ(snapshot_of(reader), 1u);
  // Until another environment takes its place, which waits for them.
  auto ended = std::async(std::launch::async, [this] { return pool_.retire(); });
  ReaderPool::Reader late = pool_.take();
  while (!late.retired) {
    pool_.give_back(late);
    late = pool_.take();
  }
  EXPECT_EQ(late.txn, nullptr);
  pool_.give_back(reader);
  const auto all = ended.get();
  EXPECT_EQ(std::set<MDB_txn*>(all.begin(), all.end()).size(), all.size());
  EXPECT_GE(all.size(), ReaderPool::kProvided);
}

// Reads of bad pages use up the provided transactions. No reader waits for one that cannot come any more.
TEST_F(ReaderPoolTest, BehindAnAbandonedGateReadersGetTheCodeOnceNoneIsLeft) {
  pool_.close_gate();
  pool_.abandon_gate(9);
  for (size_t n = 1; n < ReaderPool::kProvided; ++n) {
    const auto reader = pool_.take();
    ASSERT_NE(reader.txn, nullptr);
    pool_.give_back(reader, n % 2 == 0 ? ReaderPool::Left::kSpoiled : ReaderPool::Left::kLost);
  }
  const auto last = pool_.take();
  ASSERT_NE(last.txn, nullptr);
  auto waits = std::async(std::launch::async, [this] { return pool_.take(); });  // for the last one
  pool_.give_back(last, ReaderPool::Left::kSpoiled);
  EXPECT_EQ(waits.get().code, 9);
  const auto none = pool_.take();
  EXPECT_EQ(none.txn, nullptr);
  EXPECT_EQ(none.code, 9);
  EXPECT_FALSE(none.retired);
  pool_.retire();
  EXPECT_TRUE(pool_.take().retired);
}

TEST_F(ReaderPoolTest, AfterACommitThatBrokeTheEnvironmentReadersGetItsCodeOnceNoneIsLeft) {
  pool_.close_gate();
  refusal_ = 7;
  EXPECT_EQ(pool_.open_gate(false), 7);
  for (size_t n = 0; n < ReaderPool::kProvided; ++n) pool_.give_back(pool_.take(), ReaderPool::Left::kSpoiled);
  EXPECT_EQ(pool_.take().code, 7);
}

TEST_F(ReaderPoolTest, AsManyAreProvidedBesideThoseInUse) {
  std::vector<ReaderPool::Reader> readers;
  for (size_t n = 0; n < ReaderPool::kProvided; ++n) readers.push_back(pool_.take());
  pool_.close_gate();
  const size_t provided = made_ - readers.size();
  EXPECT_EQ(provided, ReaderPool::kProvided);
  for (size_t n = 0; n < provided; ++n) readers.push_back(pool_.take());
  EXPECT_EQ(pool_.open_gate(false), 0);
  for (const auto& reader : readers) pool_.give_back(reader);
}

TEST_F(ReaderPoolTest, ACodeIsPassedOn) {
  refusal_ = 12;
  EXPECT_EQ(pool_.take().code, 12);
  refusal_ = 0;
  EXPECT_EQ(pool_.take().code, 0);
}

// No page that a reader may look at is ever overwritten, whatever the order of events.
TEST_F(ReaderPoolTest, ReadersBesideCommits) {
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> overwritten = 0;  // snapshots before this one are gone
  std::vector<std::thread> readers;
  for (int n = 0; n < 4; ++n) {
    readers.emplace_back([&] {
      while (!stop) {
        const uint64_t before = newest_;
        const auto reader = pool_.take();
        EXPECT_GE(snapshot_of(reader) + 1, before);  // the test's own commit counts up before it is published
        EXPECT_GE(snapshot_of(reader), overwritten);
        std::this_thread::yield();
        EXPECT_GE(snapshot_of(reader), overwritten);
        pool_.give_back(reader);
      }
    });
  }
  for (int n = 0; n < 2000; ++n) {
    pool_.await_overtaken();
    overwritten = newest_.load();  // the new transaction may overwrite pages of any older snapshot
    pool_.close_gate();
    ++newest_;
    EXPECT_EQ(pool_.open_gate(true), 0);
  }
  stop = true;
  for (auto& reader : readers) reader.join();
}

}  // namespace reader_pool_test

}  // namespace kvcachefs

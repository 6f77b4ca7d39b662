#include "store/memory/pool.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include <gtest/gtest.h>

namespace kvcachefs {
namespace {

TEST(MemoryPool, BlocksAreAlignedDistinctAndWithinTheLimit) {
  MemoryPool pool(8 * kMiB);
  std::mt19937 random(7);
  std::vector<std::pair<BlockPtr, uint8_t>> held;
  for (int round = 0; round < 20'000; ++round) {
    if (held.empty() || random() % 2 == 0) {
      const size_t bytes = 1 + random() % kUnitBytes;
      Reservation room = pool.try_reserve(MemoryPool::block_bytes(bytes));
      if (room.bytes() == 0) {
        held.erase(held.begin() + static_cast<long>(random() % held.size()));
        continue;
      }
      BlockPtr block = room.make_block(bytes);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(block->data()) % kBlockBytes, 0u);
      ASSERT_GE(block->capacity_bytes(), bytes);
      const auto mark = static_cast<uint8_t>(random());
      std::memset(block->data(), mark, block->capacity_bytes());
      held.emplace_back(std::move(block), mark);
    } else {
      const size_t which = random() % held.size();
      auto& [block, mark] = held[which];
      ASSERT_TRUE(std::all_of(block->bytes().begin(), block->bytes().end(),
                              [&](std::byte b) { return b == static_cast<std::byte>(mark); }));
      held.erase(held.begin() + static_cast<long>(which));
    }
    ASSERT_LE(pool.used_bytes(), pool.limit_bytes());
  }
  held.clear();
  EXPECT_EQ(pool.used_bytes(), 0u);
}

TEST(MemoryPool, FreedHalvesMergeAgain) {
  MemoryPool pool(2 * kMiB);
  for (int round = 0; round < 3; ++round) {
    std::vector<BlockPtr> small;
    for (int i = 0; i < 512; ++i) small.push_back(pool.try_reserve(4096).make_block(4096));
    EXPECT_EQ(pool.try_reserve(4096).bytes(), 0u);
    small.clear();
    std::vector<BlockPtr> big;
    for (int i = 0; i < 8; ++i) big.push_back(pool.try_reserve(kUnitBytes).make_block(kUnitBytes));
    EXPECT_EQ(pool.mapped_bytes(), MemoryPool::kArenaBytes);
  }
}

TEST(MemoryPool, TellsOnceWhenMemoryCameBackAfterARefusal) {
  MemoryPool pool(64 * kKiB);
  int told = 0;
  pool.set_available_callback([&] { ++told; });
  BlockPtr block = pool.try_reserve(64 * kKiB).make_block(64 * kKiB);
  block.reset();
  EXPECT_EQ(told, 0);
  block = pool.try_reserve(64 * kKiB).make_block(64 * kKiB);
  EXPECT_EQ(pool.try_reserve(4096).bytes(), 0u);
  block.reset();
  EXPECT_EQ(told, 1);
}

TEST(MemoryPool, UnusedReservationGoesBack) {
  MemoryPool pool(kMiB);
  {
    Reservation room = pool.try_reserve(kMiB);
    EXPECT_EQ(pool.used_bytes(), kMiB);
    BlockPtr block = room.make_block(100);
    EXPECT_EQ(pool.used_bytes(), kMiB);
  }
  EXPECT_EQ(pool.used_bytes(), 0u);
}

TEST(MemoryPool, ManyThreads) {
  MemoryPool pool(16 * kMiB);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&pool, t] {
      std::mt19937 random(t);
      std::vector<BlockPtr> held;
      for (int i = 0; i < 5'000; ++i) {
        const size_t bytes = 1 + random() % kUnitBytes;
        Reservation room = pool.try_reserve(MemoryPool::block_bytes(bytes));
        if (room.bytes() > 0) held.push_back(room.make_block(bytes));
        if (held.size() > 16) held.erase(held.begin());
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pool.used_bytes(), 0u);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they map terabytes

uint64_t mapped_by_this_process() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * kBlockBytes;
}

TEST(MemoryPool, WhatBlocksHoldIsSummedUp) {
  MemoryPool pool(kMiB);
  BlockPtr block = pool.try_reserve(kUnitBytes).make_block(kUnitBytes);
  EXPECT_EQ(pool.held_bytes(), kUnitBytes) << "nobody said that it can be given up";
  EXPECT_EQ(pool.dirty_bytes(), 0u);
  block->set_holds(Block::Holds::kDirty);
  EXPECT_EQ(pool.held_bytes(), kUnitBytes);
  EXPECT_EQ(pool.dirty_bytes(), kUnitBytes);
  block->set_holds(Block::Holds::kClean);
  EXPECT_EQ(pool.held_bytes(), 0u);
  EXPECT_EQ(pool.dirty_bytes(), 0u);
  block->set_holds(Block::Holds::kDirty);
  block.reset();
  EXPECT_EQ(pool.held_bytes(), 0u);
  EXPECT_EQ(pool.dirty_bytes(), 0u);
}

TEST(MemoryPool, WhatIsLeftToOthersMayBeCleanInsteadOfFree) {
  MemoryPool pool(kMiB);
  BlockPtr mine = pool.try_reserve(kUnitBytes).make_block(kUnitBytes);
  BlockPtr theirs = pool.try_reserve(kUnitBytes).make_block(kUnitBytes);
  EXPECT_EQ(pool.try_reserve(2 * kUnitBytes, kUnitBytes).bytes(), 0u);
  EXPECT_FALSE(pool.could_reserve(2 * kUnitBytes, kUnitBytes));
  int told = 0;
  pool.set_available_callback([&] { ++told; });
  theirs->set_holds(Block::Holds::kDirty);
  EXPECT_EQ(told, 0);
  theirs->set_holds(Block::Holds::kClean);
  EXPECT_EQ(told, 1) << "who was refused hears of it";
  EXPECT_EQ(pool.try_reserve(2 * kUnitBytes, kUnitBytes).bytes(), 2 * kUnitBytes);
  EXPECT_EQ(pool.try_reserve(2 * kUnitBytes + kBlockBytes, 0).bytes(), 0u) << "clean is not free";
  EXPECT_TRUE(pool.could_reserve(2 * kUnitBytes + kBlockBytes, 0));
  theirs.reset();
  EXPECT_EQ(pool.held_bytes(), kUnitBytes);
}

TEST(MemoryPool, WhatSealsHasItsOwn) {
  MemoryPool pool(kMiB, kUnitBytes);
  EXPECT_EQ(pool.try_reserve(kMiB).bytes(), 0u);
  Reservation all = pool.try_reserve(3 * kUnitBytes);
  ASSERT_EQ(all.bytes(), 3 * kUnitBytes);
  EXPECT_FALSE(pool.try_charge(kBlockBytes));
  BlockPtr block = pool.reserve_to_seal(kUnitBytes).make_block(kUnitBytes);
  EXPECT_EQ(pool.used_bytes(), pool.limit_bytes());
}

TEST(MemoryPool, WhereAddressSpaceIsShortReservationsAreRefused) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit little = before;
  little.rlim_cur = mapped_by_this_process() + 200 * kMiB;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &little), 0);
  {
    MemoryPool pool(kGiB);
    int told = 0;
    pool.set_available_callback([&] { ++told; });
    std::vector<BlockPtr> held;
    for (Reservation room = pool.try_reserve(kUnitBytes); room.bytes() > 0; room = pool.try_reserve(kUnitBytes))
      held.push_back(room.make_block(kUnitBytes));
    EXPECT_GE(held.size() * kUnitBytes, 64 * kMiB);
    EXPECT_LE(held.size() * kUnitBytes, 200 * kMiB);
    EXPECT_EQ(pool.used_bytes(), held.size() * kUnitBytes);
    EXPECT_FALSE(pool.prepare_ahead(4 * kMiB));
    BlockPtr urgent = pool.reserve_to_seal(kUnitBytes).make_block(kUnitBytes);  // has something left
    std::memset(urgent->data(), 1, kUnitBytes);
    EXPECT_EQ(told, 0);
    held.pop_back();
    EXPECT_EQ(told, 1);
    EXPECT_GT(pool.try_reserve(kUnitBytes).bytes(), 0u);
  }
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
}

#endif

}  // namespace
}  // namespace kvcachefs

#include "store/memory/pool.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "store/base/sanitized.h"

namespace kvcachefs {
namespace pool_test {

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
    ASSERT_LE(pool.mapped_bytes(), pool.limit_bytes()) << "round " << round;
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

// Of the process: what is resident.
uint64_t resident_bytes() {
  uint64_t pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident_pages;
  return resident_pages * kBlockBytes;
}

// Blocks of `bytes` until no more are given, each filled with `mark`.
std::vector<BlockPtr> take_all(MemoryPool& pool, size_t bytes, uint8_t mark) {
  std::vector<BlockPtr> taken;
  for (Reservation room = pool.try_reserve(bytes); room.bytes() > 0; room = pool.try_reserve(bytes)) {
    taken.push_back(room.make_block(bytes));
    std::memset(taken.back()->data(), mark, bytes);
    EXPECT_LE(pool.mapped_bytes(), pool.limit_bytes());
  }
  return taken;
}

bool is_all(const BlockPtr& block, uint8_t mark) {
  return std::all_of(block->bytes().begin(), block->bytes().end(), [&](std::byte b) { return b == static_cast<std::byte>(mark); });
}

TEST(MemoryPool, ScatteredFreeBytesDoNotPassTheLimit) {
  constexpr uint64_t kLimit = 64 * kMiB;
  [[maybe_unused]] const uint64_t before = resident_bytes();
  MemoryPool pool(kLimit);
  for (int round = 0; round < 3; ++round) {
    std::vector<BlockPtr> kept = take_all(pool, kBlockBytes, 1);
    ASSERT_EQ(kept.size(), kLimit / kBlockBytes);
    // One of 64 stays: a 4 KiB block in each place for one of 256 KiB.
    for (size_t i = 0; i < kept.size(); ++i)
      if (i % 64 != 17) kept[i].reset();
    std::erase(kept, nullptr);
    std::vector<BlockPtr> large = take_all(pool, kUnitBytes, 2);
    EXPECT_EQ(large.size(), (kLimit - kept.size() * kBlockBytes) / kUnitBytes);
#if !KVCACHEFS_SANITIZED
    EXPECT_LE(resident_bytes(), before + kLimit + 8 * kMiB) << "round " << round;
#endif
    // The other way round: memory that was given back comes back, and no block loses its bytes.
    for (size_t i = 0; i < large.size(); ++i)
      if (i % 2 == 0) large[i].reset();
    std::erase(large, nullptr);
    std::vector<BlockPtr> small = take_all(pool, 2 * kBlockBytes, 3);
    EXPECT_EQ(small.size(), (kLimit - kept.size() * kBlockBytes - large.size() * kUnitBytes) / (2 * kBlockBytes));
    for (const auto& block : kept) ASSERT_TRUE(is_all(block, 1));
    for (const auto& block : large) ASSERT_TRUE(is_all(block, 2));
    for (const auto& block : small) ASSERT_TRUE(is_all(block, 3));
#if !KVCACHEFS_SANITIZED
    EXPECT_LE(resident_bytes(), before + kLimit + 8 * kMiB) << "round " << round;
#endif
  }
  EXPECT_EQ(pool.used_bytes(), 0u);
}

TEST(MemoryPool, ALowerLimitTakesThePagesOfScatteredFreeBlocks) {
  MemoryPool pool(32 * kMiB);
  std::vector<BlockPtr> kept = take_all(pool, kBlockBytes, 1);
  for (size_t i = 0; i < kept.size(); ++i)
    if (i % 8 != 3) kept[i].reset();
  pool.set_limit_bytes(8 * kMiB);
  pool.release_beyond_limit();
  EXPECT_LE(pool.mapped_bytes(), 8 * kMiB);
  for (const auto& block : kept) ASSERT_TRUE(!block || is_all(block, 1));
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
  EXPECT_LE(pool.mapped_bytes(), pool.limit_bytes());
}

#if !KVCACHEFS_SANITIZED  // they map terabytes

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

}  // namespace pool_test
}  // namespace kvcachefs

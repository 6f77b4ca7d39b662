#include "store/cache/file_mover.h"

#include <gtest/gtest.h>

#include <cstring>

namespace kvcachefs {
namespace file_mover_test {

class FileMoverTest : public testing::Test {
 protected:
  void SetUp() override {
    if (Status started = files.start(); !started) GTEST_SKIP() << started.error().message;
    ASSERT_TRUE(options.resolve({.backing_bytes = kGiB, .memory_bytes = kGiB, .network_volume = false}, "/i"));
    ASSERT_TRUE(options.set("memory_file_min", "1M", {.backing_bytes = kGiB, .memory_bytes = kGiB, .network_volume = false}));
  }
  // A whole body in blocks of the pool, as a load leaves it.
  ObjectPtr resident(uint64_t size_bytes) {
    Attributes attributes;
    attributes.mode = 0100644;
    auto object = std::make_shared<Object>(ObjectId{next++}, attributes);
    const auto lock = object->lock();
    object->size_bytes = object->base_valid_bytes = size_bytes;
    for (size_t index = 0; index < div_ceil(size_bytes, kUnitBytes); ++index) {
      Reservation memory = pool.try_reserve(kUnitBytes);
      BlockPtr block = memory.make_block(kUnitBytes);
      std::memset(block->data(), static_cast<int>(index + 1), block->capacity_bytes());
      object->place_loaded(index, std::move(block), kUnitBytes, false);
    }
    return object;
  }

  MemoryPool pool{64 * kMiB};
  MemoryFiles files{pool};
  LiveOptions options{StoreOptions{}};
  MemoryFilePolicy policy{{files, options, system_clock()}};
  Counters counters;
  FileMover mover{{pool, files, policy, system_clock(), counters, true, [](uint64_t) { return false; }}};
  uint64_t next = 1;
};

TEST_F(FileMoverTest, AResidentBodyLiesInOneFileAfterwardsWithTheSameBytes) {
  const ObjectPtr object = resident(2 * kMiB + 100);
  mover.move_soon(object);
  mover.move_soon(object);  // queued once
  EXPECT_TRUE(mover.step());
  EXPECT_FALSE(mover.step());
  const auto lock = object->lock();
  EXPECT_NE(object->whole_in_file(), nullptr);
  EXPECT_FALSE(object->to_be_moved);
  EXPECT_EQ(counters.memory_files_moved, 1u);
  const ReadPlan plan = object->plan_read(kUnitBytes, 10);
  ASSERT_FALSE(plan.lacks_units);
  EXPECT_EQ(static_cast<const char*>(plan.reply.pieces[0].iov_base)[0], 2);
}

TEST_F(FileMoverTest, WhatIsSmallOrOpenForWritingStays) {
  const ObjectPtr small = resident(kUnitBytes), open = resident(2 * kMiB);
  {
    const auto lock = open->lock();
    open->write_handles = 1;
  }
  mover.move_soon(small);
  mover.move_soon(open);
  EXPECT_FALSE(mover.step());
}

}  // namespace file_mover_test
}  // namespace kvcachefs

// Writes that wait: in RAM up to a bound, beyond it in a file of the volume.
#include "store/cache/waiting_bytes.h"

#include <cerrno>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "store/base/units.h"
#include "store/cache/io_budget.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {
namespace waiting_bytes_test {

std::string text_of(const WaitingBytes::Kept& kept) {
  return {reinterpret_cast<const char*>(kept.bytes().data()), kept.bytes().size()};
}

struct Capacity {
  uint64_t limit_bytes = kGiB, reserved_bytes = 0;
  uint64_t room_bytes() const { return limit_bytes - reserved_bytes; }
  WaitingBytes::Room room() {
    return {[this] { return room_bytes(); },
            [this](uint64_t bytes) {
              if (bytes > room_bytes()) return false;
              reserved_bytes += bytes;
              return true;
            },
            [this](uint64_t bytes) { reserved_bytes -= bytes; }};
  }
};

TEST(WaitingBytesTest, BeyondTheBoundTheyLieInAFileWithoutAName) {
  std::shared_ptr<Volume> volume = make_sim_volume();
  Capacity capacity;
  WaitingBytes waiting(volume, capacity.room(), "WAITING", 4 * kMiB);
  std::vector<std::unique_ptr<WaitingBytes::Kept>> kept;
  std::vector<std::string> bodies;
  for (int i = 0; i < 20; ++i) {
    bodies.emplace_back(i % 2 == 0 ? kMiB : 123'457, static_cast<char>('a' + i));
    auto one = waiting.keep(std::as_bytes(std::span(bodies.back())));
    ASSERT_TRUE(one) << one.error().message;
    kept.push_back(std::move(*one));
  }
  EXPECT_LE(waiting.memory_bytes(), 4 * kMiB);
  EXPECT_GT(waiting.parked_bytes(), 0u);
  EXPECT_FALSE(volume->info("WAITING")) << "a crash would leave it";
  int parked = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    parked += !kept[i]->in_memory();
    ASSERT_TRUE(kept[i]->load());
    EXPECT_TRUE(text_of(*kept[i]) == bodies[i]) << i;
    kept[i]->unload();
  }
  EXPECT_GT(parked, 8);
  EXPECT_GE(capacity.reserved_bytes, waiting.parked_bytes());
  EXPECT_LE(waiting.memory_bytes(), 4 * kMiB);
  // Free slots are used again.
  const uint64_t before = waiting.parked_bytes();
  for (size_t i = 1; i < kept.size(); i += 2) kept[i] = nullptr;
  for (size_t i = 1; i < kept.size(); i += 2) {
    auto again = waiting.keep(std::as_bytes(std::span(bodies[i])));
    ASSERT_TRUE(again);
    kept[i] = std::move(*again);
  }
  EXPECT_LE(waiting.parked_bytes(), before);
  for (size_t i = 0; i < kept.size(); ++i) {
    ASSERT_TRUE(kept[i]->load());
    EXPECT_TRUE(text_of(*kept[i]) == bodies[i]) << i;
  }
  kept.clear();
  EXPECT_EQ(waiting.memory_bytes(), 0u);
  EXPECT_EQ(waiting.parked_bytes(), 0u);
  EXPECT_EQ(capacity.reserved_bytes, 0u);
}

TEST(WaitingBytesTest, WhatIsParkedStaysWithinTheCapacityAndLeavesRoomForItsBodies) {
  std::shared_ptr<Volume> volume = make_sim_volume();
  Capacity capacity{8 * kMiB};
  WaitingBytes waiting(volume, capacity.room(), "WAITING", 2 * kMiB, 4 * kMiB);
  std::vector<std::unique_ptr<WaitingBytes::Kept>> kept;
  const std::string body(kMiB, 'x');
  auto one = waiting.keep(std::as_bytes(std::span(body)));
  for (; one; one = waiting.keep(std::as_bytes(std::span(body)))) kept.push_back(std::move(*one));
  EXPECT_EQ(one.error().code, Code::kNoSpace) << "the caller hears the reason";
  EXPECT_EQ(waiting.memory_bytes(), 4 * kMiB);
  EXPECT_EQ(waiting.parked_bytes(), 4 * kMiB);
  EXPECT_EQ(capacity.reserved_bytes, 4 * kMiB);
  EXPECT_GE(capacity.room_bytes(), waiting.parked_bytes()) << "or all would wait for room that they take themselves";
  kept.clear();
  EXPECT_EQ(capacity.room_bytes(), 8 * kMiB);
}

// Another thread has made the file, and has not removed its name yet.
TEST(WaitingBytesTest, TwoThatMakeTheFileAtOnceBothPark) {
  std::shared_ptr<Volume> sim = make_sim_volume();
  int opens = 0;
  std::shared_ptr<Volume> volume = make_fault_volume(sim, [&](const VolumeCall& call) {
    return Fault{.sys_errno = call.kind == VolumeCall::Kind::kCreate && ++opens == 1 ? EEXIST : 0};
  });
  Capacity capacity;
  WaitingBytes waiting(volume, capacity.room(), "WAITING", 0);
  const std::string body(kMiB, 'x');
  auto kept = waiting.keep(std::as_bytes(std::span(body)));
  ASSERT_TRUE(kept) << kept.error().message;
  EXPECT_EQ(waiting.memory_bytes(), 0u) << "parked";
  ASSERT_TRUE((*kept)->load());
  EXPECT_TRUE(text_of(**kept) == body);
}

TEST(IoBudgetTest, TurnsComeInOrderAndAllOfThemDo) {
  IoBudget budget(10);
  std::string order;
  const auto run = [&](std::vector<IoBudget::Begin> turns) {
    for (auto& turn : turns) turn();
  };
  ASSERT_TRUE(budget.try_begin(6));
  EXPECT_FALSE(budget.try_begin(5));
  run(budget.wait(20, [&] { order += 'a'; }));  // more than there ever is: alone
  EXPECT_FALSE(budget.try_begin(1)) << "it would pass another";
  run(budget.wait(1, [&] { order += 'b'; }));
  run(budget.wait(9, [&] { order += 'c'; }));
  EXPECT_EQ(order, "");
  run(budget.end(6));
  EXPECT_EQ(order, "a");
  run(budget.end(20));
  EXPECT_EQ(order, "abc");
  EXPECT_EQ(budget.waiting(), 0u);
  run(budget.wait(1, [&] { order += 'd'; }));
  run(budget.end(9));
  EXPECT_EQ(order, "abcd");
}

}  // namespace waiting_bytes_test
}  // namespace kvcachefs

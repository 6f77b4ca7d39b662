// A volume that cannot punch holes, and is full: space comes back with whole packs, so what lives in packs that are mostly dead is
// moved, and no more is evicted for that than goes anyway.
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/base/log.h"
#include "tests/fault/rig.h"

namespace kvcachefs::testing {
namespace compaction_test {

constexpr size_t kChunkBytes = 100'000;
constexpr uint64_t kChunkRoom = 102'400, kCapacity = 64 * kMiB;

StoreOptions full_options() {
  StoreOptions options = small_options(Durability::kNone);
  options.capacity_bytes = kCapacity;
  options.keep_free_bytes = 1;
  options.extent_bytes = 4 * kMiB;
  options.pack_below_bytes = kMiB;
  options.evict = true;
  options.policy = "lru";
  options.lease_ms = 0;
  return options;
}

std::string name(int i) { return fmt::format("{:016x}{:016x}.bin", static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15, i); }
std::string content(int i) { return std::string(kChunkBytes, static_cast<char>(i)); }

class Compaction : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log::set_level(tracing() ? log::Level::kInfo : log::Level::kOff); }

  void start(StoreOptions options = full_options(), std::shared_ptr<SimVolume> disk = make_sim_volume({.punch_hole = false})) {
    rig_ = std::make_unique<Rig>(std::move(options), std::move(disk));
    ASSERT_TRUE(rig_->mount());
  }
  Status put(int i) {
    auto handle = rig_->create(name(i));
    if (!handle) return std::unexpected(handle.error());
    KVC_TRY(rig_->write(*handle, 0, content(i)));
    return rig_->flush(*handle);
  }
  // Reads it whole, if it is there.
  bool get(int i) {
    auto handle = rig_->open(name(i), {.read = true});
    if (!handle) return false;
    auto read = rig_->read(*handle);
    EXPECT_TRUE(read && *read == content(i)) << i;
    return true;
  }
  // Until nothing is left to do.
  void rest(int seconds = 20) {
    ASSERT_TRUE(rig_->drain());
    for (int i = 0; i < seconds; ++i) rig_->pass_time(1'000'000'000);
  }
  StoreStatus status() { return rig_->store().status(); }
  // Requests of conversations that go on, are left and come back: chunks of one pack die at different times.
  struct Churn {
    uint64_t stored_bytes = 0;
    int refused = 0;
    double live_part = 0;  // of the capacity, once it was full, on average
  };
  Churn churn(uint64_t bytes, const std::function<void()>& look);

  std::unique_ptr<Rig> rig_;
};

Compaction::Churn Compaction::churn(uint64_t bytes, const std::function<void()>& look) {
  constexpr int64_t kBetweenRequestsNs = 1'500'000'000;
  constexpr size_t kLongest = 40;
  std::minstd_rand random(1);
  std::vector<std::vector<int>> talks;
  std::vector<double> live;
  Churn done;
  int next = 0;
  const auto store = [&](int chunk) {
    const Status stored = put(chunk);
    if (!stored && stored.error().code == Code::kExists) return;
    done.refused += stored ? 0 : 1;
    done.stored_bytes += kChunkRoom;
  };
  while (done.stored_bytes < bytes) {
    rig_->pass_time(kBetweenRequestsNs);
    size_t talk = talks.size();
    if (!talks.empty() && random() % 100 < 60) talk = random() % talks.size();
    if (random() % 2 == 0 && talks.size() > 60) talk = talks.size() - 1 - random() % 60;
    if (talk == talks.size()) talks.emplace_back();
    bool there = true;
    for (const int chunk : talks[talk]) {
      there = there && get(chunk);
      if (!there) store(chunk);
    }
    for (auto n = 1 + random() % 6; n > 0; --n) {
      talks[talk].push_back(next);
      store(next++);
    }
    if (talks[talk].size() > kLongest) talks[talk].clear();
    look();
    if (done.stored_bytes > 3 * kCapacity) live.push_back(static_cast<double>(status().live_bytes) / static_cast<double>(kCapacity));
  }
  for (const double each : live) done.live_part += each / static_cast<double>(live.size());
  return done;
}

class CompactionOfPolicy : public Compaction, public ::testing::WithParamInterface<const char*> {};

TEST_P(CompactionOfPolicy, AFullVolumeStaysFull) {
  StoreOptions options = full_options();
  options.policy = GetParam();
  start(options);
  const Churn done = churn(8 * kCapacity, [&] { ASSERT_LE(status().physical_bytes, kCapacity); });
  EXPECT_EQ(done.refused, 0);
  const bool tells_worth = options.policy != "s3fifo";
  EXPECT_GE(done.live_part, tells_worth ? 0.72 : 0.65) << "a pack is written, some is left free; what is dead is little";
  EXPECT_GT(status().moved_bytes, 0u);
  EXPECT_LE(status().moved_bytes, tells_worth ? done.stored_bytes * 3 / 10 : done.stored_bytes) << "what is written again";
  EXPECT_EQ(rig_->errors(), 0u);
  rest();
  const auto before = rig_->tree();
  ASSERT_TRUE(before);
  ASSERT_TRUE(rig_->unmount());
  ASSERT_TRUE(rig_->mount());
  const auto after = rig_->tree();
  ASSERT_TRUE(after);
  EXPECT_EQ(before->size(), after->size());
  EXPECT_TRUE(*before == *after);
}
INSTANTIATE_TEST_SUITE_P(Policies, CompactionOfPolicy, ::testing::Values("lru", "prefix", "s3fifo"), [](const auto& param) { return std::string(param.param); });

// Nothing is evicted: what clients remove here and there makes room for as much, and then there is none.
class CompactionOfRemoved : public Compaction, public ::testing::WithParamInterface<int> {};

TEST_P(CompactionOfRemoved, MakesRoomForAsMuch) {
  const int nth = GetParam();
  StoreOptions options = full_options();
  options.evict = false;
  start(options);
  int count = 0;
  while (put(count)) ++count;
  ASSERT_GT(count, 400);
  ASSERT_TRUE(rig_->unlink(name(count)));  // what was not stored
  int removed = 0, more = 0;
  for (int i = 0; i < count; i += nth, ++removed) ASSERT_TRUE(rig_->unlink(name(i)));
  Status stored;
  while ((stored = put(count + 1 + more))) {
    ++more;
    rig_->pass_time(20'000'000);
    ASSERT_LE(status().physical_bytes, kCapacity);
  }
  EXPECT_EQ(stored.error().code, Code::kNoSpace);
  EXPECT_GE(more, removed - 70) << "but for a 24th of the capacity, which may stay dead, and a pack";
  EXPECT_LE(more, removed + 10);
  for (int i = 0; i < count; ++i) EXPECT_EQ(get(i), i % nth != 0) << i;
  for (int i = 0; i < more; ++i) EXPECT_TRUE(get(count + 1 + i)) << i;
}
INSTANTIATE_TEST_SUITE_P(EveryNth, CompactionOfRemoved, ::testing::Values(2, 4), [](const auto& param) { return std::to_string(param.param); });

TEST_F(Compaction, NothingMovesWhereLittleIsDead) {
  start();
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(put(i));
  rest();
  for (int i = 0; i < 300; i += 20) ASSERT_TRUE(rig_->unlink(name(i)));
  rest();
  EXPECT_EQ(status().moved_bodies, 0u);
}

// Half of each pack goes, and what is left moves in the background.
class CompactionUnderWay : public Compaction {
 protected:
  static constexpr int kChunks = 560;
  static StoreOptions given() {
    StoreOptions options = full_options();
    options.evict = false;
    return options;
  }
  void half_dead() {
    for (int i = 0; i < kChunks; ++i) ASSERT_TRUE(put(i));
    rest();
    for (int i = 0; i < kChunks; i += 2) ASSERT_TRUE(rig_->unlink(name(i)));
  }
  void expect_the_other_half(const std::string& when) {
    for (int i = 1; i < kChunks; i += 2) EXPECT_TRUE(get(i)) << when << ": " << i;
  }
};

TEST_F(CompactionUnderWay, GoesByItselfAndLeavesTheTimesOfFiles) {
  start(given());
  half_dead();
  const auto mtime_ns = [&] {
    const auto stat = rig_->store().lookup(kRootId, name(1), {});
    EXPECT_TRUE(stat);
    return stat ? stat->mtime_ns : 0;
  };
  const int64_t written_ns = mtime_ns();
  rest();
  EXPECT_EQ(mtime_ns(), written_ns);
  EXPECT_GT(status().moved_bodies, 10u);
  EXPECT_LE(status().physical_bytes, kCapacity - kCapacity / 12) << "so much is to be left free, and not more";
  expect_the_other_half("moved");
  ASSERT_TRUE(rig_->unmount());
  ASSERT_TRUE(rig_->mount());
  expect_the_other_half("mounted again");
}

// kill -9 and power loss after each so many calls.
TEST_F(CompactionUnderWay, ACrashLosesNothing) {
  for (const bool power : {false, true}) {
    uint64_t first = 0, last = 0;
    {
      start(given());
      half_dead();
      first = rig_->disk().mutating_calls();
      rest();
      last = rig_->disk().mutating_calls();
      ASSERT_GT(status().moved_bodies, 0u);
    }
    ASSERT_GT(last, first + 20);
    for (uint64_t at = first; at < last; at += std::max<uint64_t>(1, (last - first) / 24)) {
      const std::string when = fmt::format("{} at call {} of {}", power ? "power loss" : "kill -9", at, last);
      start(given());
      half_dead();
      rig_->disk().stop_at(at, /*torn_bytes=*/0);
      static_cast<void>(rig_->drain());
      for (int i = 0; i < 20 && !rig_->stopped(); ++i) rig_->pass_time(1'000'000'000);
      ASSERT_TRUE(rig_->stopped()) << when;
      rig_->die();
      auto disk = power ? rig_->disk().cut_power({.seed = at, .keep_probability = 0.5}) : rig_->disk().crash_process();
      if (power) reboot(*disk);
      start(given(), disk);
      expect_the_other_half(when);
      if (HasFailure()) return;
    }
  }
}

}  // namespace compaction_test
}  // namespace kvcachefs::testing

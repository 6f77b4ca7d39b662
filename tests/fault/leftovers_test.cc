// What a daemon that dies leaves on the volume and no record tells of: the next ones find it and give it back, and look for it
// where it can be only.
#include <cerrno>
#include <cstdlib>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/base/log.h"
#include "store/extent/pack_gaps.h"
#include "tests/fault/rig.h"

namespace kvcachefs::testing {
namespace leftovers_test {

constexpr int kFiles = 24;
constexpr size_t kPackedBytes = 50'000, kSoloBytes = 600'000;
constexpr uint64_t kToleranceBytes = 20 * kKiB;  // of a pack: what pack_surplus_bytes() leaves to the file system
constexpr int64_t kUpkeepNs = 6'000'000'000;

// Every life's calls, and which of them fail.
struct Calls {
  uint64_t extent_lists = 0, punches = 0;
  bool removals_fail = false;
  uint64_t punches_that_work = UINT64_MAX;

  Fault operator()(const VolumeCall& call) {
    const bool extent = call.path.find("/extents") != std::string::npos;
    if (call.kind == VolumeCall::Kind::kList && extent) ++extent_lists;
    if (call.kind == VolumeCall::Kind::kRemoveFile && extent && removals_fail) return {.sys_errno = EIO};
    if (call.kind == VolumeCall::Kind::kPunch && ++punches > punches_that_work) return {.sys_errno = EIO};
    return {};
  }
  void give_nothing_back() {
    removals_fail = true;
    punches_that_work = punches;
  }
  void all_work() {
    removals_fail = false;
    punches_that_work = UINT64_MAX;
  }
};

class Leftovers : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log::set_level(tracing() ? log::Level::kInfo : log::Level::kOff); }

  void SetUp() override { start(make_sim_volume()); }
  void start(std::shared_ptr<SimVolume> disk, StoreOptions options = small_options(Durability::kNone)) {
    rig_ = std::make_unique<Rig>(std::move(options), std::move(disk));
    rig_->set_hook([this](const VolumeCall& call) { return calls_(call); });
    ASSERT_TRUE(rig_->mount());
  }

  static std::string name(int i) { return fmt::format("f{}", i); }
  static std::string content(int i, size_t bytes = kPackedBytes) { return std::string(bytes, static_cast<char>('A' + i)); }
  void put(const std::string& path, const std::string& bytes) {
    auto handle = rig_->create(path);
    ASSERT_TRUE(handle);
    ASSERT_TRUE(rig_->write(*handle, 0, bytes));
    ASSERT_TRUE(rig_->flush(*handle));
  }
  void put_packed() {
    for (int i = 0; i < kFiles; ++i) put(name(i), content(i));
    ASSERT_TRUE(rig_->drain());
  }
  void unlink_every(int nth) {
    for (int i = 0; i < kFiles; i += nth) {
      ASSERT_TRUE(rig_->unlink(name(i)));
    }
    ASSERT_TRUE(rig_->drain());
  }
  // As kill -9 between the commit of the index and the reclaim: what died is given up for good, and nothing came back.
  void die_before_the_reclaim() {
    calls_.give_nothing_back();
    ASSERT_TRUE(rig_->drain());
    rig_->pass_time(kUpkeepNs);
    rig_->pass_time(kUpkeepNs);
    rig_->die();
    calls_.all_work();
  }
  void mount() {
    ASSERT_TRUE(rig_->mount());
    rig_->settle();
    rig_->pass_time(kUpkeepNs);
  }
  void die_and_mount() {
    rig_->die();
    mount();
  }
  void expect(const std::string& path, const Content& bytes) {
    auto found = rig_->read(path);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(describe(*found), describe(bytes)) << path;
  }
  // 0: every one.
  void expect_every_but(int nth) {
    rig_->store().drop_caches();
    for (int i = 0; i < kFiles; ++i) expect(name(i), nth > 0 && i % nth == 0 ? Content() : Content(content(i)));
  }

  std::vector<std::string> files(const std::string& suffix) {
    auto all = rig_->disk().all_files();
    std::erase_if(all, [&](const std::string& path) { return !path.ends_with(suffix); });
    return all;
  }
  uint64_t allocated_bytes() {
    uint64_t bytes = 0;
    for (const std::string& path : rig_->disk().all_files())
      if (path.find("/extents/") != std::string::npos) bytes += rig_->disk().info(path)->allocated_bytes;
    return bytes;
  }
  // Of the packs, after every `nth` file was unlinked and given back.
  static uint64_t needed_bytes(int nth) {
    uint64_t bytes = kBlockBytes;
    for (int i = 0; i < kFiles; ++i) bytes += i % nth == 0 ? 0 : align_up(kPackedBytes, kBlockBytes);
    return bytes;
  }

  Calls calls_;
  std::unique_ptr<Rig> rig_;
};

TEST_F(Leftovers, DeadRangesThatWereNotPunchedBeforeACrashComeBack) {
  put_packed();
  EXPECT_EQ(allocated_bytes(), needed_bytes(kFiles) + align_up(kPackedBytes, kBlockBytes));
  unlink_every(3);
  die_before_the_reclaim();
  EXPECT_GT(allocated_bytes(), needed_bytes(3) + 300'000);
  mount();
  EXPECT_LE(allocated_bytes(), needed_bytes(3) + kToleranceBytes);
  EXPECT_GE(allocated_bytes(), needed_bytes(3));
  EXPECT_GT(rig_->store().status().reclaimed_bytes, 300'000u);
  expect_every_but(3);
}

// Else as much again would be accepted until it is swept, and the volume would hold more than its capacity.
TEST_F(Leftovers, WhatACrashLeftCountsFromTheStartOnUntilItIsSwept) {
  put_packed();
  unlink_every(3);
  die_before_the_reclaim();
  ASSERT_TRUE(rig_->mount());
  const uint64_t left = allocated_bytes() - needed_bytes(3);
  ASSERT_GT(left, 300'000u);
  const StoreStatus started = rig_->store().status();
  EXPECT_GE(started.physical_bytes, allocated_bytes());
  EXPECT_GE(started.reclaimable_bytes, left);
  EXPECT_LE(started.reclaimable_bytes, left + kToleranceBytes);
  rig_->settle();
  rig_->pass_time(kUpkeepNs);
  EXPECT_LE(allocated_bytes(), needed_bytes(3) + kToleranceBytes);
  EXPECT_EQ(rig_->store().status().reclaimable_bytes, 0u);
}

TEST_F(Leftovers, AnExtentThatACrashLeftCountsUntilItIsRemoved) {
  put("solo", content(0, kSoloBytes));
  ASSERT_TRUE(rig_->drain());
  const auto solos = files(".solo");
  ASSERT_EQ(solos.size(), 1u);
  rig_->die();
  const std::string orphan = solos.front().substr(0, solos.front().rfind('/')) + "/4000.solo";
  {
    auto file = rig_->disk().open(orphan, {.create_exclusive = true});
    ASSERT_TRUE(file) << file.error().message;
    const std::string bytes(kSoloBytes, 'x');
    const auto piece = std::as_bytes(std::span(bytes));
    ASSERT_TRUE((*file)->write({&piece, 1}, 0));
  }
  ASSERT_TRUE(rig_->mount());
  EXPECT_GE(rig_->store().status().reclaimable_bytes, kSoloBytes);
  rig_->settle();
  rig_->pass_time(kUpkeepNs);
  EXPECT_EQ(files(".solo").size(), 1u);
  EXPECT_EQ(rig_->store().status().reclaimable_bytes, 0u);
  expect("solo", content(0, kSoloBytes));
}

// A call that finds no room for it waits until it is swept.
TEST_F(Leftovers, AWriteWaitsForWhatACrashLeft) {
  put_packed();
  unlink_every(1);
  die_before_the_reclaim();
  constexpr uint64_t kRoomBytes = 2 * kMiB;
  ASSERT_TRUE(rig_->mount());
  StoreOptions options = small_options(Durability::kNone);
  options.capacity_bytes = rig_->store().status().physical_bytes + kRoomBytes;
  rig_->die();
  rig_->set_options(options);
  ASSERT_TRUE(rig_->mount());
  const uint64_t physical = rig_->store().status().physical_bytes;
  ASSERT_GT(options.capacity_bytes, physical);
  const uint64_t more = options.capacity_bytes - physical + 100'000;
  put("more", content(1, more));
  ASSERT_TRUE(rig_->drain());
  rig_->pass_time(kUpkeepNs);
  expect("more", content(1, more));
  EXPECT_LE(rig_->store().status().physical_bytes, options.capacity_bytes);
}

TEST_F(Leftovers, ACrashInTheMiddleOfGivingThemBackDoesNoHarm) {
  put_packed();
  unlink_every(3);
  die_before_the_reclaim();
  calls_.punches_that_work = calls_.punches + 2;
  mount();
  expect_every_but(3);
  EXPECT_GT(allocated_bytes(), needed_bytes(3) + kToleranceBytes);
  calls_.all_work();
  die_and_mount();
  EXPECT_LE(allocated_bytes(), needed_bytes(3) + kToleranceBytes);
  expect_every_but(3);
}

TEST_F(Leftovers, WhatAnUnmountCutShortIsGivenBackInTheNextLife) {
  put_packed();
  unlink_every(3);
  die_before_the_reclaim();
  calls_.give_nothing_back();
  mount();
  ASSERT_TRUE(rig_->unmount());
  EXPECT_GT(allocated_bytes(), needed_bytes(3) + kToleranceBytes);
  calls_.all_work();
  mount();  // a clean start
  EXPECT_LE(allocated_bytes(), needed_bytes(3) + kToleranceBytes);
  expect_every_but(3);
}

TEST_F(Leftovers, BodiesThatWereNeverJournaledComeBackFromAPackThatHasOthers) {
  put_packed();
  const uint64_t before = allocated_bytes();
  const auto packs = files(".pack");
  ASSERT_EQ(packs.size(), 1u);
  rig_->die();
  {
    auto file = rig_->disk().open(packs.front(), {.writable = true});
    ASSERT_TRUE(file);
    const std::string bytes(200'000, 'x');
    const auto piece = std::as_bytes(std::span(bytes));
    ASSERT_TRUE((*file)->write({&piece, 1}, align_up((*file)->info()->size_bytes, kBlockBytes)));
  }
  EXPECT_GT(allocated_bytes(), before + 190'000);
  mount();
  EXPECT_EQ(allocated_bytes(), before);
  expect_every_but(0);
}

// Dead, and known to be: but a reader still has it.
TEST_F(Leftovers, WhatIsOpenIsNotPunched) {
  put_packed();
  unlink_every(3);
  die_before_the_reclaim();
  ASSERT_TRUE(rig_->mount());
  auto handle = rig_->open(name(1), {});
  ASSERT_TRUE(handle);
  ASSERT_TRUE(rig_->unlink(name(1)));
  rig_->settle();
  rig_->pass_time(kUpkeepNs);
  EXPECT_LE(allocated_bytes(), needed_bytes(3) + kToleranceBytes);
  rig_->store().drop_caches();
  auto found = rig_->read(*handle);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_TRUE(*found == content(1));
  handle->reset();
  rig_->pass_time(kUpkeepNs);
  EXPECT_LE(allocated_bytes(), needed_bytes(3) - align_up(kPackedBytes, kBlockBytes) + kToleranceBytes);
}

TEST_F(Leftovers, ACleanStartLooksAtNothing) {
  put_packed();
  unlink_every(3);
  rig_->pass_time(kUpkeepNs);
  ASSERT_TRUE(rig_->unmount());
  calls_ = {};
  mount();
  EXPECT_EQ(calls_.punches, 0u);
  EXPECT_EQ(calls_.extent_lists, 0u);
}

TEST_F(Leftovers, AnUncleanStartPunchesNothingWhereNothingIsDead) {
  put_packed();
  unlink_every(3);
  rig_->pass_time(kUpkeepNs);
  rig_->die();
  calls_ = {};
  mount();
  EXPECT_EQ(calls_.punches, 0u);
}

TEST_F(Leftovers, AVolumeThatCannotPunchIsLeftAlone) {
  start(make_sim_volume({.punch_hole = false}));
  put_packed();
  unlink_every(3);
  rig_->pass_time(kUpkeepNs);
  die_and_mount();
  die_and_mount();
  EXPECT_EQ(calls_.punches, 0u);
  EXPECT_EQ(rig_->errors(), 0u);
  expect_every_but(3);
}

// With packs that are larger than the capacity by default: what is dead in the one that is being written would never come back.
TEST_F(Leftovers, AVolumeThatCannotPunchGoesOnTakingChunks) {
  constexpr int kChunks = 400;  // 3 x the capacity
  constexpr size_t kChunkBytes = 500'000;
  StoreOptions options = small_options(Durability::kNone);
  options.capacity_bytes = 64 * kMiB;
  options.keep_free_bytes = 1;
  options.extent_bytes = 256 * kMiB;
  options.pack_below_bytes = kMiB;
  options.evict = true;
  options.lease_ms = 0;
  start(make_sim_volume({.punch_hole = false}), options);
  const auto chunk = [](int i) { return fmt::format("{:016x}{:016x}.bin", static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15, i); };
  int refused = 0;
  for (int i = 0; i < kChunks; ++i) {
    auto handle = rig_->create(chunk(i));
    ASSERT_TRUE(handle) << i;
    refused += rig_->write(*handle, 0, std::string(kChunkBytes, static_cast<char>(i))) ? 0 : 1;
    static_cast<void>(rig_->flush(*handle));
    handle->reset();
    rig_->pass_time(50'000'000);
    ASSERT_LE(allocated_bytes(), options.capacity_bytes) << i;
  }
  EXPECT_EQ(refused, 0);
  EXPECT_GE(rig_->store().status().live_bytes, options.capacity_bytes / 4);
  expect(chunk(kChunks - 1), std::string(kChunkBytes, static_cast<char>(kChunks - 1)));
}

// Dead bytes that are not given back yet count against the capacity, also in the next life, which gives them back.
TEST_F(Leftovers, AVolumeThatCannotPunchKnowsItsDeadBytesAfterAMount) {
  constexpr int kChunks = 140;
  constexpr size_t kChunkBytes = 100'000;
  StoreOptions options = small_options(Durability::kNone);
  options.capacity_bytes = 16 * kMiB;
  options.keep_free_bytes = 1;
  options.extent_bytes = kMiB;
  for (const bool clean : {true, false}) {
    start(make_sim_volume({.punch_hole = false}), options);
    for (int i = 0; i < kChunks; ++i) put(fmt::format("c{}", i), std::string(kChunkBytes, static_cast<char>(i)));
    ASSERT_TRUE(rig_->drain());
    rig_->pass_time(kUpkeepNs);
    for (int i = 0; i < kChunks; ++i) {
      if (i % 10 == 0) continue;
      ASSERT_TRUE(rig_->unlink(fmt::format("c{}", i)));
    }
    ASSERT_TRUE(rig_->drain());
    const StoreStatus before = rig_->store().status();
    EXPECT_GT(before.reclaimable_bytes, 10 * kMiB);
    if (clean) ASSERT_TRUE(rig_->unmount());
    else rig_->die();
    ASSERT_TRUE(rig_->mount());
    const StoreStatus after = rig_->store().status();
    EXPECT_NEAR(static_cast<double>(after.reclaimable_bytes), static_cast<double>(before.reclaimable_bytes), 512. * kKiB) << clean;
    EXPECT_NEAR(static_cast<double>(after.physical_bytes), static_cast<double>(before.physical_bytes), 1024. * kKiB) << clean;
    for (int i = 0; i < 60; ++i) put(fmt::format("more{}", i), std::string(kChunkBytes, 'm'));
    ASSERT_TRUE(rig_->drain());
    EXPECT_LT(rig_->store().status().reclaimable_bytes, 8 * kMiB) << clean;
    put("large", std::string(3 * kMiB, 'm'));
    EXPECT_LE(allocated_bytes(), options.capacity_bytes);
    for (int i = 0; i < kChunks; i += 10) expect(fmt::format("c{}", i), std::string(kChunkBytes, static_cast<char>(i)));
  }
}

// --- what takes long ---

TEST_F(Leftovers, WhatIsWrittenIsSyncedWhileMuchIsGivenBack) {
  constexpr int kChunks = 400;
  constexpr int64_t kPunchNs = 100'000'000;
  int64_t last_sync_ns = 0, longest_ns = 0;
  Rig rig(small_options(Durability::kNone));
  rig.set_hook([&](const VolumeCall& call) {
    if (call.kind == VolumeCall::Kind::kPunch) rig.clock().advance_ns(kPunchNs);
    if (call.kind == VolumeCall::Kind::kSync && call.path.find("/journal/") != std::string::npos) {
      const int64_t now = rig.clock().monotonic_ns();
      if (last_sync_ns > 0) longest_ns = std::max(longest_ns, now - last_sync_ns);
      last_sync_ns = now;
    }
    return Fault{};
  });
  ASSERT_TRUE(rig.mount());
  const auto store = [&](const std::string& name) {
    auto handle = rig.create(name);
    ASSERT_TRUE(handle);
    ASSERT_TRUE(rig.write(*handle, 0, std::string(5'000, 'x')));
    ASSERT_TRUE(rig.flush(*handle));
  };
  for (int i = 0; i < kChunks; ++i) store(name(i));
  ASSERT_TRUE(rig.drain());
  rig.pass_time(kUpkeepNs);
  for (int i = 0; i < kChunks; i += 2) ASSERT_TRUE(rig.unlink(name(i)));
  ASSERT_TRUE(rig.drain());
  last_sync_ns = longest_ns = 0;
  for (int i = 0; i < 20; ++i) {
    store(fmt::format("between{}", i));
    rig.pass_time(kUpkeepNs / 4);
  }
  rig.settle();
  EXPECT_LT(longest_ns, 7'500'000'000);
  const StoreStatus status = rig.store().status();
  EXPECT_GE(status.punched_ranges, 200u);
  EXPECT_EQ(status.reclaimable_bytes, 0u);
}

// --- extents ---

TEST_F(Leftovers, OnlyEpochsThatWereNotLookedThroughAreListed) {
  std::vector<uint64_t> lists;
  for (int life = 0; life < 6; ++life) {
    put(fmt::format("solo{}", life), content(life, kSoloBytes));
    ASSERT_TRUE(rig_->drain());
    rig_->pass_time(kUpkeepNs);
    rig_->die();
    const uint64_t before = calls_.extent_lists;
    mount();
    lists.push_back(calls_.extent_lists - before);
  }
  for (uint64_t each : lists) EXPECT_EQ(each, 2u);  // the directory of that epoch's extents, and the one in it
  // Those that ended before they looked, and those that ended well, are looked through at the next unclean start.
  ASSERT_TRUE(rig_->unmount());
  ASSERT_TRUE(rig_->mount());
  rig_->die();
  const uint64_t before = calls_.extent_lists;
  mount();
  EXPECT_LE(calls_.extent_lists - before, 3u);
  // Also when nothing else happens that the index would be told of.
  for (int life = 0; life < 4; ++life) {
    const uint64_t before_idle = calls_.extent_lists;
    die_and_mount();
    EXPECT_LE(calls_.extent_lists - before_idle, 1u);
  }
  // Without the index nobody remembers.
  rig_->die();
  rig_->set_index_from("/nowhere");
  const uint64_t before_anew = calls_.extent_lists;
  mount();
  EXPECT_GE(calls_.extent_lists - before_anew, 12u);
  for (int life = 0; life < 6; ++life) expect(fmt::format("solo{}", life), content(life, kSoloBytes));
}

TEST_F(Leftovers, AnExtentThatNoRecordNamesIsFoundInTheNewestEpoch) {
  put("a", content(1, kSoloBytes));
  ASSERT_TRUE(rig_->drain());
  die_and_mount();
  put("b", content(2, kSoloBytes));
  ASSERT_TRUE(rig_->drain());
  rig_->die();
  const auto solos = files(".solo");
  ASSERT_EQ(solos.size(), 2u);
  const std::string orphan = solos.back().substr(0, solos.back().rfind('/')) + "/4000.solo";
  ASSERT_TRUE(rig_->disk().open(orphan, {.create_exclusive = true}));
  mount();
  EXPECT_EQ(files(".solo"), solos);
}

// Its epoch is not listed any more: the index remembers what was given up and not removed.
TEST_F(Leftovers, AnExtentOfAnEpochLookedThroughLongAgoIsRemoved) {
  put("a", content(1, kSoloBytes));
  put("b", content(2, kSoloBytes));
  put("p", content(3));
  ASSERT_TRUE(rig_->drain());
  die_and_mount();
  die_and_mount();
  ASSERT_EQ(files(".solo").size(), 2u);
  ASSERT_TRUE(rig_->unlink("a"));
  ASSERT_TRUE(rig_->unlink("p"));
  die_before_the_reclaim();
  ASSERT_EQ(files(".solo").size(), 2u);
  const uint64_t lists = calls_.extent_lists;
  mount();
  EXPECT_LE(calls_.extent_lists - lists, 1u);
  EXPECT_EQ(files(".solo").size(), 1u);
  EXPECT_EQ(files(".pack").size(), 0u);
  expect("b", content(2, kSoloBytes));
}

// The replay takes the removal into the index, and that start ends before it gave anything back.
TEST_F(Leftovers, ACrashRightAfterTheReplayForgetsNothing) {
  put("a", content(1, kSoloBytes));
  ASSERT_TRUE(rig_->drain());
  die_and_mount();
  die_and_mount();
  put("b", content(2));
  ASSERT_TRUE(rig_->drain());  // the index follows, and will not for some seconds
  ASSERT_TRUE(rig_->unlink("a"));
  ASSERT_TRUE(rig_->drain());
  rig_->die();
  ASSERT_EQ(files(".solo").size(), 1u);
  calls_.give_nothing_back();
  for (int life = 0; life < 2; ++life) {
    ASSERT_TRUE(rig_->mount());
    EXPECT_EQ(rig_->store().status().replayed_batches > 0, life == 0);
    rig_->die();
  }
  calls_.all_work();
  mount();
  EXPECT_EQ(files(".solo").size(), 0u);
}

TEST_F(Leftovers, AnExtentThatCouldNotBeRemovedBeforeAnUnmountIsRemovedInTheNextLife) {
  put("a", content(1, kSoloBytes));
  ASSERT_TRUE(rig_->drain());
  die_and_mount();
  die_and_mount();
  ASSERT_TRUE(rig_->unlink("a"));
  calls_.give_nothing_back();
  ASSERT_TRUE(rig_->unmount());
  calls_.all_work();
  mount();
  EXPECT_EQ(files(".solo").size(), 0u);
}

// --- an unmount ---

StoreOptions little_memory() {
  StoreOptions options = small_options(Durability::kNone);
  options.memory_bytes = 16 * kMiB;
  return options;
}

class AtUnmount : public Leftovers {
 protected:
  void SetUp() override { start(make_sim_volume(), little_memory()); }
  void write_much(const Rig::HandlePtr& handle) {
    for (uint64_t i = 0; i < 40; ++i) ASSERT_TRUE(rig_->write(handle, i * kMiB, std::string(kMiB, 's')));
  }
  // The daemon ends while a client has it open.
  void unmount(Rig::HandlePtr handle) {
    static auto& open_for_ever = *new std::vector<Handle*>;
    open_for_ever.push_back(handle.release());
    ASSERT_TRUE(rig_->unmount());
  }
};

TEST_F(AtUnmount, WhatWasSpilledOfAnUnlinkedOpenFileGoes) {
  auto handle = rig_->create("s");
  ASSERT_TRUE(handle);
  write_much(*handle);
  ASSERT_EQ(files(".solo").size(), 1u);
  ASSERT_TRUE(rig_->unlink("s"));
  unmount(std::move(*handle));
  EXPECT_EQ(files(".solo").size(), 0u);
}

TEST_F(AtUnmount, WhatWasSpilledOfAFileRewrittenInPlaceGoesAndTheOldBodyStays) {
  put("s", content(1, kSoloBytes));
  ASSERT_TRUE(rig_->drain());
  auto handle = rig_->open("s", {.read = true, .write = true});
  ASSERT_TRUE(handle);
  write_much(*handle);
  ASSERT_EQ(files(".solo").size(), 2u);
  unmount(std::move(*handle));
  EXPECT_EQ(files(".solo").size(), 1u);
  mount();
  expect("s", content(1, kSoloBytes));
}

TEST_F(AtUnmount, WhatWasSpilledAndFinishedStays) {
  auto handle = rig_->create("s");
  ASSERT_TRUE(handle);
  write_much(*handle);
  ASSERT_TRUE(rig_->flush(*handle));
  unmount(std::move(*handle));
  EXPECT_EQ(files(".solo").size(), 1u);
  mount();
  expect("s", std::string(40 * kMiB, 's'));
}

TEST_F(AtUnmount, AnUnlinkedOpenRawFileGoes) {
  auto handle = rig_->create("r");
  ASSERT_TRUE(handle);
  ASSERT_TRUE(rig_->truncate("r", 2 * kGiB));
  ASSERT_EQ(files(".raw").size(), 1u);
  ASSERT_TRUE(rig_->unlink("r"));
  unmount(std::move(*handle));
  EXPECT_EQ(files(".raw").size(), 0u);
}

// --- which parts of a pack are dead ---

TEST(PackGaps, AreWhatNobodyTook) {
  using Ranges = std::vector<ByteRange>;
  EXPECT_EQ(gaps_in_pack({}, 4096), Ranges());
  EXPECT_EQ(gaps_in_pack({}, 12288), (Ranges{{4096, 12288}}));
  EXPECT_EQ(gaps_in_pack({{8192, 12288}}, 16384), (Ranges{{4096, 8192}, {12288, 16384}}));
  EXPECT_EQ(gaps_in_pack({{12288, 16384}, {4096, 12288}}, 16384), Ranges());
  EXPECT_EQ(gaps_in_pack({{4096, 20480}, {8192, 12288}}, 24576), (Ranges{{20480, 24576}}));
  EXPECT_EQ(gaps_in_pack({{4096, 8192}, {40960, 45056}}, 16384), (Ranges{{8192, 16384}}));
}

TEST(PackGaps, ASurplusIsMoreThanAFileSystemNeedsForItself) {
  EXPECT_EQ(pack_surplus_bytes(0, 8192, 1), 0u);
  EXPECT_EQ(pack_surplus_bytes(4096 + 8192 + 16384, 8192, 1), 0u);
  EXPECT_EQ(pack_surplus_bytes(4096 + 8192 + 20480, 8192, 1), 20480u);
  EXPECT_EQ(pack_surplus_bytes(4096 + 8192 + 20480, 8192, 512), 0u);
}

}  // namespace leftovers_test
}  // namespace kvcachefs::testing

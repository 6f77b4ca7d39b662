// A crash at every call that changes the volume: kill -9 of the daemon and power loss (unsynced data dropped or torn, names
// made or not), with the index kept, deleted or an older one. What was acknowledged is there; nothing is torn or mixed; an
// index made anew says the same.
#include <cstdlib>
#include <iostream>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/base/log.h"
#include "tests/fault/workload.h"

namespace kvcachefs::testing {
namespace crash_points_test {

constexpr size_t kOperations = 40;

bool long_run() {
  const char* text = std::getenv("KVCACHEFS_LONG");
  return text != nullptr && std::string_view(text) == "1";
}

enum class IndexAfter { kKept, kDeleted, kOlder };
constexpr const char* kIndexNames[] = {"kept", "deleted", "an older one"};
constexpr const char* kDurabilityNames[] = {"none", "close", "sync"};

// One life that ended at a crash point.
struct Ended {
  Reference reference;
  std::shared_ptr<SimVolume> disk;
  std::string index, older_index;  // directories; empty: there was none
};

class CrashPoints : public ::testing::TestWithParam<Durability> {
 protected:
  static void SetUpTestSuite() { log::set_level(tracing() ? log::Level::kInfo : log::Level::kOff); }

  // How many calls a whole life makes.
  static uint64_t calls_of(Durability durability, uint64_t seed) {
    Rig rig(small_options(durability));
    Reference reference;
    EXPECT_TRUE(rig.mount());
    Workload workload(rig, reference, seed);
    workload.run(kOperations);
    workload.check_live();
    for (const std::string& complaint : workload.complaints()) ADD_FAILURE() << complaint;
    EXPECT_GT(reference.acknowledgements(), 0u) << "the workload acknowledged nothing";
    EXPECT_TRUE(rig.unmount());
    return rig.disk().mutating_calls();
  }

  void recover(Rig& old, const Ended& life, Crash crash, const SimVolume::PowerLoss& loss, IndexAfter index_after);
  void crash_at(Durability durability, uint64_t seed, uint64_t call, int64_t torn_bytes, bool all_variants);
};

void expect_tree(Rig& rig, const Reference& reference, std::optional<Crash> crash, const std::string& when, Tree* out = nullptr) {
  auto tree = rig.tree();
  ASSERT_TRUE(tree) << when << ": " << tree.error().message;
  for (const std::string& problem : reference.judge(*tree, crash)) ADD_FAILURE() << when << ": " << problem;
  if (out != nullptr) *out = std::move(*tree);
}

std::vector<std::string> difference(const Tree& before, const Tree& after) {
  Reference reference;
  for (const auto& [name, content] : after) reference.change(name, std::nullopt);
  for (const auto& [name, content] : before) reference.change(name, content);
  return reference.judge(after, std::nullopt);
}

// The next start on `disk`, and what must hold then and later.
void CrashPoints::recover(Rig& old, const Ended& life, Crash crash, const SimVolume::PowerLoss& loss, IndexAfter index_after) {
  auto disk = crash == Crash::kPower ? old.disk().cut_power(loss) : old.disk().crash_process();
  if (crash == Crash::kPower) reboot(*disk);
  Rig rig(old.options(), disk);
  rig.clock().advance_ns(old.clock().realtime_ns() - rig.clock().realtime_ns() + 1'000'000'000);
  if (index_after == IndexAfter::kKept) rig.set_index_from(life.index);
  if (index_after == IndexAfter::kOlder) rig.set_index_from(life.older_index);
  const Status mounted = rig.mount();
  ASSERT_TRUE(mounted) << mounted.error().message;
  Tree tree;
  expect_tree(rig, life.reference, crash, "after the crash", &tree);
  if (HasFailure()) return;

  // It is a store like any other: more work, another death, another index.
  Reference reference = life.reference;
  reference.go_on_from(tree);
  Workload workload(rig, reference, loss.seed);
  workload.run(4);
  for (const std::string& complaint : workload.complaints()) ADD_FAILURE() << "after the crash: " << complaint;
  rig.die();
  Rig again(rig.options(), rig.disk().crash_process());
  again.clock().advance_ns(rig.clock().realtime_ns() - again.clock().realtime_ns() + 1'000'000'000);
  if (loss.seed % 2 == 0) again.set_index_from(rig.index_directory());
  ASSERT_TRUE(again.mount());
  expect_tree(again, reference, Crash::kProcess, "after a second crash", &tree);
  const Status closed = again.unmount();
  ASSERT_TRUE(closed) << closed.error().message;
  again.set_index_from("");
  ASSERT_TRUE(again.mount());
  auto rebuilt = again.tree();
  ASSERT_TRUE(rebuilt) << rebuilt.error().message;
  for (const std::string& problem : difference(tree, *rebuilt)) ADD_FAILURE() << "an index made anew says something else: " << problem;
  EXPECT_TRUE(again.unmount());
}

void CrashPoints::crash_at(Durability durability, uint64_t seed, uint64_t call, int64_t torn_bytes, bool all_variants) {
  SCOPED_TRACE(fmt::format("durability {}, seed {}, call {}, torn {}", kDurabilityNames[static_cast<size_t>(durability)], seed,
                           call, torn_bytes));
  Rig rig(small_options(durability));
  rig.disk().stop_at(call, torn_bytes);
  Ended life;
  if (rig.mount()) {
    Workload workload(rig, life.reference, seed);
    workload.copy_index_at(1 + call % kOperations);
    workload.run(kOperations);
    for (const std::string& complaint : workload.complaints()) ADD_FAILURE() << complaint;
    life.older_index = workload.middle_index();
    if (!rig.stopped()) workload.check_live();  // as in the life whose calls were counted: it lets time pass
    if (!rig.stopped()) (void)rig.store().close();  // the crash point is in the close
    rig.die();
  }
  ASSERT_TRUE(rig.stopped()) << "the life was shorter than the one before";
  life.index = rig.index_directory();
  for (unsigned variant = 0; variant < 4 && !HasFailure(); ++variant) {
    if (!all_variants && variant != call % 3 && variant != 3) continue;  // a power loss and a kill
    SimVolume::PowerLoss loss{.seed = call * 4 + variant, .keep_probability = 0.5, .tear_bytes = variant % 2 == 0 ? 4096u : 512u};
    if (variant == 1) loss.keep_probability = call % 2 == 0 ? 0.0 : 0.9;
    const Crash crash = variant == 3 ? Crash::kProcess : Crash::kPower;
    auto index_after = static_cast<IndexAfter>((call + variant) % 3);
    if (index_after == IndexAfter::kOlder && life.older_index.empty()) index_after = IndexAfter::kDeleted;
    SCOPED_TRACE(fmt::format("{}, index {}, loss seed {} keep {} tear {}", crash == Crash::kPower ? "power loss" : "kill",
                             kIndexNames[static_cast<size_t>(index_after)], loss.seed, loss.keep_probability, loss.tear_bytes));
    recover(rig, life, crash, loss, index_after);
  }
}

TEST_P(CrashPoints, NothingAcknowledgedIsLostAndNothingIsTorn) {
  const size_t seeds = long_run() ? 6 : 3, points = long_run() ? SIZE_MAX : 12;
  if (const char* one = std::getenv("KVCACHEFS_FAULT_CALL")) {  // "SEED CALL TORN" of a failure
    std::istringstream in(one);
    uint64_t seed = 0, call = 0;
    int64_t torn = -1;
    ASSERT_TRUE(in >> seed >> call >> torn) << one;
    return crash_at(GetParam(), seed, call, torn, true);
  }
  size_t tried = 0;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    const uint64_t calls = calls_of(GetParam(), seed);
    const uint64_t step = std::max<uint64_t>(1, calls / points);
    for (uint64_t call = 1 + seed % step; call <= calls; call += step, ++tried) {
      constexpr int64_t kTorn[] = {-1, 512, 4096, 0};
      crash_at(GetParam(), seed, call, kTorn[call % std::size(kTorn)], long_run());
      if (HasFailure()) return;
    }
  }
  std::cout << tried << " crash points\n";
}

INSTANTIATE_TEST_SUITE_P(Durability, CrashPoints, ::testing::Values(Durability::kNone, Durability::kClose, Durability::kSync),
                         [](const auto& each) { return kDurabilityNames[static_cast<size_t>(each.param)]; });

// --- cases that sweeps of other seeds found ---

class AfterPowerLoss : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log::set_level(tracing() ? log::Level::kInfo : log::Level::kOff); }

  void SetUp() override { ASSERT_TRUE(rig_->mount()); }

  // Written and closed; sealed by the background, journaled, not synced.
  void put(const std::string& name, const std::string& content) {
    auto handle = rig_->create(name);
    ASSERT_TRUE(handle);
    ASSERT_TRUE(rig_->write(*handle, 0, content));
    ASSERT_TRUE(rig_->flush(*handle));
    handle->reset();
    rig_->settle();
  }
  void overwrite(const std::string& name, const std::string& content, bool sync) {
    auto handle = rig_->open(name, {.read = true, .write = true});
    ASSERT_TRUE(handle);
    ASSERT_TRUE(rig_->write(*handle, 0, content));
    if (sync) {
      ASSERT_TRUE(rig_->fsync(*handle));
    }
    ASSERT_TRUE(rig_->flush(*handle));
  }
  void fsync(const std::string& name) {
    auto handle = rig_->open(name, {});
    ASSERT_TRUE(handle);
    ASSERT_TRUE(rig_->fsync(*handle));
  }
  // The next start, the index deleted.
  void start_anew(std::shared_ptr<SimVolume> disk) {
    rig_->die();
    const int64_t now_ns = rig_->clock().realtime_ns();
    rig_ = std::make_unique<Rig>(small_options(Durability::kNone), std::move(disk));
    rig_->clock().advance_ns(now_ns - rig_->clock().realtime_ns() + 1'000'000'000);
    ASSERT_TRUE(rig_->mount());
  }
  void lose_power(double keep_probability) {
    auto disk = rig_->disk().cut_power({.seed = 1, .keep_probability = keep_probability});
    reboot(*disk);
    start_anew(std::move(disk));
  }
  void expect(const std::string& name, const Content& content) {
    auto found = rig_->read(name);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(describe(*found), describe(content));
  }

  std::unique_ptr<Rig> rig_ = std::make_unique<Rig>(small_options(Durability::kNone));
  const std::string old_ = std::string(20'000, 'o'), new_ = std::string(25'000, 'n');
};

TEST_F(AfterPowerLoss, WhatTheBackgroundSealedBeforeTheFsyncIsThere) {
  put("n", old_);
  fsync("n");
  lose_power(0);
  expect("n", old_);
}

TEST_F(AfterPowerLoss, ALaterVersionKeepsTheNameThatATornOneBrought) {
  put("n", old_);
  overwrite("n", new_, /*sync=*/true);
  lose_power(0);
  expect("n", new_);
}

TEST_F(AfterPowerLoss, BodiesJudgedOnceAreNotJudgedAgainWhenTheirSpaceWasGivenBack) {
  put("n", old_);
  ASSERT_TRUE(rig_->drain());
  put("t", new_);
  ASSERT_TRUE(rig_->rename("t", "n"));
  rig_->settle();
  lose_power(1);  // not synced, but whole: the rename counts
  expect("n", new_);
  ASSERT_TRUE(rig_->rename("n", "m"));
  overwrite("m", old_ + old_, /*sync=*/true);
  ASSERT_TRUE(rig_->drain());
  rig_->pass_time(6'500'000'000);
  EXPECT_GT(rig_->store().status().reclaimed_bytes, 0u);
  start_anew(rig_->disk().crash_process());
  expect("m", old_ + old_);
  expect("n", std::nullopt);
}

}  // namespace crash_points_test
}  // namespace kvcachefs::testing

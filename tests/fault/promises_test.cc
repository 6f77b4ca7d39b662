// What was promised, or said to have failed, stays so across whatever comes between: a kill and then a power loss, a medium that
// does not answer for a while, a sync that fails once, bytes that rot under a body that is written to.
#include <cerrno>

#include <fmt/format.h>

#include "tests/fault/promises.h"

namespace kvcachefs::testing {
namespace promises_test {

TEST_F(Promises, WhatAKilledDaemonLeftIsSyncedWhenSomebodyAsks) {
  for (const bool raw : {false, true}) {
    SCOPED_TRACE(raw);
    start();
    if (raw) put_raw("f");
    const std::string bytes = content('a', raw ? 2 * kMiB : kPackedBytes);
    if (raw) {
      ASSERT_TRUE(rig_->write(open("f", true), 0, bytes));
    } else {
      put("f", bytes);
    }
    rig_->settle();  // on the volume and in the journal, nothing synced
    kill_and_mount();
    ASSERT_TRUE(rig_->fsync(open("f", false)));
    cut_power_and_mount(kNothingKept);
    expect("f", bytes);
  }
}

TEST_F(Promises, ABodyThatCannotBeReadAtTheStartIsKept) {
  start(Durability::kClose);
  put("f", content('a', kPackedBytes));
  put("g", content('g', kPackedBytes));  // will turn out not to be whole
  fault_ = [](const VolumeCall& call) {
    return Fault{.sys_errno = call.kind == VolumeCall::Kind::kRead && ends_with(call, ".pack") ? EIO : 0};
  };
  cut_power_and_mount(kAllKept);
  rig_->settle();
  rig_->pass_time(kUpkeepNs);  // what nothing names is given back by now
  rot(".pack", 0x1000 + align_up(kPackedBytes, kBlockBytes) + 10);
  fault_ = nullptr;
  rig_->pass_time(kUpkeepNs);
  ASSERT_TRUE(rig_->drain());
  EXPECT_EQ(rig_->store().status().objects_quarantined, 1u) << "looked at again before anybody reads it";
  expect("f", content('a', kPackedBytes));
}

TEST_F(Promises, WhatIsStillBeingWrittenIsLostAsAWhole) {
  for (const bool unmounted : {false, true}) {
    SCOPED_TRACE(unmounted);
    start();
    put("old", content('a', kPackedBytes));
    auto fresh = rig_->create("new");
    ASSERT_TRUE(fresh);
    ASSERT_TRUE(rig_->write(*fresh, 0, content('n', kPackedBytes)));
    auto changed = open("old", true);
    ASSERT_TRUE(rig_->drain());
    ASSERT_TRUE(rig_->write(changed, 0, content('b', kPackedBytes)));
    ASSERT_TRUE(rig_->drain()) << "does not wait for them";
    rig_->pass_time(kUpkeepNs);
    keep_open(*fresh);
    keep_open(changed);
    if (unmounted) {
      ASSERT_TRUE(rig_->unmount());
      mount();
    } else {
      kill_and_mount();
    }
    EXPECT_FALSE(*rig_->read("new")) << "absent";
    expect("old", content('a', kPackedBytes));
  }
}

// A body is written anew as a whole: one unit that rotted is enough to make that impossible.
TEST_F(Promises, ABodyThatCannotBeMadeAnewIsItsOwnersErrorAndNobodyElses) {
  start();
  put("f", content('a', kSoloBytes));
  ASSERT_TRUE(rig_->drain());
  rot(".solo", kSoloBytes - 10);
  auto handle = open("f", true);
  ASSERT_TRUE(rig_->write(handle, 0, "new"));
  put("g", content('g', kPackedBytes));
  EXPECT_TRUE(rig_->drain());
  EXPECT_FALSE(rig_->fsync(handle));
  handle.reset();
  const Status closed = rig_->unmount();
  EXPECT_TRUE(closed) << closed.error().message;
  mount();
  expect("g", content('g', kPackedBytes));
}

TEST_F(Promises, ANameInQuarantineThatIsWrittenAnewHasTheNewBytes) {
  constexpr size_t kBytes = 5 * kMiB / 2;  // loaded by several requests
  start();
  put("f", content('a', kBytes));
  ASSERT_TRUE(rig_->drain());
  rot(".solo", kBytes - 10);
  auto reader = open("f", false);
  EXPECT_FALSE(rig_->read(reader));  // and its good units stay in RAM
  rig_->settle();
  EXPECT_FALSE(*rig_->read("f")) << "absent";
  put("f", content('b', kBytes));
  reader.reset();
  EXPECT_TRUE(rig_->drain());
  rig_->pass_time(kUpkeepNs);
  EXPECT_EQ(rig_->store().status().errors_volume_write, 0u) << "the old body is written anew";
  const Status closed = rig_->unmount();
  EXPECT_TRUE(closed) << closed.error().message;
  mount();
  expect("f", content('b', kBytes));
}

TEST_F(Promises, ACheckpointThatFailedAtTheLastStepIsMadeAnew) {
  start();
  put("f", content('a', kPackedBytes));
  rig_->settle();
  int failures = 0;
  fault_ = [&](const VolumeCall& call) {
    const bool hit = call.kind == VolumeCall::Kind::kSyncDirectory && ends_with(call, "/checkpoint") && failures == 0;
    failures += hit ? 1 : 0;
    return Fault{.sys_errno = hit ? EIO : 0};
  };
  kill_and_mount();  // its first upkeep writes one
  rig_->settle();
  rig_->pass_time(kUpkeepNs);
  ASSERT_EQ(failures, 1);
  rig_->pass_time(kUpkeepNs);
  EXPECT_GT(rig_->store().status().checkpoints, 0u);
  const Status closed = rig_->unmount();
  EXPECT_TRUE(closed) << closed.error().message;
}

// A network volume after a failover: what was open is dead, the files live.
TEST_F(Promises, WhatIsReadThroughADescriptorThatDiedIsReadThroughAnother) {
  constexpr size_t kTwoUnits = 400'000;
  start();
  put("f", content('a', kTwoUnits));
  ASSERT_TRUE(rig_->drain());
  rig_->store().drop_caches();
  bool dead = false;
  int refused = 0;
  fault_ = [&](const VolumeCall& call) {
    if (!ends_with(call, ".pack")) return Fault{};
    if (call.kind == VolumeCall::Kind::kOpen) dead = false;
    const bool hit = call.kind == VolumeCall::Kind::kRead && dead;
    refused += hit ? 1 : 0;
    return Fault{.sys_errno = hit ? ESTALE : 0};
  };
  expect("f", content('a', kTwoUnits));
  dead = true;
  expect("f", content('a', kTwoUnits));
  EXPECT_GT(refused, 0);
  rig_->store().drop_caches();
  auto handle = open("f", true);
  ASSERT_TRUE(rig_->write(handle, 0, "b"));  // loads the first unit only
  dead = true;
  refused = 0;
  EXPECT_TRUE(rig_->fsync(handle));
  EXPECT_GT(refused, 0);
  handle.reset();
  expect("f", "b" + content('a', kTwoUnits - 1));
}

TEST_F(Promises, NoDescriptorOfAnExtentIsOpenWhenItIsRemoved) {
  start();
  int removed = 0;
  fault_ = [&](const VolumeCall& call) {
    if (call.kind != VolumeCall::Kind::kRemoveFile || call.path.find("/extents/") == std::string::npos) return Fault{};
    ++removed;
    EXPECT_EQ(rig_->disk().open_files(call.path), 0u) << call.path;
    return Fault{};
  };
  for (const size_t bytes : {kPackedBytes, kSoloBytes}) {
    for (int round = 0; round < 2; ++round) {  // a pack is removed once another one is begun
      for (int i = 0; i < (bytes == kPackedBytes ? 400 : 2); ++i) put(fmt::format("f{}", i), content('a', bytes));
      ASSERT_TRUE(rig_->drain());
      expect("f0", content('a', bytes));
      for (int i = 0; i < (bytes == kPackedBytes ? 400 : 2); ++i) ASSERT_TRUE(rig_->unlink(fmt::format("f{}", i)));
      rig_->pass_time(kUpkeepNs);
      rig_->pass_time(kUpkeepNs);
    }
  }
  EXPECT_GT(removed, 4);
}

}  // namespace promises_test
}  // namespace kvcachefs::testing

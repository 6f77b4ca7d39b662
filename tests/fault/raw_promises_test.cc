// What is promised of raw files: their bytes are on the volume at once, and neither a kill nor a failed sync hides what became of them.
#include <cerrno>

#include "tests/fault/promises.h"

namespace kvcachefs::testing {
namespace raw_promises_test {

TEST_F(Promises, AFailedSyncOfRawBytesIsToldEveryTime) {
  for (const bool by_the_keeper : {false, true}) {
    SCOPED_TRACE(by_the_keeper);
    start();
    put_raw("f");
    put_raw("g");
    auto handle = open("f", true);
    ASSERT_TRUE(rig_->write(handle, 0, content('a', kPackedBytes)));
    int failures = 0;
    fault_ = [&](const VolumeCall& call) {
      const bool hit = call.kind == VolumeCall::Kind::kSync && ends_with(call, ".raw") && failures == 0;
      failures += hit ? 1 : 0;
      return Fault{.sys_errno = hit ? EIO : 0};
    };
    if (by_the_keeper) {
      rig_->settle();
      rig_->pass_time(kUpkeepNs);
      ASSERT_EQ(failures, 1);
    }
    EXPECT_FALSE(rig_->fsync(handle));
    EXPECT_FALSE(rig_->fsync(handle)) << "the kernel tells it once";
    EXPECT_TRUE(rig_->fsync(open("g", false))) << "another file";
    EXPECT_TRUE(rig_->drain());
    handle.reset();
    ASSERT_TRUE(rig_->truncate("f", 0));
    put("f2", content('b', kPackedBytes));
    EXPECT_TRUE(rig_->unmount());
    fault_ = {};  // it counts in `failures`
  }
}

TEST_F(Promises, ACloseWithSyncIsOnTheMediumThoughNothingIsLeftToJournal) {
  start(Durability::kSync);
  put_raw("f");
  auto handle = open("f", true);
  ASSERT_TRUE(rig_->write(handle, 0, content('a', 2 * kMiB)));
  rig_->settle();  // somebody else's commit takes the new times along
  ASSERT_TRUE(rig_->flush(handle));
  handle.reset();
  cut_power_and_mount(kNothingKept);
  expect("f", content('a', 2 * kMiB));
}

// A pool of chunks that an engine sizes once and has open for days.
TEST_F(Promises, ARawFileThatIsNeverClosedIsThereHoweverTheDaemonEnds) {
  enum class End { kKill, kFlushAndPowerLoss, kUnmount };
  for (const End end : {End::kKill, End::kFlushAndPowerLoss, End::kUnmount}) {
    SCOPED_TRACE(static_cast<int>(end));
    start();
    auto handle = rig_->create("pool");
    ASSERT_TRUE(handle);
    ASSERT_TRUE(rig_->truncate("pool", 2 * kMiB));
    ASSERT_TRUE(rig_->write(*handle, 0, content('a', 2 * kMiB)));
    if (end == End::kKill) rig_->settle();
    if (end == End::kFlushAndPowerLoss) {
      ASSERT_TRUE(rig_->drain());
    }
    const uint64_t recorded = rig_->store().status().sealed_bodies;
    ASSERT_TRUE(rig_->write(*handle, 0, content('b', kMiB)));
    if (end == End::kFlushAndPowerLoss) {
      ASSERT_TRUE(rig_->drain());
    }
    if (end != End::kUnmount) {
      EXPECT_EQ(rig_->store().status().sealed_bodies, recorded) << "its record says nothing of its bytes";
    }
    keep_open(*handle);
    if (end == End::kKill) kill_and_mount();
    if (end == End::kFlushAndPowerLoss) cut_power_and_mount(kNothingKept);
    if (end == End::kUnmount) {
      ASSERT_TRUE(rig_->unmount());
      mount();
    }
    rig_->pass_time(kUpkeepNs);  // what nothing names is removed by now
    expect("pool", content('b', kMiB) + content('a', kMiB));
  }
}

TEST_F(Promises, AFailedWriteOfRawBytesMakesTheRenameFailUntilTheyAreWritten) {
  for (const bool emptied : {false, true}) {
    SCOPED_TRACE(emptied);
    start();
    put_raw("f");
    fault_ = [](const VolumeCall& call) {
      return Fault{.sys_errno = call.kind == VolumeCall::Kind::kWrite && ends_with(call, ".raw") ? EIO : 0};
    };
    EXPECT_FALSE(rig_->write(open("f", true), 2 * kMiB, content('a', kPackedBytes)));
    fault_ = nullptr;
    EXPECT_FALSE(rig_->rename("f", "final"));
    if (emptied) {
      ASSERT_TRUE(rig_->truncate("f", 0));
    } else {
      ASSERT_TRUE(rig_->write(open("f", true), 0, content('b', kPackedBytes)));
      EXPECT_FALSE(rig_->rename("f", "final")) << "other bytes";
      ASSERT_TRUE(rig_->write(open("f", true), 2 * kMiB, content('c', kPackedBytes)));
    }
    EXPECT_TRUE(rig_->rename("f", "final"));
    EXPECT_TRUE(rig_->unmount());
  }
}

}  // namespace raw_promises_test
}  // namespace kvcachefs::testing

// Files that nobody needs, and the capacity that they keep until they are gone.
#include "store/space/discards.h"

#include <cerrno>
#include <memory>

#include <gtest/gtest.h>

#include "store/base/units.h"
#include "store/extent/extents.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {
namespace discards_test {

class DiscardsTest : public ::testing::Test {
 protected:
  // A file for which so much of the capacity is reserved.
  ExtentId make(uint64_t reserved_bytes) {
    auto made = extents.make(PlaceKind::kSolo);
    EXPECT_TRUE(made) << made.error().message;
    EXPECT_TRUE(space.try_reserve(reserved_bytes));
    return made->id;
  }
  bool is_there(ExtentId id) { return extents.info(id, PlaceKind::kSolo).has_value(); }

  int refusal = 0;  // errno of removals
  std::shared_ptr<Volume> volume = make_fault_volume(make_sim_volume(), [this](const VolumeCall& call) {
    return call.kind == VolumeCall::Kind::kRemoveFile ? Fault{.sys_errno = refusal} : Fault{};
  });
  Space space;
  DeadSpace dead{space};
  Wakeup wakeup;
  WorkQueue work{wakeup};
  Extents extents{volume, FileIdentity{.volume_uuid = {}, .node = "test", .epoch = 1}, 8};
  Discards discards{{space, dead, work, extents}};
};

TEST_F(DiscardsTest, WhatWasSetAsideComesBackOnceTheFileIsGone) {
  space.configure(kGiB, 0);
  const uint64_t before = space.room_bytes();
  const ExtentId id = make(3 * kMiB);
  discards.remove_later(id, PlaceKind::kSolo, 3 * kMiB);
  EXPECT_TRUE(is_there(id));
  EXPECT_EQ(space.room_bytes(), before - 3 * kMiB);
  work.run();
  EXPECT_FALSE(is_there(id));
  EXPECT_EQ(space.room_bytes(), before);
  EXPECT_FALSE(dead.any());
}

TEST_F(DiscardsTest, AFileThatCannotBeRemovedIsDeadSpaceAndTriedAgain) {
  space.configure(kGiB, 0);
  const uint64_t before = space.room_bytes();
  const ExtentId id = make(3 * kMiB);
  refusal = EIO;
  discards.remove_later(id, PlaceKind::kSolo, 3 * kMiB);
  work.run();
  EXPECT_TRUE(is_there(id));
  EXPECT_EQ(space.room_bytes(), before - 3 * kMiB) << "its blocks are on the volume";
  EXPECT_EQ(dead.bytes(), 3 * kMiB);
  EXPECT_TRUE(dead.mentions(id));
}

}  // namespace discards_test
}  // namespace kvcachefs

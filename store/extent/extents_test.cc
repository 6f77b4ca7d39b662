// What a failed sync leaves noted.
#include <cerrno>
#include <functional>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "store/extent/extents.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {
namespace extents_test {

class FailedSyncs : public ::testing::Test {
 protected:
  Extents::Made make(PlaceKind kind) {
    auto made = extents_.make(kind);
    EXPECT_TRUE(made) << made.error().message;
    return *made;
  }
  int syncs_ = 0;
  bool fail_ = false;
  std::function<void()> on_sync_;
  Extents extents_{make_fault_volume(make_sim_volume(),
                                     [this](const VolumeCall& call) {
                                       if (call.kind != VolumeCall::Kind::kSync) return Fault{};
                                       ++syncs_;
                                       if (on_sync_) on_sync_();
                                       return Fault{.sys_errno = fail_ ? EIO : 0};
                                     }),
                   FileIdentity{.volume_uuid = {}, .node = "test", .epoch = 1}, 8};
};

TEST_F(FailedSyncs, AreNotTriedAgain) {
  for (const bool ahead : {false, true}) {
    const Extents::Made lost = make(PlaceKind::kPacked);
    fail_ = true;
    EXPECT_FALSE(ahead ? extents_.sync_ahead() : extents_.sync_all());
    fail_ = false;
    syncs_ = 0;
    const Extents::Made good = make(PlaceKind::kPacked);
    extents_.note_unsynced(lost.id, PlaceKind::kPacked, lost.file);
    EXPECT_TRUE(extents_.sync_all()) << "it was told, and is no reason to keep others back";
    EXPECT_EQ(syncs_, 1) << "of the good one";
    EXPECT_TRUE(extents_.is_lost(lost.id));
    EXPECT_FALSE(extents_.is_lost(good.id));
    EXPECT_FALSE(extents_.sync({good.id, lost.id})) << "who asks for it";
    EXPECT_FALSE(extents_.sync({lost.id})) << "every time";
    EXPECT_TRUE(extents_.sync({good.id}));
    EXPECT_EQ(extents_.lost().size(), 1u);
    ASSERT_TRUE(extents_.remove(lost.id, PlaceKind::kPacked));
    EXPECT_TRUE(extents_.lost().empty());
  }
}

TEST_F(FailedSyncs, OfRawFilesAreToldToWhoAsksForThem) {
  const Extents::Made raw = make(PlaceKind::kRaw);
  fail_ = true;
  EXPECT_TRUE(extents_.sync_all());
  EXPECT_FALSE(extents_.told_of_raw({raw.id}));
  EXPECT_FALSE(extents_.is_lost(raw.id));
}

TEST_F(FailedSyncs, OfWhatIsRemovedMeanwhileSayNothing) {
  for (const PlaceKind kind : {PlaceKind::kRaw, PlaceKind::kPacked}) {
    const Extents::Made made = make(kind);
    fail_ = true;
    on_sync_ = [&] { ASSERT_TRUE(extents_.remove(made.id, kind)); };
    EXPECT_TRUE(extents_.sync({made.id}));
    fail_ = false;
    on_sync_ = nullptr;
    EXPECT_TRUE(extents_.told_of_raw({made.id}));
    EXPECT_TRUE(extents_.lost().empty());
  }
}

}  // namespace extents_test
}  // namespace kvcachefs

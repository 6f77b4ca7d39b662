// Bodies from RAM to a volume in memory, without lanes.
#include "store/writeback/sealer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "store/writeback/testing/writeback_fixture.h"

namespace kvcachefs {
namespace sealer_test {

class SealerTest : public WritebackFixture {
 protected:
  std::vector<SealedBody> seal(const std::vector<ObjectPtr>& objects) {
    Status status;
    std::vector<SealedBody> sealed = seal_all(objects, status);
    EXPECT_TRUE(status) << status.error().message;
    return sealed;
  }
  void commit(std::vector<SealedBody> bodies) {
    queue.add(request(std::move(bodies)));
    ASSERT_TRUE(committer->step());
  }
};

TEST_F(SealerTest, SizeDecidesWhereABodyLiesAndItsBytesAreThere) {
  const ObjectPtr tiny = write_new("tiny", 1000, 1), small = write_new("small", 5000, 2), other = write_new("other", 300'000, 3),
                  large = write_new("large", kPackBelow + 100, 4);
  commit(seal({tiny, small, other, large}));
  EXPECT_EQ(journaled(tiny).place.kind, PlaceKind::kInline);
  EXPECT_EQ(journaled(small).place.kind, PlaceKind::kPacked);
  EXPECT_EQ(journaled(other).place.extent, journaled(small).place.extent) << "they share a pack";
  EXPECT_EQ(journaled(other).place.offset, journaled(small).place.offset + 8192);
  EXPECT_EQ(journaled(large).place.kind, PlaceKind::kSolo);
  EXPECT_TRUE(holds(tiny, bytes_of(1000, 1)) && holds(small, bytes_of(5000, 2)) && holds(other, bytes_of(300'000, 3)) &&
              holds(large, bytes_of(kPackBelow + 100, 4)));
  auto solo = extents.info(journaled(large).place.extent, PlaceKind::kSolo);
  ASSERT_TRUE(solo);
  EXPECT_EQ(solo->size_bytes, kPackBelow + 100) << "cut to size";
  EXPECT_GT(queue.unsynced_bytes(), 0u);
}

TEST_F(SealerTest, WhereManyExtentsAreOpenBodiesGoOnIntoAPackAndItGrowsPastItsSize) {
  int asked = 0;
  extents.limit_made(3, [&] { ++asked; });
  std::vector<ObjectPtr> bodies;
  for (uint64_t i = 0; i < 6; ++i) bodies.push_back(write_new(std::to_string(i), kPackBelow + 100 * i, i));
  commit(seal(bodies));
  size_t solo = 0;
  std::set<ExtentId> places;
  for (uint64_t i = 0; i < 6; ++i) {
    EXPECT_TRUE(holds(bodies[i], bytes_of(kPackBelow + 100 * i, i)));
    solo += journaled(bodies[i]).place.kind == PlaceKind::kSolo;
    places.insert(journaled(bodies[i]).place.extent);
  }
  EXPECT_EQ(solo, 3u);
  EXPECT_EQ(places.size(), 4u) << "and one pack";
  EXPECT_EQ(asked, 1);
  ASSERT_TRUE(extents.take_asked_for_syncs() && extents.sync_ahead());
  const ObjectPtr next = write_new("next", kPackBelow, 9);
  commit(seal({next}));
  EXPECT_EQ(journaled(next).place.kind, PlaceKind::kSolo);
}

TEST_F(SealerTest, HolesOfASoloBodyStayHolesAndReadAsZeros) {
  const ObjectPtr body = make("a");
  const std::vector<std::byte> end = bytes_of(100, 1);
  write_at(body, 8 * kUnitBytes, end);
  commit(seal({body}));
  ASSERT_EQ(journaled(body).place.kind, PlaceKind::kSolo);
  std::vector<std::byte> expected(8 * kUnitBytes, std::byte{0});
  expected.insert(expected.end(), end.begin(), end.end());
  EXPECT_TRUE(holds(body, expected));
  EXPECT_LT(counters.write_volume_bytes.load(), kUnitBytes);

  // Nor does a change elsewhere fill them.
  const std::vector<std::byte> begin = bytes_of(100, 2);
  write_at(body, 0, begin);
  const uint64_t before = counters.write_volume_bytes;
  commit(seal({body}));
  std::ranges::copy(begin, expected.begin());
  EXPECT_TRUE(holds(body, expected));
  EXPECT_LT(counters.write_volume_bytes - before, 2 * kUnitBytes);
}

TEST_F(SealerTest, AFullPackIsClosedAndCutAndAnotherBegun) {
  std::vector<ObjectPtr> bodies;
  for (int i = 0; i < 3; ++i) bodies.push_back(write_new(std::to_string(i), 900'000, static_cast<uint64_t>(i)));
  std::vector<SealedBody> sealed = seal(bodies);
  ASSERT_EQ(sealed.size(), 3u);
  EXPECT_EQ(sealed[0].body.place.extent, sealed[1].body.place.extent);
  EXPECT_NE(sealed[1].body.place.extent, sealed[2].body.place.extent);
  ASSERT_EQ(target.closed, std::vector<ExtentId>{sealed[0].body.place.extent});
  auto pack = extents.info(target.closed[0], PlaceKind::kPacked);
  ASSERT_TRUE(pack);
  EXPECT_EQ(pack->size_bytes, kBlockBytes + 2 * align_up(uint64_t{900'000}, kBlockBytes));
  EXPECT_TRUE(dead.is_open(target.extent));
  sealer.finish(target);
  EXPECT_FALSE(target.file);
}

TEST_F(SealerTest, ABodyThatFailsStaysDirtyAndIsQueuedAndTheOthersGoOn) {
  const ObjectPtr good = write_new("good", 5000, 1), bad = write_new("bad", kPackBelow, 2);
  on_call = [](const VolumeCall& each) {
    return Fault{.sys_errno = each.kind == VolumeCall::Kind::kWrite && each.path.ends_with(".solo") ? EIO : 0};
  };
  Status status;
  std::vector<SealedBody> sealed = seal_all({good, bad}, status);
  EXPECT_FALSE(status);
  ASSERT_EQ(sealed.size(), 1u);
  EXPECT_EQ(sealed[0].snapshot.object, good);
  EXPECT_TRUE(is_queued(bad));
  {
    const auto lock = bad->lock();
    EXPECT_TRUE(bad->content_dirty());
    EXPECT_FALSE(bad->sealing);
    EXPECT_EQ(bad->reserved_bytes, kPackBelow);
  }
  for (const std::string& file : sim->all_files()) EXPECT_FALSE(file.ends_with(".solo")) << "what no record names is removed at once";
  EXPECT_EQ(counters.errors_volume_write, 1u);
  on_call = nullptr;
  commit(std::move(sealed));
  commit(seal({bad}));
  EXPECT_TRUE(holds(bad, bytes_of(kPackBelow, 2)));
}

TEST_F(SealerTest, WithoutAFileForItALargeBodyGoesIntoThePack) {
  commit(seal({write_new("first", 5000, 1)}));
  const ObjectPtr body = write_new("large", kPackBelow + kUnitBytes, 2);
  on_call = [](const VolumeCall& each) { return Fault{.sys_errno = each.kind == VolumeCall::Kind::kCreate ? ENOSPC : 0}; };
  commit(seal({body}));
  EXPECT_EQ(journaled(body).place.kind, PlaceKind::kPacked);
  EXPECT_TRUE(holds(body, bytes_of(kPackBelow + kUnitBytes, 2)));
}

TEST_F(SealerTest, TheSameBytesInPlaceOfAnotherTakeItsPlaceOver) {
  const ObjectPtr old = write_new("a", 300'000, 1);
  commit(seal({old}));
  const Place place = journaled(old).place;
  const ObjectPtr same = write_new("tmp", 300'000, 1);
  rename("tmp", "a");
  const uint64_t written = counters.write_volume_bytes.load();
  commit(seal({same}));
  EXPECT_EQ(counters.write_volume_bytes.load(), written);
  EXPECT_EQ(counters.deduplicated_bodies, 1u);
  EXPECT_EQ(journaled(same).place, place);
  const ObjectPtr different = write_new("tmp", 300'000, 2);
  rename("tmp", "a");
  commit(seal({different}));
  EXPECT_NE(journaled(different).place, place);
  EXPECT_TRUE(holds(different, bytes_of(300'000, 2)));
}

TEST_F(SealerTest, NobodySealsABodyTwiceAtOnceAndACleanOneNotAtAll) {
  const ObjectPtr body = write_new("a", 5000);
  Snapshot first = snapshot_of(body), second;
  EXPECT_FALSE(sealer.begin_seal(body, Sealer::Promise::kKept, second));
  Status status;
  std::vector<Snapshot> snapshots;
  snapshots.push_back(std::move(first));
  commit(sealer.seal(std::move(snapshots), target, status));
  EXPECT_FALSE(sealer.begin_seal(body, Sealer::Promise::kKept, second));
}

}  // namespace sealer_test
}  // namespace kvcachefs

// Records behind good checksums that no daemon wrote: what cannot be read without going past what is there is left out.
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/base/checksum.h"
#include "store/base/log.h"
#include "store/base/units.h"
#include "store/index/index.h"
#include "store/journal/volume_file.h"
#include "tests/fault/rig.h"

namespace kvcachefs::testing {
namespace bad_records_test {

constexpr uint32_t kEpoch = 50;  // of who is to blame

ObjectRecord object(uint64_t number, uint32_t type_bits = S_IFREG) {
  ObjectRecord made;
  made.id = ObjectId::make(0, kEpoch, number);
  made.attributes.mode = type_bits | 0644;
  made.body.version = 1;
  return made;
}

ObjectRecord body(uint64_t number, const Place& place, uint64_t size_bytes, size_t checksums) {
  ObjectRecord made = object(number);
  made.body.size_bytes = size_bytes;
  made.body.place = place;
  made.body.checksums.resize(checksums);
  return made;
}

ObjectRecord inline_body(uint64_t number, std::string_view bytes) {
  ObjectRecord made = body(number, {PlaceKind::kInline, {}, 0, bytes.size()}, bytes.size(), 0);
  made.body.checksums = {checksum(as_bytes(bytes))};
  made.body.inline_bytes.assign(as_bytes(bytes).begin(), as_bytes(bytes).end());
  return made;
}

std::vector<ObjectRecord> bad_objects() {
  const ExtentId extent{kEpoch, 1}, other{kEpoch, 2};
  std::vector<ObjectRecord> bad;
  const auto number = [&] { return bad.size() + 1; };
  bad.push_back(inline_body(number(), "fewer bytes"));
  bad.back().body.size_bytes = bad.back().body.place.length = 1000;
  bad.push_back(inline_body(number(), "no checksum"));
  bad.back().body.checksums.clear();
  bad.push_back(body(number(), {PlaceKind::kPacked, extent, 4096, 300'000}, 300'000, 1));
  bad.push_back(body(number(), {PlaceKind::kPacked, extent, 4096, 300'000}, 300'000, 3));
  bad.push_back(body(number(), {PlaceKind::kPacked, extent, 4096, UINT64_MAX - 4096}, 5000, 1));
  bad.push_back(body(number(), {PlaceKind::kSolo, other, UINT64_MAX - 4095, 5000}, 5000, 1));
  bad.push_back(body(number(), {PlaceKind::kPacked, extent, 5, 5000}, 5000, 1));
  bad.push_back(body(number(), {PlaceKind::kRaw, other, 0, 0}, uint64_t{1} << 60, 0));
  bad.push_back(body(number(), {}, 1000, 0));
  bad.push_back(object(number(), S_IFLNK));
  bad.back().body.size_bytes = 1000;
  bad.push_back(body(number(), {PlaceKind::kPacked, extent, 4096, 5000}, 5000, 1));
  bad.back().attributes.mode = S_IFDIR | 0755;
  return bad;
}

class BadRecords : public ::testing::TestWithParam<bool> {
 protected:
  static void SetUpTestSuite() { log::set_level(tracing() ? log::Level::kInfo : log::Level::kOff); }
  void SetUp() override {
    ASSERT_TRUE(rig_.mount());
    ASSERT_TRUE(rig_.unmount());
    Bytes header(kVolumeFileBytes);
    ASSERT_TRUE((*disk_->open(kVolumeFileName, {}))->read(header, 0));
    identity_ = {decode_volume_file(header)->uuid, "test", kEpoch};
    boot_id_ = list_journals(*disk_, identity_)->front().boot_id;  // nothing is verified
    ASSERT_TRUE(disk_->make_directories(epoch_directory(identity_.node, kEpoch)));
  }
  void write(const std::vector<ObjectRecord>& objects, const std::vector<NameRecord>& names) {
    auto journal = JournalWriter::create(disk_, identity_, boot_id_, kMiB);
    ASSERT_TRUE(journal);
    Batch batch;
    batch.stamp.value = static_cast<uint64_t>(rig_.clock().realtime_ns());
    for (const ObjectRecord& each : objects) batch.records.emplace_back(PutRecord{each});
    for (const NameRecord& each : names) batch.records.emplace_back(each);
    if (!GetParam()) {
      ASSERT_TRUE((*journal)->append(batch));
      ASSERT_TRUE((*journal)->sync());
      return;
    }
    CheckpointHeader header{(*journal)->position(), batch.stamp, 1000};
    auto checkpoint = CheckpointWriter::create(disk_, identity_, 0, header);
    ASSERT_TRUE(checkpoint);
    for (Record& each : batch.records) ASSERT_TRUE((*checkpoint)->add(std::move(each)));
    ASSERT_TRUE((*checkpoint)->finish());
    rig_.set_index_from("");
  }
  const std::shared_ptr<SimVolume> disk_ = make_sim_volume();
  Rig rig_{small_options(Durability::kNone), disk_};
  FileIdentity identity_;
  std::string boot_id_;
};

INSTANTIATE_TEST_SUITE_P(JournalOrCheckpoint, BadRecords, ::testing::Bool());

TEST_P(BadRecords, AreLeftOut) {
  std::vector<ObjectRecord> objects = bad_objects();
  const size_t bad = objects.size();
  objects.push_back(inline_body(bad + 1, "good"));
  std::vector<NameRecord> names;
  for (size_t i = 0; i < objects.size(); ++i) names.push_back({kRootId, i < bad ? fmt::format("bad{}", i) : "good", objects[i].id});
  std::ranges::sort(names, {}, [](const NameRecord& each) { return name_cookie(each.name); });
  write(objects, names);
  const Status mounted = rig_.mount();
  ASSERT_TRUE(mounted) << mounted.error().message;
  for (size_t i = 0; i < bad; ++i) EXPECT_FALSE(rig_.store().lookup(kRootId, fmt::format("bad{}", i), {})) << i;
  auto good = rig_.read("good");
  ASSERT_TRUE(good) << good.error().message;
  EXPECT_EQ(describe(*good), describe(Content("good")));
  auto tree = rig_.tree();
  ASSERT_TRUE(tree) << tree.error().message;
  EXPECT_EQ(tree->size(), 1u);
  ASSERT_TRUE(rig_.unmount());
}

TEST_P(BadRecords, ThatMakeALinkAFileAreLeftOut) {
  if (GetParam()) return;  // there are none in a checkpoint
  ObjectRecord link = object(1, S_IFLNK);
  link.body.size_bytes = 6;
  link.body.inline_bytes.assign(6, std::byte{'x'});
  write({link}, {{kRootId, "link", link.id}});
  identity_.epoch = kEpoch + 1;
  ASSERT_TRUE(disk_->make_directories(epoch_directory(identity_.node, identity_.epoch)));
  auto journal = JournalWriter::create(disk_, identity_, boot_id_, kMiB);
  ASSERT_TRUE(journal);
  Batch batch;
  batch.stamp.value = static_cast<uint64_t>(rig_.clock().realtime_ns());
  Attributes attributes = link.attributes;
  attributes.mode = S_IFREG | 0644;
  batch.records.emplace_back(AttributesRecord{link.id, attributes});
  batch.records.emplace_back(MoveRecord{link.id, 1, {PlaceKind::kInline, {}, 0, 6}});
  ASSERT_TRUE((*journal)->append(batch));
  ASSERT_TRUE((*journal)->sync());
  ASSERT_TRUE(rig_.mount());
  EXPECT_EQ(*rig_.store().read_symlink(link.id), "xxxxxx");
  EXPECT_TRUE(S_ISLNK(rig_.store().lookup(kRootId, "link", {})->mode));
  ASSERT_TRUE(rig_.unmount());
}

}  // namespace bad_records_test
}  // namespace kvcachefs::testing

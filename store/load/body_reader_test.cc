// Bodies read and judged by the store's own threads: what a start trusts, and what is looked at again.
#include "store/load/body_reader.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "store/load/testing/load_fixture.h"
#include "store/load/unverified_bodies.h"

namespace kvcachefs {
namespace body_reader_test {

using Wholeness = BodyReader::Wholeness;

class BodyReaderTest : public LoadFixture {
 protected:
  Wholeness judge(ObjectId id) { return reader.wholeness(index.objects.at(id), sealing_memory); }
  Snapshot snapshot_of(ObjectId id) {
    const Body& body = index.objects.at(id).body;
    Snapshot snapshot;
    snapshot.size_bytes = snapshot.base_valid_bytes = body.size_bytes;
    snapshot.base = body;
    return snapshot;
  }
  bool begins_with(const Block& block, uint64_t id, uint64_t from, uint64_t length) {
    return std::memcmp(block.bytes().data(), bytes_of(from + length, id).data() + from, length) == 0;
  }
};

TEST_F(BodyReaderTest, AUnitHasTheBytesOfTheBaseAsFarAsTheyAreValidAndZerosBehind) {
  const ObjectId id = put_body(kUnitBytes + 6000);
  Snapshot snapshot = snapshot_of(id);
  snapshot.base_valid_bytes = kUnitBytes + 1000;  // cut, and sized up again since
  snapshot.size_bytes = kUnitBytes + 9000;
  auto block = reader.fetch(snapshot, 1, sealing_memory);
  ASSERT_TRUE(block) << block.error().message;
  EXPECT_TRUE(begins_with(**block, id.value, kUnitBytes, 1000));
  for (uint64_t at = 1000; at < 9000; ++at) ASSERT_EQ((*block)->bytes()[at], std::byte{0}) << at;
}

// A body that grew: nothing of it was loaded, and its seal gives what is read here a checksum of its own.
TEST_F(BodyReaderTest, BytesInTheRecordAreVerifiedAsThoseElsewhere) {
  Snapshot snapshot;
  const std::vector<std::byte> bytes = bytes_of(4000, 7);
  snapshot.size_bytes = 5000;
  snapshot.base.size_bytes = snapshot.base_valid_bytes = 4000;
  snapshot.base.place = {PlaceKind::kInline, {}, 0, 4000};
  snapshot.base.inline_bytes.assign(bytes.begin(), bytes.end());
  snapshot.base.checksums = {checksum(bytes)};
  auto block = reader.fetch(snapshot, 0, sealing_memory);
  ASSERT_TRUE(block) << block.error().message;
  EXPECT_TRUE(begins_with(**block, 7, 0, 4000));
  EXPECT_EQ((*block)->bytes()[4500], std::byte{0});
  snapshot.base.inline_bytes[100] ^= std::byte{1};
  auto flipped = reader.fetch(snapshot, 0, sealing_memory);
  ASSERT_FALSE(flipped);
  EXPECT_EQ(flipped.error().code, Code::kCorrupt);
}

TEST_F(BodyReaderTest, ARecordThatLacksBytesOfItsBodyIsRefused) {
  Snapshot snapshot;
  snapshot.size_bytes = 200'000;
  snapshot.base.size_bytes = snapshot.base_valid_bytes = 150'000;
  snapshot.base.place = {PlaceKind::kInline, {}, 0, 150'000};
  snapshot.base.inline_bytes.assign(10, std::byte{1});
  snapshot.base.checksums = {checksum(snapshot.base.inline_bytes)};
  EXPECT_FALSE(reader.fetch(snapshot, 0, sealing_memory)) << "150000 bytes of 10";
  snapshot.base.inline_bytes.assign(150'000, std::byte{1});
  snapshot.base.checksums.clear();
  EXPECT_FALSE(reader.fetch(snapshot, 0, sealing_memory)) << "without a checksum";
}

TEST_F(BodyReaderTest, ASpilledUnitIsTakenFromTheSpillFile) {
  const ObjectId id = put_body(5000), spilled = put_body(6000, PlaceKind::kSolo);
  Snapshot snapshot = snapshot_of(id);
  snapshot.size_bytes = 7000;  // it grew since
  const Body& there = index.objects.at(spilled).body;
  snapshot.spill_extent = there.place.extent;
  snapshot.spill = *extents.open(there.place.extent, PlaceKind::kSolo);
  snapshot.units.push_back({.block = nullptr, .spilled = true, .spill_bytes = 6000, .spill_checksum = there.checksums[0]});
  auto block = reader.fetch(snapshot, 0, sealing_memory);
  ASSERT_TRUE(block) << block.error().message;
  EXPECT_TRUE(begins_with(**block, spilled.value, 0, 6000));
  EXPECT_EQ((*block)->bytes()[6500], std::byte{0}) << "behind what lies there";
}

TEST_F(BodyReaderTest, BytesThatDoNotMatchAreReadOnceMoreAndThenRefused) {
  const ObjectId id = put_body(5000);
  int left = 1;
  on_read = [&](const VolumeCall&) {  // the first read sees a flipped bit
    if (left-- == 1) flip(id, 3);
    else if (left == -1) flip(id, 3);
    return Fault{};
  };
  EXPECT_TRUE(reader.fetch(snapshot_of(id), 0, sealing_memory));
  EXPECT_EQ(reads.size(), 2u);
  on_read = nullptr;
  flip(id, 3);
  auto block = reader.fetch(snapshot_of(id), 0, sealing_memory);
  ASSERT_FALSE(block);
  EXPECT_EQ(block.error().code, Code::kCorrupt);
  EXPECT_NE(block.error().message.find(path_of(id)), std::string::npos) << block.error().message;
}

TEST_F(BodyReaderTest, WhatIsThereAndRightIsWhole) {
  EXPECT_EQ(judge(put_body(3 * kUnitBytes + 1)), Wholeness::kWhole);
  EXPECT_EQ(judge(put_body(0)), Wholeness::kWhole);
  EXPECT_EQ(counters.verified_bodies, 2u);
}

TEST_F(BodyReaderTest, WhatIsWrongShortOrGoneIsAbsentForSure) {
  const ObjectId wrong = put_body(2 * kUnitBytes), shorter = put_body(2 * kUnitBytes, PlaceKind::kSolo), gone = put_body(5000, PlaceKind::kSolo);
  flip(wrong, kUnitBytes);
  ASSERT_TRUE(sim->cut(path_of(shorter), kUnitBytes));
  ASSERT_TRUE(extents.remove(index.objects.at(gone).body.place.extent, PlaceKind::kSolo));
  for (ObjectId id : {wrong, shorter, gone}) EXPECT_EQ(judge(id), Wholeness::kAbsent) << path_of(id);
  const ObjectId unsummed = put_body(2 * kUnitBytes);
  index.objects.at(unsummed).body.checksums.pop_back();
  EXPECT_EQ(judge(unsummed), Wholeness::kAbsent);
}

TEST_F(BodyReaderTest, AVolumeThatDoesNotAnswerSaysNothing) {
  const ObjectId id = put_body(5000);
  on_read = [](const VolumeCall&) { return Fault{.sys_errno = EIO}; };
  EXPECT_EQ(judge(id), Wholeness::kUnknown);
}

TEST_F(BodyReaderTest, WhatCouldNotBeVerifiedIsLookedAtUntilItIsKnown) {
  const ObjectId good = put_body(5000), bad = put_body(5000, PlaceKind::kSolo), removed = put_body(5000);
  UnverifiedBodies unverified({index, tree, reader, quarantine}, {good, bad, removed});
  index.objects.erase(removed);
  flip(bad, 0);
  on_read = [](const VolumeCall&) { return Fault{.sys_errno = EIO}; };
  unverified.look_again(sealing_memory);
  EXPECT_TRUE(unverified.contains(good));
  EXPECT_TRUE(unverified.contains(bad));
  EXPECT_FALSE(unverified.contains(removed)) << "nothing is left to verify";
  on_read = nullptr;
  unverified.look_again(sealing_memory);
  EXPECT_FALSE(unverified.contains(good));
  EXPECT_FALSE(unverified.contains(bad));
  EXPECT_FALSE(tree.read().is_quarantined(good));
  EXPECT_TRUE(tree.read().is_quarantined(bad));
}

}  // namespace body_reader_test
}  // namespace kvcachefs

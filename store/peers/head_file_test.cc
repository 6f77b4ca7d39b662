#include "store/peers/head_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "store/journal/test_records.h"

namespace kvcachefs {
namespace head_file_test {

Head head_with(uint64_t counter) {
  Head head;
  head.identity = test_identity();
  head.counter = counter;
  for (size_t i = 0; i < head.instance.size(); ++i) head.instance[i] = static_cast<std::byte>(i + 1);
  head.host = "host-1";
  head.boot_id = "5d3c1e8a-boot";
  head.journal_end = {3, 4, 4096 * (1 + counter)};
  head.oldest_journal = {2, 7, 0};
  head.checkpoint = HeadCheckpoint{3, 1};
  head.physical_bytes = 1 << 20;
  head.claim_bytes = 1 << 21;
  head.wish_bytes = 1 << 22;
  head.capacity_bytes = 1 << 30;
  for (size_t i = 0; i < head.bytes_by_age.size(); ++i) head.bytes_by_age[i] = i * i;
  head.address = "192.0.2.7:4711";
  return head;
}

Acks acks_with(uint64_t counter) {
  Acks acks;
  acks.identity = test_identity();
  acks.counter = counter;
  acks.peers = {{"node-b", {2, 1, 4096 * counter}, {ObjectId::make(0, 1, 5 + counter), ObjectId::make(0, 2, 1)}}, {"node-c", {1, 0, 4096}, {}}};
  return acks;
}

// The file as it is after these writes.
Bytes file_of(std::initializer_list<uint64_t> counters, Bytes (*slot)(uint64_t), uint64_t (*offset)(uint64_t), size_t slot_bytes) {
  Bytes file(2 * slot_bytes);
  for (const uint64_t counter : counters) std::ranges::copy(slot(counter), file.begin() + static_cast<ptrdiff_t>(offset(counter)));
  return file;
}
Bytes head_slot(uint64_t counter) { return encode_head(head_with(counter)).value(); }
Bytes acks_slot(uint64_t counter) { return encode_acks(acks_with(counter)).value(); }
Bytes heads(std::initializer_list<uint64_t> counters) { return file_of(counters, head_slot, head_slot_offset, kHeadSlotBytes); }
Bytes all_acks(std::initializer_list<uint64_t> counters) { return file_of(counters, acks_slot, acks_slot_offset, kAcksSlotBytes); }

TEST(HeadFile, TheNewerSlotCounts) {
  for (const uint64_t newest : {1u, 2u, 3u, 4u}) {
    const auto head = decode_head(test_identity(), heads({newest - 1, newest}));
    ASSERT_TRUE(head) << head.error().message;
    EXPECT_EQ(*head, head_with(newest));
    const auto acks = decode_acks(test_identity(), all_acks({newest - 1, newest}));
    ASSERT_TRUE(acks) << acks.error().message;
    EXPECT_EQ(*acks, acks_with(newest));
  }
}

TEST(HeadFile, AFirstSlotIsEnough) {
  EXPECT_EQ(decode_head(test_identity(), heads({0})).value(), head_with(0));
  EXPECT_EQ(decode_acks(test_identity(), all_acks({1})).value(), acks_with(1));
}

// Whatever an interrupted write has left in its slot, the other slot is read.
TEST(HeadFile, ATornWritingLeavesTheOneBefore) {
  const Bytes before = heads({6}), after = heads({6, 7});
  for (size_t torn = 0; torn < kHeadSlotBytes; torn += 16) {
    Bytes file = before;
    std::copy_n(after.begin() + kHeadSlotBytes, torn, file.begin() + kHeadSlotBytes);
    EXPECT_EQ(decode_head(test_identity(), file).value(), head_with(6)) << torn;
  }
  // The header is that of the new one, what follows still that of the one before.
  const Bytes acks_before = all_acks({5, 6}), acks_after = all_acks({6, 7});
  for (const size_t torn : {size_t{0}, kBlockBytes / 2, kBlockBytes}) {
    Bytes file = acks_before;
    std::copy_n(acks_after.begin() + kAcksSlotBytes, torn, file.begin() + kAcksSlotBytes);
    EXPECT_EQ(decode_acks(test_identity(), file).value(), acks_with(6)) << torn;
  }
}

TEST(HeadFile, EveryFlippedByteIsFoundOut) {
  const Bytes good = heads({0});
  for (size_t at = 0; at < kHeadSlotBytes; ++at) {
    Bytes file = good;
    file[at] ^= std::byte{0x10};
    EXPECT_FALSE(decode_head(test_identity(), file)) << at;
  }
}

TEST(HeadFile, OfAnotherNodeOrEpochIsNone) {
  const Bytes head = heads({0, 1}), acks = all_acks({0, 1});
  EXPECT_EQ(decode_head(test_identity(4), head).error().code, Code::kCorrupt);
  EXPECT_EQ(decode_acks(test_identity(4), acks).error().code, Code::kCorrupt);
  EXPECT_EQ(decode_head(test_identity(), ByteSpan(head).first(kHeadSlotBytes - 1)).error().code, Code::kCorrupt);
  EXPECT_EQ(decode_acks(test_identity(), head).error().code, Code::kCorrupt);
  EXPECT_EQ(decode_head(test_identity(), Bytes()).error().code, Code::kCorrupt);
}

TEST(HeadFile, WhatDoesNotFitIsRefused) {
  Head head = head_with(1);
  head.host = std::string(256, 'h');
  EXPECT_EQ(encode_head(head).error().code, Code::kTooBig);
  head.host = head.boot_id = head.address = std::string(255, 'h');
  head.identity.node = std::string(63, 'n');
  EXPECT_EQ(encode_head(head)->size(), kHeadSlotBytes);

  Acks acks = acks_with(1);
  acks.peers.clear();
  for (int i = 0; i < 253; ++i) acks.peers.push_back({std::string(60, 'n') + std::to_string(100 + i), {1 << 19, 1 << 20, 1 << 26}, {}});
  for (uint64_t i = 0; i < 500; ++i) acks.peers[7].pinned.push_back(ObjectId::make(0, 3, 1000 * i + 1));
  EXPECT_EQ(encode_acks(acks)->size(), kAcksSlotBytes);  // all the peers that there can be
  for (uint64_t i = 500; i < 10'000; ++i) acks.peers[7].pinned.push_back(ObjectId::make(0, 3, 1000 * i + 1));
  EXPECT_EQ(encode_acks(acks).error().code, Code::kTooBig);
}

// Beside what is open, as Tree::Write::still_read() tells it.
TEST(HeadFile, AcksHaveRoomForAllThatIsLeased) {
  Acks acks;
  acks.identity = test_identity();
  for (uint64_t node = 0; node < 15; ++node) {
    acks.peers.push_back({"node-" + std::string(1, static_cast<char>('a' + node)), {3, 5, 1'000'000}, {}});
    const uint64_t count = node == 5 ? 200 + 4096 : 200;
    for (uint64_t i = 0; i < count; ++i) acks.peers.back().pinned.push_back(ObjectId::make(0, 3, 100'000 * i + 1));
  }
  EXPECT_TRUE(encode_acks(acks));
}

TEST(HeadFile, PeersOutOfOrderOrOfNoNameAreRefused) {
  for (const auto& [first, second] : {std::pair("node-c", "node-b"), std::pair("node-b", "node-b"), std::pair("../x", "node-b"), std::pair("", "b")}) {
    Acks acks = acks_with(1);
    acks.peers[0].node = first;
    acks.peers[1].node = second;
    Bytes file(2 * kAcksSlotBytes);
    std::ranges::copy(encode_acks(acks).value(), file.begin());
    EXPECT_EQ(decode_acks(test_identity(), file).error().code, Code::kCorrupt) << first;
  }
}

}  // namespace head_file_test
}  // namespace kvcachefs

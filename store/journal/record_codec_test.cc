#include "store/journal/record_codec.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "store/journal/test_records.h"

namespace kvcachefs {
namespace {

Bytes encoded(const Record& record) {
  Bytes bytes;
  ByteWriter out(bytes);
  encode_record(record, out);
  return bytes;
}

Bytes encoded_name(std::string_view name) {
  Bytes bytes;
  ByteWriter out(bytes);
  encode_name(name, out);
  return bytes;
}

TEST(RecordCodec, RandomBatchesRoundTrip) {
  for (uint64_t seed = 1; seed <= 20000; ++seed) {
    TestRandom random(seed);
    const Batch batch = random_batch(random);
    Bytes bytes;
    encode_batch(batch, bytes);
    const auto decoded = decode_batch(bytes);
    ASSERT_TRUE(decoded) << "seed " << seed << ": " << decoded.error().message;
    ASSERT_TRUE(same_batch(*decoded, batch)) << "seed " << seed;
    const bool synced = std::any_of(batch.records.begin(), batch.records.end(),
                                    [](const Record& record) { return std::holds_alternative<SyncedRecord>(record); });
    ASSERT_EQ(batch_has_synced(bytes).value(), synced) << "seed " << seed;
  }
}

TEST(RecordCodec, EveryTruncationIsAnError) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    TestRandom random(seed);
    Bytes bytes;
    encode_batch(random_batch(random), bytes);
    for (size_t length = 0; length < bytes.size(); ++length) {
      const auto decoded = decode_batch(ByteSpan(bytes).first(length));
      ASSERT_FALSE(decoded) << "seed " << seed << " length " << length;
      ASSERT_EQ(decoded.error().code, Code::kCorrupt) << "seed " << seed << " length " << length;
    }
  }
}

TEST(RecordCodec, TrailingBytesAreAnError) {
  Bytes bytes;
  encode_batch(Batch{{1}, {SyncedRecord{}}}, bytes);
  bytes.push_back(std::byte{0});
  EXPECT_EQ(decode_batch(bytes).error().code, Code::kCorrupt);
}

TEST(RecordCodec, ChunkRecordsAreSmall) {
  EXPECT_LE(encoded(PutRecord{chunk_object(1000000)}).size(), 60u);
  EXPECT_LE(encoded(chunk_name(1000000)).size(), 50u);
  EXPECT_EQ(encoded_name(std::string(64, 'a') + ".bin").size(), 39u);
}

TEST(RecordCodec, NamesOfEveryShapeComeBack) {
  std::vector<std::string> names = {"",
                                    "a",
                                    "deadbee",
                                    "deadbeef",
                                    "deadbeef0",
                                    "xdeadbeef",
                                    "DEADBEEFDEADBEEF",
                                    "-deadbeefdeadbeef-cafecafecafe",
                                    std::string("\0abcdefab\0", 10),
                                    std::string(255, '0'),
                                    std::string(4096, 'f') + "\xff"};
  for (size_t length = 0; length < 40; ++length) {
    for (size_t at = 0; at <= length; ++at) names.push_back(std::string(at, 'z') + std::string(length, '7'));
  }
  for (const std::string& name : names) {
    const Bytes bytes = encoded_name(name);
    ByteReader in(bytes);
    const auto decoded = decode_name(in);
    ASSERT_TRUE(decoded) << decoded.error().message;
    EXPECT_EQ(*decoded, name);
    EXPECT_TRUE(in.at_end());
  }
}

TEST(RecordCodec, HostileNameLengthsAreRefusedWithoutAllocating) {
  for (const uint64_t length : {uint64_t{5}, uint64_t{1} << 40, ~uint64_t{0}}) {
    for (const uint64_t pairs : {uint64_t{0}, uint64_t{1}, length / 2, length, ~uint64_t{0}}) {
      for (const uint64_t start : {uint64_t{0}, uint64_t{1}, length, ~uint64_t{0}}) {
        Bytes bytes;
        ByteWriter out(bytes);
        out.u8(1);  // a packed run, not at the start
        out.varint(length);
        out.varint(start);
        out.varint(pairs);
        out.u8('x');
        ByteReader in(bytes);
        EXPECT_FALSE(decode_name(in)) << length << " " << pairs << " " << start;
      }
    }
  }
}

TEST(RecordCodec, UnknownTypesAndFlagsAreOfAnotherVersion) {
  for (const unsigned type : {0u, 9u, 255u}) {
    const Bytes bytes = {std::byte{2}, static_cast<std::byte>(type), std::byte{0}};
    ByteReader in(bytes);
    const auto decoded = decode_record(in);
    ASSERT_FALSE(decoded);
    EXPECT_EQ(decoded.error().code, Code::kVersion);
    EXPECT_NE(decoded.error().message.find("record type " + std::to_string(type)), std::string::npos);
  }
  // Record bytes: length, type, id (epoch, number: 1 + 1 byte), attribute flags.
  Bytes attributes = encoded(AttributesRecord{ObjectId::make(0, 1, 1), {}});
  attributes[4] = std::byte{0x80};
  ByteReader in(attributes);
  EXPECT_EQ(decode_record(in).error().code, Code::kVersion);
  // A move: length, type, id, version, place.
  Bytes move = encoded(MoveRecord{ObjectId::make(0, 1, 1), 1, {}});
  move[5] = std::byte{0x07};
  ByteReader moved(move);
  EXPECT_EQ(decode_record(moved).error().code, Code::kVersion);
}

TEST(RecordCodec, SummaryLeavesChecksumsAndInlineBytesOut) {
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    TestRandom random(seed);
    ObjectRecord object = random_object(random);
    Bytes bytes;
    ByteWriter out(bytes);
    encode_object(object, out);
    ByteReader in(bytes);
    const auto summary = decode_object(in, ObjectParts::kSummary);
    ASSERT_TRUE(summary) << "seed " << seed << ": " << summary.error().message;
    object.body.checksums.clear();
    object.body.inline_bytes.clear();
    ASSERT_EQ(*summary, object) << "seed " << seed;
  }
}

TEST(RecordCodec, HostileCountsAllocateNothing) {
  Bytes bytes;
  ByteWriter out(bytes);
  out.u64(1);
  out.varint(~uint64_t{0});  // records
  EXPECT_EQ(decode_batch(bytes).error().code, Code::kCorrupt);

  ObjectRecord object = chunk_object(1);
  object.body.checksums.clear();
  Bytes head;
  ByteWriter head_out(head);
  encode_object(object, head_out);
  object.body.checksums = {1};
  Bytes whole;
  ByteWriter whole_out(whole);
  encode_object(object, whole_out);
  whole.resize(head.size());  // up to the checksums, the flag that announces them set
  ByteWriter(whole).varint(uint64_t{1} << 60);
  ByteReader in(whole);
  EXPECT_EQ(decode_object(in).error().code, Code::kCorrupt);
}

TEST(RecordCodec, RandomBytesNeverCrash) {
  for (uint64_t seed = 1; seed <= 200000; ++seed) {
    TestRandom random(seed);
    Bytes bytes;
    ByteWriter out(bytes);
    out.u64(1);
    out.varint(1 + random.below(3));
    for (uint64_t i = random.below(60); i > 0; --i) {
      out.u8(static_cast<uint8_t>(random.one_in(2) ? random.below(9) : random.next()));
    }
    const auto decoded = decode_batch(bytes);
    if (!decoded) continue;
    Bytes again;
    encode_batch(*decoded, again);
    const auto twice = decode_batch(again);
    ASSERT_TRUE(twice && same_batch(*twice, *decoded)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvcachefs

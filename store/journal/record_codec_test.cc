#include "store/journal/record_codec.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "store/journal/test_records.h"

namespace kvcachefs {
namespace record_codec_test {

Bytes encoded(const Record& record) {
  Bytes bytes;
  ByteWriter out(bytes);
  RecordContext context;
  encode_record(record, context, out);
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
  EXPECT_LE(encoded(chunk_name(1000000)).size(), 56u);
  EXPECT_EQ(encoded_name(std::string(64, 'a') + ".bin").size(), 39u);
}

// As the committer makes it: a chunk in a new directory of its own, in which it was renamed.
TEST(RecordCodec, RecordsAreToldFromTheOnesBefore) {
  constexpr uint64_t kChunks = 500;
  Batch batch{{static_cast<uint64_t>(chunk_object(1).attributes.btime_ns)}, {}};
  for (uint64_t i = 0; i < kChunks; ++i) batch.records.emplace_back(PutRecord{chunk_object(i)});
  for (uint64_t i = 0; i < kChunks; ++i) {
    ObjectRecord directory;
    directory.id = ObjectId::make(0, 3, kChunks + i);
    directory.attributes = chunk_object(i).attributes;
    directory.attributes.mode = 0040755;
    directory.attributes.ctime_ns = directory.attributes.mtime_ns;
    batch.records.emplace_back(PutRecord{directory});
  }
  const auto bytes_for = [&batch] {
    Bytes bytes;
    encode_batch(batch, bytes);
    EXPECT_TRUE(same_batch(decode_batch(bytes).value(), batch));
    return bytes.size();
  };
  const size_t puts = bytes_for();
  EXPECT_LE(puts / kChunks, 24u + 14u);
  for (uint64_t i = 0; i < kChunks; ++i) {
    const ObjectId directory = ObjectId::make(0, 3, kChunks + i);
    batch.records.emplace_back(NameRecord{kRootId, "ab_r" + std::to_string(i), directory});
    batch.records.emplace_back(NameRecord{directory, chunk_name(i).name, ObjectId::make(0, 3, i)});
  }
  EXPECT_LE((bytes_for() - puts) / kChunks, 46u + 16u);
}

TEST(RecordCodec, WhatContradictsItselfIsRefused) {
  // Length, type, id, attribute flags: both as the last directory and as the last other object.
  Bytes attributes = encoded(AttributesRecord{ObjectId{}, {}});
  attributes[3] = std::byte{12};
  ByteReader in(attributes);
  RecordContext context;
  EXPECT_EQ(decode_record(in, context).error().code, Code::kCorrupt);
  // Length, type, id, version, place: in an extent of its own and behind the last place.
  Bytes move = encoded(MoveRecord{ObjectId{}, 1, {PlaceKind::kPacked, {1, 1}, 4096, 0}});
  move[4] |= std::byte{0xc0};
  ByteReader moved(move);
  EXPECT_EQ(decode_record(moved, context).error().code, Code::kVersion);
  // Of an object without a body, the last byte are its flags.
  Bytes put = encoded(PutRecord{});
  ASSERT_EQ(put.back(), std::byte{8});
  put.back() = std::byte{12};
  ByteReader nothing(put);
  EXPECT_EQ(decode_record(nothing, context).error().code, Code::kCorrupt);
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
  for (const unsigned type : {0u, 13u, 63u, 128u, 255u}) {
    const Bytes bytes = {std::byte{2}, static_cast<std::byte>(type), std::byte{0}};
    ByteReader in(bytes);
    RecordContext context;
    const auto decoded = decode_record(in, context);
    ASSERT_FALSE(decoded);
    EXPECT_EQ(decoded.error().code, Code::kVersion);
    EXPECT_NE(decoded.error().message.find("record type " + std::to_string(type)), std::string::npos);
  }
  // Record bytes: length, type, id, attribute flags.
  Bytes attributes = encoded(AttributesRecord{ObjectId{}, {}});
  attributes[3] = std::byte{0x80};
  ByteReader in(attributes);
  RecordContext context;
  EXPECT_EQ(decode_record(in, context).error().code, Code::kVersion);
  // A move: length, type, id, version, place.
  Bytes move = encoded(MoveRecord{ObjectId{}, 1, {}});
  move[4] = std::byte{0x07};
  ByteReader moved(move);
  EXPECT_EQ(decode_record(moved, context).error().code, Code::kVersion);
  // A name: length, type, child, flags; the high nibble is the record's.
  Bytes name = encoded(NameRecord{});
  name[3] |= std::byte{0x20};
  ByteReader named(name);
  EXPECT_EQ(decode_record(named, context).error().code, Code::kVersion);
}

TEST(RecordCodec, HintsThatAreNotKnownArePassedOver) {
  for (const unsigned type : {64u, 100u, 127u}) {
    Batch batch{{7}, {PutRecord{chunk_object(7)}, chunk_name(7)}};
    Bytes plain;
    encode_batch(batch, plain);
    // The same with a hint between the two: the second is still encoded relative to the first.
    RecordContext context;
    context.btime_ns = 7;
    Bytes bytes;
    ByteWriter out(bytes);
    out.u64(7);
    out.varint(3);
    encode_record(batch.records[0], context, out);
    for (const unsigned byte : {3u, type, 255u, 1u}) out.u8(static_cast<uint8_t>(byte));
    encode_record(batch.records[1], context, out);
    ASSERT_EQ(bytes.size(), plain.size() + 4);
    const auto decoded = decode_batch(bytes);
    ASSERT_TRUE(decoded) << decoded.error().message;
    EXPECT_TRUE(same_batch(*decoded, batch));
    EXPECT_FALSE(batch_has_synced(bytes).value());
  }
}

TEST(RecordCodec, StatementsSayOnceOfWhomTheySpeak) {
  const UnnameRecord unname{kRootId, "gone", ObjectId::make(0, 3, 7)};
  const auto bytes_of = [](std::vector<Record> records) {
    Bytes bytes;
    encode_batch({{1}, std::move(records)}, bytes);
    return bytes.size();
  };
  const size_t one = bytes_of({StatementRecord{"node-b", {}, unname}});
  EXPECT_LT(bytes_of({StatementRecord{"node-b", {}, unname}, StatementRecord{"node-b", {}, unname}}), one + 12);
  // What follows of this node's own is its own again, and told from nothing that was the other's.
  const Batch mixed{{1}, {StatementRecord{"node-b", {}, unname}, NameRecord{kRootId, "kept", ObjectId::make(0, 3, 7)},
                          StatementRecord{"node-c", {2, 3, 4}, AttributesRecord{ObjectId::make(0, 1, 2), chunk_object(1).attributes}},
                          StatementRecord{"node-c", {2, 3, 5}, TouchRecord{{{ObjectId::make(0, 1, 2), 5}}}}, SyncedRecord{}}};
  Bytes bytes;
  encode_batch(mixed, bytes);
  const auto decoded = decode_batch(bytes);
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_TRUE(same_batch(*decoded, mixed));
  EXPECT_TRUE(batch_has_synced(bytes).value());
}

// The damage that is told of another node's objects is a hint: a reader that does not know it passes it over, and a writer says it of no object
// of its own.
TEST(RecordCodec, DamageIsToldAsAHint) {
  const UnnameRecord unname{kRootId, "gone", ObjectId::make(0, 3, 7)};
  const Batch told{{1}, {StatementRecord{"node-b", {}, DamagedRecord{{ObjectId::make(0, 3, 9), ObjectId::make(0, 1, 2)}}},
                         StatementRecord{"node-b", {}, unname}}};
  Bytes bytes;
  encode_batch(told, bytes);
  const auto decoded = decode_batch(bytes);
  ASSERT_TRUE(decoded) << decoded.error().message;
  ASSERT_EQ(decoded->records.size(), 2u);
  const auto& said = std::get<StatementRecord>(decoded->records[0]);
  EXPECT_EQ(said.node, "node-b");
  EXPECT_EQ(std::get<DamagedRecord>(said.what).ids, (std::vector{ObjectId::make(0, 3, 9), ObjectId::make(0, 1, 2)}));
  EXPECT_FALSE(is_answered(said));
  EXPECT_EQ(std::get<UnnameRecord>(std::get<StatementRecord>(decoded->records[1]).what).child, unname.child);

  const auto type = std::ranges::find(bytes, std::byte{64});
  ASSERT_NE(type, bytes.end());
  *type = std::byte{99};  // to an older program this type is as unknown as that one
  const auto passed_over = decode_batch(bytes);
  ASSERT_TRUE(passed_over) << passed_over.error().message;
  EXPECT_TRUE(same_batch(*passed_over, Batch{{1}, {StatementRecord{"node-b", {}, unname}}}));
}

TEST(RecordCodec, OfAnothersObjectsOnlyStatementsAreMade) {
  for (const Record& record : std::vector<Record>{PutRecord{chunk_object(1)}, chunk_name(1), SyncedRecord{}, NextRecord{1},
                                                  SuccessorsRecord{ObjectId::make(0, 3, 1), {}, {}}}) {
    Bytes bytes;
    ByteWriter out(bytes);
    RecordContext context;
    encode_record(StatementRecord{"node-b", {}, TouchRecord{}}, context, out);
    context.about.clear();
    encode_record(record, context, out);
    ByteReader in(bytes);
    RecordContext reading;
    EXPECT_FALSE(decode_record(in, reading).value());  // says of whom
    EXPECT_TRUE(decode_record(in, reading).value());
    EXPECT_EQ(decode_record(in, reading).error().code, Code::kCorrupt);
  }
}

TEST(RecordCodec, AnEvictionIsToldFromARemoval) {
  for (const bool evicted : {false, true}) {
    Bytes bytes;
    encode_batch({{1}, {UnnameRecord{kRootId, "x", ObjectId::make(0, 3, 7), evicted}}}, bytes);
    EXPECT_EQ(std::get<UnnameRecord>(decode_batch(bytes)->records[0]).evicted, evicted);
  }
}

TEST(RecordCodec, TheEndOfEarlierEpochsIsFoundInFrontOnly) {
  const EndsRecord ends{{4, 5, 6}, true};
  Bytes first, second, none;
  encode_batch({{1}, {ends, SyncedRecord{}}}, first);
  encode_batch({{1}, {SyncedRecord{}, ends}}, second);
  encode_batch({{1}, {}}, none);
  EXPECT_EQ(batch_ends(first).value()->end, ends.end);
  EXPECT_TRUE(batch_ends(first).value()->left_out);
  EXPECT_FALSE(batch_ends(second).value());
  EXPECT_FALSE(batch_ends(none).value());
  EXPECT_FALSE(batch_ends(ByteSpan(first).first(4)).value_or(std::nullopt));
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
  object.body.checksums = {1, 2};  // not as many as it has units, so that they are counted
  Bytes whole;
  ByteWriter whole_out(whole);
  encode_object(object, whole_out);
  whole.resize(head.size());  // up to the checksums, the flag that announces them set
  ByteWriter(whole).varint(uint64_t{1} << 60);
  ByteReader in(whole);
  EXPECT_EQ(decode_object(in).error().code, Code::kCorrupt);
}

// Small records and attributes take a hundred times their bytes in RAM.
TEST(RecordCodec, MoreRecordsOrAttributesThanAnyWriterMakesAreRefused) {
  const auto batch_of = [](uint64_t records) {
    Bytes bytes;
    ByteWriter out(bytes);
    out.u64(1);
    out.varint(records);
    for (uint64_t i = 0; i < records; ++i) {
      out.varint(1);
      out.u8(120);  // a hint: it takes nothing
    }
    return bytes;
  };
  EXPECT_TRUE(decode_batch(batch_of(kMaxBatchRecords)));
  EXPECT_EQ(decode_batch(batch_of(kMaxBatchRecords + 1)).error().code, Code::kCorrupt);

  const auto attributes_of = [](size_t count, size_t last) {  // two records
    Batch batch;
    for (const size_t each : {count, last}) batch.records.push_back(AttributesRecord{ObjectId{1}, {.xattrs = std::vector<Xattr>(each)}});
    Bytes bytes;
    encode_batch(batch, bytes);
    return bytes;
  };
  constexpr size_t kHalf = kMaxFrameXattrs / 2;
  EXPECT_TRUE(decode_batch(attributes_of(kHalf, kHalf)));
  EXPECT_EQ(decode_batch(attributes_of(kHalf, kHalf + 1)).error().code, Code::kCorrupt);
}

TEST(RecordCodec, RandomBytesNeverCrash) {
  for (uint64_t seed = 1; seed <= 200000; ++seed) {
    TestRandom random(seed);
    Bytes bytes;
    ByteWriter out(bytes);
    out.u64(1);
    out.varint(1 + random.below(3));
    for (uint64_t i = random.below(60); i > 0; --i) {
      out.u8(static_cast<uint8_t>(random.one_in(2) ? random.below(13) : random.next()));
    }
    const auto decoded = decode_batch(bytes);
    if (!decoded) continue;
    Bytes again;
    encode_batch(*decoded, again);
    const auto twice = decode_batch(again);
    ASSERT_TRUE(twice && same_batch(*twice, *decoded)) << "seed " << seed;
  }
}

}  // namespace record_codec_test
}  // namespace kvcachefs

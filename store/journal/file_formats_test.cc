// Headers: VOLUME, pack extent, journal and checkpoint, and the framing.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "store/base/checksum.h"
#include "store/journal/checkpoint_format.h"
#include "store/journal/extent_header.h"
#include "store/journal/file_header.h"
#include "store/journal/frame_reader.h"
#include "store/journal/journal_file.h"
#include "store/journal/test_records.h"
#include "store/journal/volume_file.h"

namespace kvcachefs {
namespace file_formats_test {

VolumeHeader volume_header() {
  VolumeHeader header;
  header.uuid = test_identity().volume_uuid;
  header.created_stamp.value = 1763712345123456789;
  return header;
}

// Every flip of one bit and every cut of `bytes` must be refused as damage (never as another version).
template <class Decode>
void expect_damage_is_refused(const Bytes& bytes, Decode decode) {
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes flipped = bytes;
      flipped[at] ^= static_cast<std::byte>(1 << bit);
      const Status decoded = decode(flipped);
      ASSERT_FALSE(decoded) << "byte " << at << " bit " << bit;
      ASSERT_EQ(decoded.error().code, Code::kCorrupt) << "byte " << at << ": " << decoded.error().message;
    }
  }
  for (size_t length = 0; length < bytes.size(); ++length) {
    const Status decoded = decode(Bytes(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length)));
    ASSERT_FALSE(decoded) << "length " << length;
    ASSERT_EQ(decoded.error().code, Code::kCorrupt) << "length " << length;
  }
}

template <class T>
Status status_of(const Result<T>& result) {
  if (!result) return std::unexpected(result.error());
  return {};
}

// As a program of another version would write it: the frozen first 24 bytes are good.
Bytes of_version(Bytes bytes, uint32_t version) {
  bytes[8] = static_cast<std::byte>(version);
  const uint64_t sum = checksum(ByteSpan(bytes).first(16));
  Bytes encoded;
  ByteWriter(encoded).u64(sum);
  std::copy(encoded.begin(), encoded.end(), bytes.begin() + 16);
  return bytes;
}
Bytes of_next_version(Bytes bytes) { return of_version(std::move(bytes), kFormatVersion + 1); }

TEST(VolumeFile, RoundTripsAndRefusesDamage) {
  const Bytes bytes = encode_volume_file(volume_header());
  ASSERT_EQ(bytes.size(), kVolumeFileBytes);
  const auto decoded = decode_volume_file(bytes);
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(*decoded, volume_header());
  expect_damage_is_refused(bytes, [](const Bytes& damaged) { return status_of(decode_volume_file(damaged)); });
}

TEST(VolumeFile, AnotherVersionOrParameterIsRefusedAsSuch) {
  const auto newer = decode_volume_file(of_next_version(encode_volume_file(volume_header())));
  ASSERT_FALSE(newer);
  EXPECT_EQ(newer.error().code, Code::kVersion);
  EXPECT_EQ(newer.error().message, fmt::format("VOLUME file has format version {}, this program reads versions 2 to {}: use the kvcachefs "
                                               "that wrote it, or a newer one", kFormatVersion + 1, kFormatVersion));
  const auto older = decode_volume_file(of_version(encode_volume_file(volume_header()), 1));
  ASSERT_FALSE(older);
  EXPECT_EQ(older.error().code, Code::kVersion);
  EXPECT_TRUE(older.error().message.ends_with("mount it with the kvcachefs that wrote it and copy its files to a new volume"));
  VolumeHeader features = volume_header();
  features.features = uint64_t{1} << 40;
  EXPECT_EQ(decode_volume_file(encode_volume_file(features)).error().code, Code::kVersion);
  VolumeHeader odd = volume_header();
  odd.unit_bytes *= 2;
  EXPECT_EQ(decode_volume_file(encode_volume_file(odd)).error().code, Code::kVersion);
}

TEST(VolumeFile, OtherFilesAreNotTakenForIt) {
  EXPECT_EQ(decode_volume_file(Bytes(4096)).error().code, Code::kCorrupt);
  EXPECT_EQ(decode_volume_file(encode_pack_header({test_identity(), 1})).error().code, Code::kCorrupt);
}

TEST(PackHeader, RoundTripsAndRefusesDamage) {
  const Bytes bytes = encode_pack_header({test_identity(), 70000});
  ASSERT_EQ(bytes.size(), kPackHeaderBytes);
  const auto decoded = decode_pack_header(bytes);
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->seq, 70000u);
  EXPECT_TRUE(check_identity(decoded->identity, test_identity()));
  expect_damage_is_refused(bytes, [](const Bytes& damaged) { return status_of(decode_pack_header(damaged)); });
}

TEST(PackHeader, ForeignOnesAreFoundOut) {
  const Bytes bytes = encode_pack_header({test_identity(), 7});
  EXPECT_TRUE(check_pack_header(bytes, test_identity(), 7));
  EXPECT_EQ(check_pack_header(bytes, test_identity(), 8).error().message, "is pack extent 7, not 8");
  EXPECT_EQ(check_pack_header(bytes, test_identity(4), 7).error().message, "belongs to epoch 3, not to 4");
  FileIdentity other = test_identity();
  other.node = "b";
  EXPECT_EQ(check_pack_header(bytes, other, 7).error().message, "belongs to node 'node-a', not to 'b'");
}

TEST(JournalHeader, RoundTripsAndRefusesDamage) {
  for (const bool first : {true, false}) {
    JournalFileHeader header{test_identity(), 5, "boot", std::nullopt};
    if (!first) header.previous = JournalLink{4, 12345};
    const Bytes bytes = encode_journal_header(header);
    const auto decoded = decode_journal_header(bytes);
    ASSERT_TRUE(decoded) << decoded.error().message;
    EXPECT_EQ(decoded->size_bytes, bytes.size());
    EXPECT_EQ(decoded->header.seq, 5u);
    EXPECT_EQ(decoded->header.boot_id, "boot");
    EXPECT_EQ(decoded->header.previous, header.previous);
    expect_damage_is_refused(bytes, [](const Bytes& damaged) { return status_of(decode_journal_header(damaged)); });
    EXPECT_EQ(decode_journal_header(of_next_version(bytes)).error().code, Code::kVersion);
  }
}

TEST(CheckpointHeader, RoundTripsAndRefusesDamage) {
  const Bytes bytes = encode_checkpoint_header({test_identity(), 5, {{3, 4, 500}, {77}, 99}});
  const auto decoded = decode_checkpoint_header(bytes);
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->header.header.covers, (JournalPosition{3, 4, 500}));
  EXPECT_EQ(decoded->header.header.next_number, 99u);
  expect_damage_is_refused(bytes, [](const Bytes& damaged) { return status_of(decode_checkpoint_header(damaged)); });
  EXPECT_EQ(decode_checkpoint_header(of_next_version(bytes)).error().code, Code::kVersion);
}

TEST(Frame, ValidOnlyInItsOwnPlace) {
  const FrameKey key(FileKind::kJournal, test_identity(), 5);
  Bytes frame;
  key.append(as_bytes("payload"), 1000, frame);
  EXPECT_EQ(frame.size(), kFrameHeaderBytes + 7);
  EXPECT_TRUE(key.valid(frame, 1000));
  EXPECT_FALSE(key.valid(frame, 1001));
  EXPECT_FALSE(FrameKey(FileKind::kJournal, test_identity(), 6).valid(frame, 1000));
  EXPECT_FALSE(FrameKey(FileKind::kJournal, test_identity(4), 5).valid(frame, 1000));
  EXPECT_FALSE(FrameKey(FileKind::kCheckpoint, test_identity(), 5).valid(frame, 1000));
  FileIdentity other = test_identity();
  other.node = "node-b";
  EXPECT_FALSE(FrameKey(FileKind::kJournal, other, 5).valid(frame, 1000));
  other = test_identity();
  other.volume_uuid[15] ^= std::byte{1};
  EXPECT_FALSE(FrameKey(FileKind::kJournal, other, 5).valid(frame, 1000));
  for (size_t at = 0; at < frame.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes flipped = frame;
      flipped[at] ^= static_cast<std::byte>(1 << bit);
      ASSERT_FALSE(key.valid(flipped, 1000)) << "byte " << at << " bit " << bit;
    }
  }
}

// `bytes_read`: counts what it is asked for.
FrameReader reader_of(const Bytes& bytes, const FrameKey& key, size_t* bytes_read = nullptr) {
  return FrameReader(
      [&bytes, bytes_read](std::span<std::byte> into, uint64_t offset) -> Result<size_t> {
        const size_t length = std::min(into.size(), bytes.size() - static_cast<size_t>(offset));
        std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(offset), length, into.begin());
        if (bytes_read != nullptr) *bytes_read += length;
        return length;
      },
      bytes.size(), key);
}

TEST(FrameReaderTest, FindsTheNextFrameAcrossWindows) {
  const FrameKey key(FileKind::kJournal, test_identity(), 1);
  // The magic lies around the border of the 1 MiB window of a search that starts at 0.
  for (size_t at = 1024 * 1024 - 20; at < 1024 * 1024 + 20; ++at) {
    Bytes bytes(at);
    key.append(as_bytes("here"), at, bytes);
    FrameReader reader = reader_of(bytes, key);
    const auto found = reader.find(0);
    ASSERT_TRUE(found && *found) << at;
    EXPECT_EQ((*found)->offset, at);
    EXPECT_EQ(as_text((*found)->payload), "here");
  }
}

TEST(FrameReaderTest, FramesLongerThanTheWindowAreRead) {
  const FrameKey key(FileKind::kJournal, test_identity(), 1);
  Bytes bytes;
  const std::string big(3 * 1024 * 1024, 'x');
  key.append(as_bytes(big), 0, bytes);
  key.append(as_bytes("next"), bytes.size(), bytes);
  FrameReader reader = reader_of(bytes, key);
  const auto first = reader.at(0);
  ASSERT_TRUE(first && *first);
  EXPECT_EQ(as_text((*first)->payload), big);
  const auto second = reader.at((*first)->end());
  ASSERT_TRUE(second && *second);
  EXPECT_EQ(as_text((*second)->payload), "next");
}

// Thousands of false starts that each claim the rest of the file would cost its square.
TEST(FrameReaderTest, ASearchAmongFalseStartsEnds) {
  const FrameKey key(FileKind::kJournal, test_identity(), 1);
  Bytes bytes;
  ByteWriter out(bytes);
  constexpr size_t kCount = 500000;
  for (size_t i = 0; i < kCount; ++i) {
    out.u32(kFrameMagic);
    out.u32(static_cast<uint32_t>((kCount - i) * 4));
  }
  size_t bytes_read = 0;
  FrameReader reader = reader_of(bytes, key, &bytes_read);
  const auto found = reader.find(0);
  ASSERT_TRUE(found);
  EXPECT_FALSE(*found);
  EXPECT_LT(bytes_read, 64u * bytes.size());
}

// One MiB of false starts that claim next to nothing: each of them is looked at, but not the whole window for each of them.
TEST(FrameReaderTest, ASearchAmongManyShortFalseStartsReadsEachByteAFewTimes) {
  const FrameKey key(FileKind::kJournal, test_identity(), 1);
  Bytes bytes;
  ByteWriter out(bytes);
  for (size_t i = 0; i < 400'000; ++i) {
    out.u32(kFrameMagic);
    out.u32(1);
  }
  const uint64_t at = bytes.size();
  key.append(as_bytes("here"), at, bytes);
  size_t bytes_read = 0;
  FrameReader reader = reader_of(bytes, key, &bytes_read);
  (void)reader.find(0);
  EXPECT_LT(bytes_read, 8u * bytes.size());
}

// A journal whose size was set to a TiB: there is nothing in it, and it takes no time to make.
TEST(FrameReaderTest, ASearchPassesOverHolesAndReadsFewZeros) {
  constexpr uint64_t kSize = 4096 * kGiB, kAt = kSize - 10 * kMiB;
  const FrameKey key(FileKind::kJournal, test_identity(), 1);
  Bytes frame;
  key.append(as_bytes("here"), kAt, frame);
  uint64_t bytes_read = 0;
  const auto read = [&](std::span<std::byte> into, uint64_t offset) -> Result<size_t> {
    std::ranges::fill(into, std::byte{});
    for (size_t i = 0; i < frame.size(); ++i)
      if (kAt + i >= offset && kAt + i < offset + into.size()) into[static_cast<size_t>(kAt + i - offset)] = frame[i];
    bytes_read += into.size();
    return into.size();
  };
  FrameReader knows_holes(read, kSize, key, [&](uint64_t offset) -> Result<uint64_t> {
    if (offset > kAt + frame.size()) return fail(Code::kNoData, "nothing behind it");
    return std::max(offset, kAt / kBlockBytes * kBlockBytes);
  });
  const auto found = knows_holes.find(5000);
  ASSERT_TRUE(found && *found);
  EXPECT_EQ((*found)->offset, kAt);
  EXPECT_EQ(as_text((*found)->payload), "here");
  const auto none = knows_holes.find(kAt + 1);
  EXPECT_TRUE(none && !*none);
  EXPECT_LT(bytes_read, 8 * kMiB);
  bytes_read = 0;
  FrameReader knows_none(read, kSize, key, [](uint64_t offset) -> Result<uint64_t> { return offset; });
  const auto given_up = knows_none.find(5000);
  EXPECT_TRUE(given_up && !*given_up);
  EXPECT_LE(bytes_read, kGiB + kMiB);
}

}  // namespace file_formats_test
}  // namespace kvcachefs

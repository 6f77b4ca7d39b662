// Pins the format, version 3, and that version 2 is still read: see README.md.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "store/journal/extent_header.h"
#include "store/journal/journal.h"
#include "store/journal/memory_volume.h"
#include "store/journal/test_records.h"
#include "store/base/units.h"
#include "store/journal/volume_file.h"
#include "store/peers/head_file.h"

namespace kvcachefs {
namespace golden_test {

constexpr int64_t kBornNs = 1763712345123456789;
constexpr ObjectId kDirectory = ObjectId::make(0, 3, 2);
constexpr ObjectId kChunk = ObjectId::make(0, 3, 300);
constexpr ObjectId kSmall = ObjectId::make(0, 3, 301);
constexpr ObjectId kOld = ObjectId::make(0, 2, 17);

Bytes text(std::string_view characters) { return Bytes(as_bytes(characters).begin(), as_bytes(characters).end()); }

ObjectRecord directory() {
  ObjectRecord object;
  object.id = kDirectory;
  object.attributes = {040755, 0, 0, 0, kBornNs, kBornNs, kBornNs, kBornNs, {}};
  return object;
}

ObjectRecord packed_chunk() {
  ObjectRecord object;
  object.id = kChunk;
  object.attributes = {0100644, 1000, 100, 0, kBornNs + 5, kBornNs + 1000000, kBornNs + 1200000, kBornNs, {}};
  object.body.size_bytes = 600000;  // three checksum units
  object.body.version = 1;
  object.body.place = {PlaceKind::kPacked, {3, 4}, 4096 * 77, 600000};
  object.body.checksums = {0x0123456789abcdef, 0xfedcba9876543210, 1};
  return object;
}

ObjectRecord small_file() {
  ObjectRecord object;
  object.id = kSmall;
  object.attributes = {0100600, 70000, 70000, 0, -1, kBornNs, kBornNs, kBornNs, {{"user.a", ""}, {"user.b", "value"}}};
  object.body.size_bytes = 5;
  object.body.version = 300;
  object.body.place = {PlaceKind::kInline, {}, 0, 5};
  object.body.checksums = {42};
  object.body.inline_bytes = text("hello");
  return object;
}

ObjectRecord moved_raw_file() {
  ObjectRecord object;
  object.id = kOld;
  object.attributes = {0100644, 0, 0, 0, kBornNs, kBornNs, kBornNs, kBornNs, {}};
  object.body.size_bytes = uint64_t{1} << 33;
  object.body.version = 9;
  object.body.place = {PlaceKind::kRaw, {3, 5000}, 0, uint64_t{1} << 33};
  object.body.quarantined = true;
  return object;
}

ObjectRecord device() {
  ObjectRecord object;
  object.id = ObjectId::make(0, 3, 302);
  object.attributes = {020600, 0, 0, 0x103, kBornNs, kBornNs, kBornNs, kBornNs, {}};
  return object;
}

std::string hex_name() { return "00112233445566778899aabbccddeeff0123456789abcdeffedcba9876543210.bin"; }

// Every record type, every flag, every kind of name: of version 2, and what came with version 3.
std::vector<Batch> old_batches() {
  return {
      {{1763712345123456789}, {PutRecord{directory()}, NameRecord{kRootId, "a directory", kDirectory}}},
      {{1763712345123456790},
       {PutRecord{packed_chunk()}, NameRecord{kDirectory, hex_name(), kChunk}, PutRecord{small_file()},
        NameRecord{kDirectory, "model@0badc0de0badc0de@bf16.data", kSmall}}},
      {{1763712345123456791}, {SyncedRecord{}}},
      {{1763712345123456792},
       {PutRecord{moved_raw_file()}, NameRecord{kRootId, "pool\n\xff", kOld}, PutRecord{device()}}},
      {{1763712345123456793},
       {AttributesRecord{kChunk, small_file().attributes}, UnnameRecord{kDirectory, hex_name(), kChunk},
        MoveRecord{kChunk, 1, {PlaceKind::kSolo, {4, 9}, 0, 600000}},
        MoveRecord{kSmall, 2, {PlaceKind::kRaw, {3, 9}, 12345, 5}}}},
      {{1763712345123456794},
       {TouchRecord{{{kChunk, kBornNs}, {kSmall, kBornNs + 10}, {kOld, kBornNs - 10}}},
        SuccessorsRecord{kChunk, kOld, {{kSmall, 3}, {kOld, 1}}}}},
      {{1763712345123456795}, {}},
  };
}

std::vector<Batch> batches() {
  std::vector<Batch> all = old_batches();
  const UnnameRecord theirs{ObjectId::make(0, 1, 2), "a directory", ObjectId::make(0, 1, 9)};
  all.push_back({{1763712345123456796}, {UnnameRecord{kRootId, "a directory", kDirectory, /*evicted=*/true}}});
  all.push_back({{1763712345123456797},
                 {StatementRecord{"node-b", {}, theirs}, StatementRecord{"node-b", {}, AttributesRecord{theirs.child, directory().attributes}},
                  StatementRecord{"node-c", {}, TouchRecord{{{theirs.child, kBornNs}}}}, UnnameRecord{kDirectory, "a name", kSmall},
                  SeenRecord{"node-b", {7, 1, 8192}}}});
  return all;
}

// Of the epoch after it, in blocks: what it begins with, and where its first file goes on.
std::vector<Batch> batches_in_blocks(JournalPosition end) {
  return {{{1763712345123456800}, {EndsRecord{end, /*left_out=*/true}}},
          {{1763712345123456801}, {PutRecord{packed_chunk()}, NameRecord{kRootId, "again", kChunk}}},
          {{1763712345123456802}, {SyncedRecord{}}}};
}

VolumeHeader volume_header() {
  VolumeHeader header;
  header.uuid = test_identity().volume_uuid;
  header.created_stamp.value = 1763712345000000000;
  return header;
}

CheckpointHeader checkpoint_header() { return {{3, 2, 120}, {1763712345123456795}, 303}; }

std::vector<Record> old_checkpoint_records() {
  return {PutRecord{moved_raw_file()}, PutRecord{directory()}, PutRecord{small_file()},
          NameRecord{kRootId, "a directory", kDirectory}, SuccessorsRecord{kChunk, kOld, {{kSmall, 3}}}};
}

std::vector<Record> checkpoint_records() {
  std::vector<Record> all = old_checkpoint_records();
  const UnnameRecord theirs{ObjectId::make(0, 1, 2), "gone", ObjectId::make(0, 1, 9)};
  all.emplace_back(SeenRecord{"node-b", {7, 1, 8192}});
  all.emplace_back(SeenRecord{"node-c", {1, 0, 4096}});
  all.emplace_back(StatementRecord{"node-b", {3, 1, 300}, theirs});
  all.emplace_back(StatementRecord{"node-b", {3, 1, 300}, AttributesRecord{theirs.child, small_file().attributes}});
  return all;
}

Head head() {
  Head head;
  head.identity = test_identity();
  head.counter = 7;
  for (size_t i = 0; i < head.instance.size(); ++i) head.instance[i] = static_cast<std::byte>(i);
  head.host = "host-1";
  head.boot_id = "5d3c1e8a-boot";
  head.journal_end = {3, 2, 8192};
  head.oldest_journal = {2, 5, 0};
  head.checkpoint = HeadCheckpoint{3, 2};
  head.physical_bytes = 1;
  head.claim_bytes = 2;
  head.wish_bytes = 3;
  head.capacity_bytes = 4;
  for (size_t i = 0; i < head.bytes_by_age.size(); ++i) head.bytes_by_age[i] = 100 + i;
  head.address = "192.0.2.7:4711";
  return head;
}

Acks acks() {
  return {test_identity(), 8, {{"node-b", {7, 1, 8192}, {ObjectId::make(0, 1, 9), ObjectId::make(0, 2, 3)}}, {"node-c", {1, 0, 4096}, {}}}};
}

constexpr const char* kBoot = "5d3c1e8a-boot";

// What the writer makes today: name in format3/ -> content.
std::map<std::string, Bytes> written_today() {
  auto volume = std::make_shared<MemoryVolume>();
  auto journal = JournalWriter::create(volume, test_identity(), kBoot, 600);
  for (const Batch& batch : batches()) EXPECT_TRUE((*journal)->append(batch));
  auto blocks = JournalWriter::create(volume, test_identity(4), kBoot, 4 * kBlockBytes, JournalForm::kBlocks);
  for (const Batch& batch : batches_in_blocks((*journal)->position())) EXPECT_TRUE((*blocks)->append(batch));
  EXPECT_TRUE((*blocks)->rotate());
  auto checkpoint = CheckpointWriter::create(volume, test_identity(), 2, checkpoint_header());
  for (const Record& record : checkpoint_records()) EXPECT_TRUE((*checkpoint)->add(record));
  EXPECT_TRUE((*checkpoint)->finish());
  return {
      {"VOLUME", encode_volume_file(volume_header())},
      {"0.pack-header", encode_pack_header({test_identity(), 0})},
      {"0.log", *volume->files().at(journal_path("node-a", 3, 0))},
      {"1.log", *volume->files().at(journal_path("node-a", 3, 1))},
      {"0.blocks.log", *volume->files().at(journal_path("node-a", 4, 0))},
      {"1.blocks.log", *volume->files().at(journal_path("node-a", 4, 1))},
      {"2.checkpoint", *volume->files().at(checkpoint_path("node-a", 3, 2))},
      {"HEAD", *encode_head(head())},
      {"ACKS", *encode_acks(acks())},
  };
}

std::filesystem::path golden_directory(int version = 3) { return std::filesystem::path(KVCACHEFS_GOLDEN_DIR) / fmt::format("format{}", version); }

Bytes golden(const std::string& name, int version = 3) {
  std::ifstream in(golden_directory(version) / name, std::ios::binary);
  EXPECT_TRUE(in) << golden_directory(version) / name;
  return text(std::string(std::istreambuf_iterator<char>(in), {}));
}

struct Replayed {
  std::vector<Batch> batches;
  std::vector<bool> synced;
};

Replayed replay(Volume& volume) {
  Replayed replayed;
  const auto statistics = replay_journals(volume, test_identity(0), {}, [&](const Batch& batch, JournalPosition, bool is_synced) -> Status {
    replayed.batches.push_back(batch);
    replayed.synced.push_back(is_synced);
    return {};
  });
  EXPECT_TRUE(statistics && statistics->problems.empty());
  return replayed;
}

void expect_batches(const std::vector<Batch>& found, const std::vector<Batch>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(same_batch(found[i], expected[i])) << "batch " << i;
}

void expect_checkpoint(ByteSpan content, const std::vector<Record>& expected) {
  MemoryVolume volume;
  volume.put(checkpoint_path("node-a", 3, 2), content);
  std::vector<std::string> problems;
  const auto found = find_checkpoint(volume, test_identity(0), problems);
  ASSERT_TRUE(found && *found);
  EXPECT_EQ((*found)->header.covers, checkpoint_header().covers);
  EXPECT_EQ((*found)->header.stamp, checkpoint_header().stamp);
  EXPECT_EQ((*found)->header.next_number, checkpoint_header().next_number);
  std::vector<Record> records;
  ASSERT_TRUE(read_checkpoint(volume, test_identity(0), **found, [&](Record&& record) -> Status {
    records.push_back(std::move(record));
    return {};
  }, problems));
  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(records, expected);
}

TEST(Golden, TheWriterStillMakesThem) {
  const auto today = written_today();
  if (std::getenv("KVCACHEFS_WRITE_GOLDEN")) {
    std::filesystem::create_directories(golden_directory());
    for (const auto& [name, content] : today) {
      std::ofstream(golden_directory() / name, std::ios::binary) << as_text(content);
    }
    FAIL() << "golden files written to " << golden_directory() << "; run again without KVCACHEFS_WRITE_GOLDEN";
  }
  for (const auto& [name, content] : today) EXPECT_TRUE(golden(name) == content) << name << " differs";
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(golden_directory())) {
    EXPECT_TRUE(today.contains(entry.path().filename().string())) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, today.size());
}

TEST(Golden, TheReaderGetsOutWhatWasPutIn) {
  auto volume = std::make_shared<MemoryVolume>();
  for (const uint64_t seq : {0u, 1u}) volume->put(journal_path("node-a", 3, seq), golden(fmt::format("{}.log", seq)));
  for (const uint64_t seq : {0u, 1u}) volume->put(journal_path("node-a", 4, seq), golden(fmt::format("{}.blocks.log", seq)));
  std::vector<Batch> expected = batches();
  const uint64_t end = volume->files().at(journal_path("node-a", 3, 1))->size();
  for (Batch& batch : batches_in_blocks({3, 1, end})) expected.push_back(std::move(batch));
  const Replayed replayed = replay(*volume);
  expect_batches(replayed.batches, expected);
  EXPECT_EQ(replayed.synced, (std::vector<bool>{true, true, true, false, false, false, false, false, false, true, true, true}));
  EXPECT_EQ(list_journals(*volume, test_identity(0)).value().front().boot_id, kBoot);
  expect_checkpoint(golden("2.checkpoint"), checkpoint_records());
}

TEST(Golden, VersionTwoIsRead) {
  auto volume = std::make_shared<MemoryVolume>();
  for (const uint64_t seq : {0u, 1u}) volume->put(journal_path("node-a", 3, seq), golden(fmt::format("{}.log", seq), 2));
  const Replayed replayed = replay(*volume);
  expect_batches(replayed.batches, old_batches());
  EXPECT_EQ(replayed.synced, (std::vector<bool>{true, true, true, false, false, false, false}));
  expect_checkpoint(golden("2.checkpoint", 2), old_checkpoint_records());
  VolumeHeader expected = volume_header();
  expected.format_version = 2;
  EXPECT_EQ(decode_volume_file(golden("VOLUME", 2)).value(), expected);
  EXPECT_TRUE(check_pack_header(golden("0.pack-header", 2), test_identity(), 0));
}

TEST(Golden, TheHeadersSayWhoseTheyAre) {
  const auto volume = decode_volume_file(golden("VOLUME"));
  ASSERT_TRUE(volume) << volume.error().message;
  EXPECT_EQ(*volume, volume_header());
  EXPECT_TRUE(check_pack_header(golden("0.pack-header"), test_identity(), 0));
  Bytes file = golden("HEAD");
  file.resize(2 * kHeadSlotBytes);
  EXPECT_EQ(decode_head(test_identity(), file).value(), head());
  file = golden("ACKS");
  file.resize(2 * kAcksSlotBytes);
  EXPECT_EQ(decode_acks(test_identity(), file).value(), acks());
}

}  // namespace golden_test
}  // namespace kvcachefs

// Pins format version 2: see README.md.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "store/journal/extent_header.h"
#include "store/journal/journal.h"
#include "store/journal/memory_volume.h"
#include "store/journal/test_records.h"
#include "store/journal/volume_file.h"

namespace kvcachefs {
namespace {

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

// Every record type, every flag, every kind of name.
std::vector<Batch> batches() {
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

VolumeHeader volume_header() {
  VolumeHeader header;
  header.uuid = test_identity().volume_uuid;
  header.created_stamp.value = 1763712345000000000;
  return header;
}

CheckpointHeader checkpoint_header() { return {{3, 2, 120}, {1763712345123456795}, 303}; }

std::vector<Record> checkpoint_records() {
  return {PutRecord{moved_raw_file()}, PutRecord{directory()}, PutRecord{small_file()},
          NameRecord{kRootId, "a directory", kDirectory}, SuccessorsRecord{kChunk, kOld, {{kSmall, 3}}}};
}

// What the writer makes today: name in format2/ -> content.
std::map<std::string, Bytes> written_today() {
  auto volume = std::make_shared<MemoryVolume>();
  auto journal = JournalWriter::create(volume, test_identity(), "5d3c1e8a-boot", 600);
  for (const Batch& batch : batches()) EXPECT_TRUE((*journal)->append(batch));
  auto checkpoint = CheckpointWriter::create(volume, test_identity(), 2, checkpoint_header());
  for (const Record& record : checkpoint_records()) EXPECT_TRUE((*checkpoint)->add(record));
  EXPECT_TRUE((*checkpoint)->finish());
  return {
      {"VOLUME", encode_volume_file(volume_header())},
      {"0.pack-header", encode_pack_header({test_identity(), 0})},
      {"0.log", *volume->files().at(journal_path("node-a", 3, 0))},
      {"1.log", *volume->files().at(journal_path("node-a", 3, 1))},
      {"2.checkpoint", *volume->files().at(checkpoint_path("node-a", 3, 2))},
  };
}

std::filesystem::path golden_directory() { return KVCACHEFS_GOLDEN_DIR; }

Bytes golden(const std::string& name) {
  std::ifstream in(golden_directory() / name, std::ios::binary);
  EXPECT_TRUE(in) << golden_directory() / name;
  return text(std::string(std::istreambuf_iterator<char>(in), {}));
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
  volume->put(journal_path("node-a", 3, 0), golden("0.log"));
  volume->put(journal_path("node-a", 3, 1), golden("1.log"));
  volume->put(checkpoint_path("node-a", 3, 2), golden("2.checkpoint"));

  std::vector<Batch> seen;
  std::vector<bool> synced;
  const auto statistics = replay_journals(*volume, test_identity(0), {},
                                          [&](const Batch& batch, JournalPosition, bool is_synced) -> Status {
                                            seen.push_back(batch);
                                            synced.push_back(is_synced);
                                            return {};
                                          });
  ASSERT_TRUE(statistics) << statistics.error().message;
  EXPECT_TRUE(statistics->problems.empty());
  ASSERT_EQ(seen.size(), batches().size());
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_TRUE(same_batch(seen[i], batches()[i])) << "batch " << i;
  EXPECT_EQ(synced, (std::vector<bool>{true, true, true, false, false, false, false}));
  EXPECT_EQ(list_journals(*volume, test_identity(0)).value().front().boot_id, "5d3c1e8a-boot");

  std::vector<std::string> problems;
  const auto found = find_checkpoint(*volume, test_identity(0), problems);
  ASSERT_TRUE(found && *found);
  EXPECT_EQ((*found)->header.covers, checkpoint_header().covers);
  EXPECT_EQ((*found)->header.stamp, checkpoint_header().stamp);
  EXPECT_EQ((*found)->header.next_number, checkpoint_header().next_number);
  std::vector<Record> records;
  ASSERT_TRUE(read_checkpoint(*volume, test_identity(0), **found, [&](Record&& record) -> Status {
    records.push_back(std::move(record));
    return {};
  }, problems));
  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(records, checkpoint_records());
}

TEST(Golden, TheHeadersSayWhoseTheyAre) {
  const auto volume = decode_volume_file(golden("VOLUME"));
  ASSERT_TRUE(volume) << volume.error().message;
  EXPECT_EQ(*volume, volume_header());
  EXPECT_TRUE(check_pack_header(golden("0.pack-header"), test_identity(), 0));
}

}  // namespace
}  // namespace kvcachefs

// The fuzz cases on a fixed set of mutations of the corpus: runs with every compiler, and always the same inputs. The
// number of mutations a case is KVCACHEFS_FUZZ_MUTATIONS, 20000 if that is not set.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "store/evict/policy.h"
#include "store/journal/checkpoint_format.h"
#include "store/journal/extent_header.h"
#include "store/journal/file_header.h"
#include "store/journal/journal.h"
#include "store/journal/memory_volume.h"
#include "store/journal/record_codec.h"
#include "store/journal/test_records.h"
#include "store/journal/volume_file.h"
#include "store/peers/head_file.h"
#include "tests/fuzz/fuzz_cases.h"

namespace kvcachefs {
namespace fuzz_mutations_test {

std::filesystem::path corpus(const std::string& name) { return std::filesystem::path(KVCACHEFS_CORPUS_DIR) / name; }

Bytes operator+(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Bytes step(const Bytes& payload) {
  Bytes bytes;
  ByteWriter out(bytes);
  out.u8(0);
  out.u16(static_cast<uint16_t>(payload.size()));
  return bytes + payload;
}

std::vector<Bytes> sample_batches() {
  std::vector<Bytes> samples;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    TestRandom random(seed);
    encode_batch(random_batch(random), samples.emplace_back());
  }
  encode_batch({{1}, {PutRecord{chunk_object(7)}, chunk_name(7)}}, samples.emplace_back());
  return samples;
}

std::vector<Bytes> sample_journals() {
  MemoryVolume* volume = nullptr;
  auto shared = std::make_shared<MemoryVolume>();
  volume = shared.get();
  auto journal = JournalWriter::create(shared, test_identity(), "boot", 1 << 20);
  Bytes script = {std::byte{1}};
  for (uint64_t i = 0; i < 4; ++i) {
    const Batch batch{{i}, {PutRecord{chunk_object(i)}, chunk_name(i)}};
    EXPECT_TRUE((*journal)->append(batch));
    Bytes payload;
    encode_batch(batch, payload);
    script = script + step(payload);
  }
  EXPECT_TRUE((*journal)->append({{9}, {SyncedRecord{}}}));
  return {Bytes{std::byte{0}} + *volume->files().at(journal_path("node-a", 3, 0)), script};
}

std::vector<Bytes> sample_checkpoints() {
  auto volume = std::make_shared<MemoryVolume>();
  auto writer = CheckpointWriter::create(volume, test_identity(), 1, {{3, 0, 100}, {5}, 6});
  Bytes records = {static_cast<std::byte>(CheckpointFrame::kRecords)};
  RecordContext context;
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_TRUE((*writer)->add(PutRecord{chunk_object(i)}));
    ByteWriter out(records);
    encode_record(chunk_name(i), context, out);
  }
  EXPECT_TRUE((*writer)->finish());
  return {Bytes{std::byte{0}} + *volume->files().at(checkpoint_path("node-a", 3, 1)),
          Bytes{std::byte{1}, std::byte{4}} + step(records)};
}

// The whole file, and the body of its header alone.
std::vector<Bytes> sample_headers(FileKind kind, const Bytes& file) {
  const auto view = decode_header(kind, file);
  EXPECT_TRUE(view);
  const ByteSpan body = view->body.first(64);
  return {Bytes{std::byte{0}} + file, Bytes{std::byte{1}} + Bytes(body.begin(), body.end())};
}

// The tables of a policy that has seen a little, whole and without their frame.
std::vector<Bytes> sample_tables() {
  const auto policy = *evict::make_policy("prefix");
  for (uint64_t i = 0; i < 200; ++i) {
    const evict::TimeMs now{static_cast<int64_t>(i * 3000)};
    for (uint64_t unit = 1; unit <= 1 + i % 4; ++unit)
      policy->publish({{i % 20 * 10 + unit}, {unit == 1 ? 0 : i % 20 * 10 + unit - 1}, {i % 2}, true}, now);
  }
  const Bytes saved = policy->save();
  const Bytes tables(saved.begin() + 17, saved.end() - 8);
  return {Bytes{std::byte{0}} + saved, Bytes{std::byte{1}} + tables};
}

// What a slot says behind the identity, of each file; and a whole HEAD.
std::vector<Bytes> sample_heads() {
  Head head;
  head.identity = test_identity();
  head.counter = 7;
  head.host = head.boot_id = "host";
  head.checkpoint = HeadCheckpoint{3, 1};
  head.address = "192.0.2.7:4711";
  Acks acks;
  acks.identity = test_identity();
  acks.peers = {{"node-b", {2, 1, 8192}, {ObjectId::make(0, 1, 5), ObjectId::make(0, 2, 1)}}, {"node-c", {1, 0, 4096}, {}}};
  const Bytes slot = *encode_head(head), acks_slot = *encode_acks(acks);
  Bytes identity;
  ByteWriter out(identity);
  encode_identity(test_identity(), out);
  const auto from = static_cast<ptrdiff_t>(kHeaderPreludeBytes + identity.size());
  return {Bytes{std::byte{0}} + slot + slot, Bytes{std::byte{1}} + Bytes(slot.begin() + from, slot.begin() + from + 400),
          Bytes{std::byte{3}} + Bytes(acks_slot.begin() + kBlockBytes, acks_slot.begin() + kBlockBytes + 30)};
}

std::vector<Bytes> samples_of(const std::string& name) {
  if (name == "evict_tables") return sample_tables();
  if (name == "record_codec") return sample_batches();
  if (name == "journal") return sample_journals();
  if (name == "checkpoint") return sample_checkpoints();
  if (name == "volume_file") {
    VolumeHeader header;
    header.uuid = test_identity().volume_uuid;
    return sample_headers(FileKind::kVolume, encode_volume_file(header));
  }
  if (name == "head_file") return sample_heads();
  return sample_headers(FileKind::kPackExtent, encode_pack_header({test_identity(), 5}));
}

std::vector<Bytes> read_corpus(const std::string& name) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(corpus(name))) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> inputs;
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    const std::string content(std::istreambuf_iterator<char>(in), {});
    inputs.emplace_back(as_bytes(content).begin(), as_bytes(content).end());
  }
  return inputs;
}

void mutate(Bytes& bytes, TestRandom& random, const std::vector<Bytes>& others) {
  for (uint64_t i = 1 + random.below(4); i > 0; --i) {
    const size_t at = bytes.empty() ? 0 : random.below(bytes.size());
    const auto place = bytes.begin() + static_cast<ptrdiff_t>(at);
    switch (random.below(6)) {
      case 0:
        if (!bytes.empty()) bytes[at] ^= static_cast<std::byte>(1 << random.below(8));
        break;
      case 1:
        if (!bytes.empty()) bytes[at] = static_cast<std::byte>(random.one_in(2) ? 0xff : random.next());
        break;
      case 2: bytes.resize(at); break;
      case 3: bytes.insert(place, 1 + random.below(9), static_cast<std::byte>(random.next())); break;
      case 4:
        bytes.erase(place, bytes.begin() + static_cast<ptrdiff_t>(std::min(bytes.size(), at + random.below(9))));
        break;
      default: {  // a piece of another input
        const Bytes& other = others[random.below(others.size())];
        if (other.empty()) break;
        const size_t from = random.below(other.size());
        const size_t length = std::min<size_t>(random.below(64), other.size() - from);
        const Bytes piece(other.begin() + static_cast<ptrdiff_t>(from),
                          other.begin() + static_cast<ptrdiff_t>(from + length));
        bytes.insert(place, piece.begin(), piece.end());
      }
    }
  }
}

class FuzzMutations : public ::testing::TestWithParam<FuzzCase> {};

TEST_P(FuzzMutations, HoldOnTheCorpusAndItsMutations) {
  const FuzzCase& which = GetParam();
  if (std::getenv("KVCACHEFS_WRITE_CORPUS")) {
    std::filesystem::create_directories(corpus(which.name));
    size_t number = 0;
    for (const Bytes& sample : samples_of(which.name)) {
      std::ofstream(corpus(which.name) / ("seed-" + std::to_string(number++)), std::ios::binary) << as_text(sample);
    }
    FAIL() << "corpus written; run again without KVCACHEFS_WRITE_CORPUS";
  }
  const std::vector<Bytes> inputs = read_corpus(which.name);
  ASSERT_FALSE(inputs.empty());
  for (const Bytes& input : inputs) which.run(input);
  const char* wanted = std::getenv("KVCACHEFS_FUZZ_MUTATIONS");
  const uint64_t mutations = wanted ? std::strtoull(wanted, nullptr, 10) : 20000;
  for (uint64_t seed = 1; seed <= mutations; ++seed) {
    SCOPED_TRACE(seed);
    TestRandom random(seed);
    Bytes input = inputs[random.below(inputs.size())];
    mutate(input, random, inputs);
    which.run(input);
  }
}

// The seeds must reach what lies behind the checksums, else fuzzing them is an exercise in refusing headers.
TEST(FuzzCorpus, SeedsAreGoodFiles) {
  for (const Bytes& seed : read_corpus("record_codec")) EXPECT_TRUE(decode_batch(seed));
  for (const Bytes& seed : read_corpus("journal")) {
    if (seed[0] != std::byte{0}) continue;
    MemoryVolume volume;
    volume.put(journal_path("node-a", 3, 0), ByteSpan(seed).subspan(1));
    const auto statistics =
        replay_journals(volume, test_identity(0), {}, [](const Batch&, JournalPosition, bool) -> Status { return {}; });
    EXPECT_TRUE(statistics && statistics->batches == 5 && statistics->problems.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, FuzzMutations, ::testing::ValuesIn(kFuzzCases),
                         [](const auto& which) { return std::string(which.param.name); });

}  // namespace fuzz_mutations_test
}  // namespace kvcachefs

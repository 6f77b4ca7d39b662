// A million chunks: how large, how fast, how much memory. Prints; judges only what does not depend on the machine. Runs
// with KVCACHEFS_LONG=1 (a tenth of it otherwise would prove nothing).
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/base/units.h"
#include "store/index/index_test_util.h"

namespace kvcachefs::index_test {

namespace index_scale_test {

constexpr uint64_t kDirectories = 4096;

uint64_t chunks() {
  const char* given = std::getenv("KVCACHEFS_LONG_CHUNKS");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 1'000'000;
}

// Wall time for the user, CPU time for comparisons: the machine may have other work.
class Stopwatch {
 public:
  double wall() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  double cpu() const { return now() - cpu_start_; }
  // "1.2 s (0.9 s CPU)"
  std::string text() const { return fmt::format("{:.2f} s ({:.2f} s CPU)", wall(), cpu()); }
  // "120k/s (150k/s of CPU)"
  std::string rate(uint64_t count) const {
    const double n = static_cast<double>(count) / 1000;
    return fmt::format("{:.0f}k/s ({:.0f}k/s of CPU)", n / wall(), n / cpu());
  }

 private:
  static double now() {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
  }
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double cpu_start_ = now();
};

// VmRSS is all; RssFile is the page cache's pages of the map, which cost nothing that is scarce.
std::string memory_now() {
  std::ifstream status("/proc/self/status");
  std::string line, out;
  while (std::getline(status, line)) {
    if (line.starts_with("VmRSS") || line.starts_with("RssAnon") || line.starts_with("RssFile")) {
      std::istringstream words(line);
      std::string key;
      uint64_t kib = 0;
      words >> key >> kib;
      out += fmt::format("{} {} MiB ", key, kib / 1024);
    }
  }
  return out;
}

uint64_t data_bytes(const std::string& directory) { return std::filesystem::file_size(directory + "/data.mdb"); }

// 64 hex digits, as a prefix hash makes them.
std::string chunk_name(uint64_t n) {
  std::string name;
  for (uint64_t i = 1; i <= 4; ++i) {
    uint64_t x = (n + 1) * 0x9e3779b97f4a7c15ULL * i;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9ULL;
    x ^= x >> 32;
    name += fmt::format("{:016x}", x);
  }
  return name;
}

ObjectId directory_id(uint64_t n) { return ObjectId::make(0, 1, 2 + n); }
ObjectId chunk_id(uint64_t n) { return ObjectId::make(0, 1, 2 + kDirectories + n); }
ObjectId parent_of(uint64_t n) { return directory_id(n * 2654435761 % kDirectories); }

ObjectRecord chunk(uint64_t n) {
  ObjectRecord object = make_file(chunk_id(n), packed(n / 1000, n % 1000 * 16, 65536), 65536);
  object.attributes.mtime_ns += static_cast<int64_t>(n) * 1'000'003;
  object.attributes.ctime_ns = object.attributes.atime_ns = object.attributes.mtime_ns;
  return object;
}

Batch directories() {
  Batch batch;
  batch.records.emplace_back(PutRecord{make_directory(kRootId)});
  for (uint64_t n = 0; n < kDirectories; ++n) {
    batch.records.emplace_back(PutRecord{make_directory(directory_id(n))});
    batch.records.emplace_back(NameRecord{kRootId, fmt::format("{:04x}", n), directory_id(n)});
  }
  return batch;
}

void measure_gets(const Index& index, uint64_t count, const char* what) {
  constexpr uint64_t kGets = 300'000;
  std::vector<std::string> hits, misses;
  for (uint64_t i = 0; i < kGets; ++i) {
    hits.push_back(chunk_name(i * 7919 % count));
    misses.push_back(chunk_name(count + i));
  }
  const Stopwatch hitting;
  for (uint64_t i = 0; i < kGets; ++i) {
    const uint64_t n = i * 7919 % count;
    const auto entry = index.find_name(parent_of(n), hits[i]);
    ASSERT_TRUE(entry && *entry);
    ASSERT_EQ((*entry)->child, chunk_id(n));
    const auto object = index.find_object_summary(chunk_id(n));
    ASSERT_TRUE(object && *object);
  }
  std::cout << fmt::format("{}: name + summary {}", what, hitting.rate(kGets));
  const Stopwatch missing;
  for (uint64_t i = 0; i < kGets; ++i) {
    const auto entry = index.find_name(parent_of(i), misses[i]);
    ASSERT_TRUE(entry && !*entry);
  }
  std::cout << fmt::format(", absent name {}; {}\n", missing.rate(kGets), memory_now());
}

class IndexScaleTest : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("KVCACHEFS_LONG") == nullptr) GTEST_SKIP() << "set KVCACHEFS_LONG=1";
  }
};

TEST_F(IndexScaleTest, AppliedInBatches) {
  const ScratchDirectory scratch;
  const std::string path = scratch.path("index");
  auto index = open_index(path, Index::Found::kFresh);
  ASSERT_TRUE(index->apply(directories(), {1, 0, 1}));
  std::vector<std::string> names;
  for (uint64_t n = 0; n < chunks(); ++n) names.push_back(chunk_name(n));
  const Stopwatch all;
  double commit_wall = 0, commit_cpu = 0;
  for (uint64_t n = 0; n < chunks();) {
    Batch batch;
    for (int i = 0; i < 16 && n < chunks(); ++i, ++n) {
      batch.records.emplace_back(PutRecord{chunk(n)});
      batch.records.emplace_back(NameRecord{parent_of(n), names[n], chunk_id(n)});
    }
    ASSERT_TRUE(index->apply(batch, {1, 0, 1 + n}));
    if (index->overlay_rows() < 40'000) continue;
    const Stopwatch committing;
    ASSERT_TRUE(index->commit());
    commit_wall += committing.wall();
    commit_cpu += committing.cpu();
  }
  std::cout << fmt::format("apply {} chunks and commit every 20,000: {}, of it commits {:.2f} s ({:.2f} s CPU); {}\n",
                           chunks(), all.text(), commit_wall, commit_cpu, memory_now());
  std::cout << fmt::format("file before the close: {} bytes a chunk\n", data_bytes(path) / chunks());
  const Stopwatch closing;
  ASSERT_TRUE(index->close_clean());
  index.reset();
  std::cout << fmt::format("clean close: {}; file: {} bytes a chunk\n", closing.text(), data_bytes(path) / chunks());
  EXPECT_LE(data_bytes(path) / chunks(), 250u);
  const Stopwatch opening;
  index = open_index(path, Index::Found::kOpened);
  std::cout << fmt::format("open after a clean close: {}; {}\n", opening.text(), memory_now());
  measure_gets(*index, chunks(), "applied");
  index.reset();
  const Stopwatch unclean;
  index = open_index(path, Index::Found::kOpened);
  std::cout << fmt::format("open after an unclean one: {}\n", unclean.text());
}

TEST_F(IndexScaleTest, LoadedFromACheckpoint) {
  const ScratchDirectory scratch;
  const std::string path = scratch.path("index");
  // Records are made before the clock runs.
  std::vector<std::tuple<ObjectId, uint64_t, uint64_t>> order;
  for (uint64_t n = 0; n < chunks(); ++n) order.emplace_back(parent_of(n), name_cookie(chunk_name(n)), n);
  std::ranges::sort(order);
  std::vector<Record> records{PutRecord{make_directory(kRootId)}};
  for (uint64_t n = 0; n < kDirectories; ++n) records.emplace_back(PutRecord{make_directory(directory_id(n))});
  for (uint64_t n = 0; n < chunks(); ++n) records.emplace_back(PutRecord{chunk(n)});
  for (const auto& [parent, cookie, n] : order) {
    records.emplace_back(NameRecord{parent, chunk_name(n), chunk_id(n)});
  }
  auto index = open_index(path, Index::Found::kFresh);
  const std::string before = memory_now();
  const Stopwatch loading;
  ASSERT_TRUE(index->begin_load());
  for (Record& record : records) ASSERT_TRUE(index->load(std::move(record)));
  ASSERT_TRUE(index->finish_load({1, 0, 1}, Stamp{1}));
  std::cout << fmt::format("load of {} rows: {}, {}; {} bytes of file a chunk; before {}, after {}\n", records.size(),
                           loading.text(), loading.rate(records.size()), data_bytes(path) / chunks(), before,
                           memory_now());
  EXPECT_EQ(index->totals().objects, chunks());
  EXPECT_LE(data_bytes(path) / chunks(), 250u);
  measure_gets(*index, chunks(), "loaded");
}

}  // namespace index_scale_test

}  // namespace kvcachefs::index_test

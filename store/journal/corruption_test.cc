// Every flip and every cut of journals and checkpoints: readers get records that were written, in order, or none.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "store/journal/journal.h"
#include "store/journal/memory_volume.h"
#include "store/journal/test_records.h"

namespace kvcachefs {
namespace corruption_test {

struct Seen {
  Batch batch;
  JournalPosition after;
};

Result<std::vector<Seen>> replay(Volume& volume) {
  std::vector<Seen> seen;
  auto statistics =
      replay_journals(volume, test_identity(0), {}, [&](const Batch& batch, JournalPosition after, bool) -> Status {
        seen.push_back({batch, after});
        return {};
      });
  if (!statistics) return std::unexpected(statistics.error());
  return seen;
}

// The batches of `seen` are some of `written`, in the same order and at the same positions.
bool is_subsequence(const std::vector<Seen>& seen, const std::vector<Seen>& written) {
  size_t at = 0;
  for (const Seen& one : seen) {
    while (at < written.size() && written[at].after != one.after) ++at;
    if (at == written.size() || !same_batch(written[at].batch, one.batch)) return false;
    ++at;
  }
  return true;
}

class JournalCorruption : public ::testing::Test {
 protected:
  // Three files and a few random batches in each. The last record is a synced one if `synced`.
  void write(bool synced) {
    auto journal = JournalWriter::create(volume_, test_identity(), "boot", 500);
    ASSERT_TRUE(journal);
    for (uint64_t seed = 1; (*journal)->position().seq < 2 || seed < 12; ++seed) {
      TestRandom random(seed);
      Batch batch = random_batch(random);
      std::erase_if(batch.records, [](const Record& record) { return std::holds_alternative<SyncedRecord>(record); });
      append(**journal, std::move(batch));
    }
    if (synced) append(**journal, Batch{{99}, {SyncedRecord{}}});
    for (uint64_t seq = 0; seq <= (*journal)->position().seq; ++seq) paths_.push_back(journal_path("node-a", 3, seq));
  }
  void append(JournalWriter& journal, Batch batch) {
    const auto after = journal.append(batch);
    ASSERT_TRUE(after);
    written_.push_back({std::move(batch), *after});
  }
  size_t file_of(const std::string& path) const {
    return static_cast<size_t>(std::count_if(written_.begin(), written_.end(), [&](const Seen& seen) {
      return journal_path("node-a", 3, seen.after.seq) == path;
    }));
  }

  std::shared_ptr<MemoryVolume> volume_ = std::make_shared<MemoryVolume>();
  std::vector<Seen> written_;
  std::vector<std::string> paths_;
};

TEST_F(JournalCorruption, AFlipCostsAtMostTheBatchItHits) {
  write(true);
  size_t flips = 0;
  for (const std::string& path : paths_) {
    Bytes& bytes = *volume_->files().at(path);
    for (size_t at = 0; at < bytes.size(); ++at) {
      for (const int value : {0x01, 0x80, 0xff}) {
        bytes[at] ^= static_cast<std::byte>(value);
        const auto seen = replay(*volume_);
        bytes[at] ^= static_cast<std::byte>(value);
        ASSERT_TRUE(seen) << path << " byte " << at << ": " << seen.error().message;
        ASSERT_TRUE(is_subsequence(*seen, written_)) << path << " byte " << at;
        ASSERT_GE(seen->size() + 1, written_.size()) << path << " byte " << at;
        ++flips;
      }
    }
  }
  EXPECT_GT(flips, 3000u);
}

TEST_F(JournalCorruption, WithoutASyncedRecordAFlipLeavesAPrefix) {
  write(false);
  for (const std::string& path : paths_) {
    Bytes& bytes = *volume_->files().at(path);
    for (size_t at = 0; at < bytes.size(); ++at) {
      bytes[at] ^= std::byte{0x10};
      const auto seen = replay(*volume_);
      bytes[at] ^= std::byte{0x10};
      ASSERT_TRUE(seen) << path << " byte " << at << ": " << seen.error().message;
      ASSERT_LE(seen->size(), written_.size());
      for (size_t i = 0; i < seen->size(); ++i) {
        ASSERT_EQ((*seen)[i].after, written_[i].after) << path << " byte " << at;
        ASSERT_TRUE(same_batch((*seen)[i].batch, written_[i].batch)) << path << " byte " << at;
      }
    }
  }
}

TEST_F(JournalCorruption, EveryCutLeavesWhatWasWrittenBefore) {
  for (const bool synced : {false, true}) {
    volume_ = std::make_shared<MemoryVolume>();
    written_.clear();
    paths_.clear();
    write(synced);
    for (const std::string& path : paths_) {
      Bytes& bytes = *volume_->files().at(path);
      const Bytes whole = bytes;
      for (size_t length = 0; length < whole.size(); ++length) {
        bytes.resize(length);
        const auto seen = replay(*volume_);
        bytes = whole;
        ASSERT_TRUE(seen) << path << " cut to " << length << ": " << seen.error().message;
        ASSERT_TRUE(is_subsequence(*seen, written_)) << path << " cut to " << length;
        if (synced && path != paths_.back()) {
          ASSERT_GE(seen->size() + file_of(path), written_.size()) << "only batches of " << path << " may be lost";
        }
      }
    }
  }
}

TEST_F(JournalCorruption, RandomGarbageAndStaleFramesNeverComeBack) {
  write(true);
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    TestRandom random(seed);
    const std::string& path = paths_[random.below(paths_.size())];
    Bytes& bytes = *volume_->files().at(path);
    const Bytes whole = bytes;
    // A piece of some file lands anywhere in another: a misdirected or stale write.
    const Bytes& source = *volume_->files().at(paths_[random.below(paths_.size())]);
    const Bytes copy = source;
    const size_t from = random.below(copy.size());
    const size_t to = random.below(bytes.size());
    const size_t length = std::min({static_cast<size_t>(random.below(200)), copy.size() - from, bytes.size() - to});
    std::copy_n(copy.begin() + static_cast<ptrdiff_t>(from), length, bytes.begin() + static_cast<ptrdiff_t>(to));
    const auto seen = replay(*volume_);
    bytes = whole;
    if (!seen) continue;
    ASSERT_TRUE(is_subsequence(*seen, written_)) << "seed " << seed;
  }
}

TEST(CheckpointCorruption, EveryFlipAndCutIsFound) {
  auto volume = std::make_shared<MemoryVolume>();
  auto writer = CheckpointWriter::create(volume, test_identity(), 1, {{3, 1, 100}, {5}, 6});
  ASSERT_TRUE(writer);
  TestRandom random(42);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE((*writer)->add(random_record(random)));
  ASSERT_TRUE((*writer)->finish());
  std::vector<std::string> problems;
  const auto good = find_checkpoint(*volume, test_identity(0), problems);
  ASSERT_TRUE(good && *good);

  Bytes& bytes = *volume->files().at(checkpoint_path("node-a", 3, 1));
  const Bytes whole = bytes;
  const auto expect_refused = [&](const std::string& how) {
    problems.clear();
    const auto found = find_checkpoint(*volume, test_identity(0), problems);
    ASSERT_TRUE(found) << how << ": " << found.error().message;
    ASSERT_FALSE(*found) << how;
    ASSERT_EQ(problems.size(), 1u) << how;
    const Status read = read_checkpoint(*volume, test_identity(0), **good, [](Record&&) -> Status { return {}; }, problems);
    ASSERT_FALSE(read) << how;
  };
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int value : {0x01, 0x80, 0xff}) {
      bytes[at] ^= static_cast<std::byte>(value);
      expect_refused("flip at " + std::to_string(at));
      bytes[at] ^= static_cast<std::byte>(value);
    }
  }
  for (size_t length = 0; length < whole.size(); ++length) {
    bytes.resize(length);
    expect_refused("cut to " + std::to_string(length));
    bytes = whole;
  }
  bytes.push_back(std::byte{0});
  expect_refused("a byte more");
}

}  // namespace corruption_test
}  // namespace kvcachefs

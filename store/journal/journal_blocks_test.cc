// Journals in blocks, and epochs that a later one says ended.
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "store/base/units.h"
#include "store/journal/block_buffer.h"
#include "store/journal/epoch_ends.h"
#include "store/journal/file_header.h"
#include "store/journal/frame_reader.h"
#include "store/journal/journal.h"
#include "store/journal/journal_file.h"
#include "store/journal/memory_volume.h"
#include "store/journal/record_codec.h"
#include "store/journal/test_records.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {
namespace journal_blocks_test {

constexpr uint64_t kFileBytes = 4 * kBlockBytes;  // the header and three batches

Batch numbered(uint64_t number) { return {{number}, {PutRecord{chunk_object(number)}, chunk_name(number)}}; }

struct Replayed {
  ReplayStatistics statistics;
  std::vector<uint64_t> stamps;
  std::string problems() const {
    std::string text;
    for (const std::string& problem : statistics.problems) text += problem + "\n";
    return text;
  }
};

Replayed replay(Volume& volume, JournalPosition from = {}) {
  Replayed replayed;
  auto statistics = replay_journals(volume, test_identity(0), from, [&](const Batch& batch, JournalPosition, bool) -> Status {
    replayed.stamps.push_back(batch.stamp.value);
    return {};
  });
  EXPECT_TRUE(statistics) << statistics.error().message;
  if (statistics) replayed.statistics = *statistics;
  return replayed;
}

std::vector<uint64_t> numbers(uint64_t from, uint64_t to) {
  std::vector<uint64_t> all;
  for (; from < to; ++from) all.push_back(from);
  return all;
}

class JournalBlocks : public ::testing::Test {
 protected:
  std::unique_ptr<JournalWriter> writer(uint32_t epoch = 3, uint64_t most = kFileBytes) {
    auto made = JournalWriter::create(volume_, test_identity(epoch), "boot-1", most, JournalForm::kBlocks);
    EXPECT_TRUE(made) << made.error().message;
    return std::move(*made);
  }
  void append(JournalWriter& journal, const Batch& batch) {
    const auto after = journal.append(batch);
    ASSERT_TRUE(after) << after.error().message;
    ends_.push_back(*after);
  }
  Bytes& file(uint64_t seq, uint32_t epoch = 3) { return *volume_->files().at(journal_path("node-a", epoch, seq)); }

  std::shared_ptr<MemoryVolume> volume_ = std::make_shared<MemoryVolume>();
  std::vector<JournalPosition> ends_;
};

TEST_F(JournalBlocks, WhateverTheSizeABatchHasBlocksOfItsOwn) {
  auto journal = writer(3, 64 * kMiB);
  for (const size_t bytes : {size_t{1}, kBlockBytes - 200, kBlockBytes, 3 * kBlockBytes, size_t{2'000'000}}) {
    Batch batch = numbered(bytes);
    std::get<PutRecord>(batch.records[0]).object.attributes.xattrs = {{"user.x", std::string(bytes, 'x')}};
    append(*journal, batch);
    EXPECT_EQ(ends_.back().offset % kBlockBytes, 0u);
    EXPECT_EQ(file(0).size(), ends_.back().offset);
  }
  const Replayed replayed = replay(*volume_);
  EXPECT_EQ(replayed.stamps.size(), ends_.size());
  EXPECT_EQ(replayed.problems(), "");
}

// The simulated volume refuses what direct I/O refuses.
TEST_F(JournalBlocks, EveryCallIsFitForDirectIo) {
  const auto disk = make_sim_volume();
  ASSERT_TRUE(disk->make_directories("nodes/node-a/3"));
  bool fail_sync = false;
  size_t writes = 0;
  const auto volume = make_fault_volume(disk, [&](const VolumeCall& call) -> Fault {
    writes += call.kind == VolumeCall::Kind::kWrite;
    if (call.kind == VolumeCall::Kind::kSync && fail_sync) return {EIO, -1, 0};
    return {};
  });
  auto journal = JournalWriter::create(volume, test_identity(), "boot", kFileBytes, JournalForm::kBlocks);
  ASSERT_TRUE(journal) << journal.error().message;
  EXPECT_EQ(writes, 1u);  // the header
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE((*journal)->append(numbered(i)));
  EXPECT_EQ(writes, 4u) << "one write a batch";
  ASSERT_TRUE((*journal)->append(numbered(3)));
  EXPECT_EQ(writes, 7u) << "the header of the next file, where the first goes on, and the batch";
  fail_sync = true;
  EXPECT_FALSE((*journal)->sync());
  fail_sync = false;
  ASSERT_TRUE((*journal)->sync());  // reads the written bytes back and writes them again
  const Replayed replayed = replay(*disk);
  EXPECT_EQ(replayed.stamps, numbers(0, 4));
  EXPECT_EQ(replayed.problems(), "");
}

TEST_F(JournalBlocks, EveryPositionIsAPlaceToGoOnFrom) {
  auto journal = writer();
  for (uint64_t i = 0; i < 20; ++i) append(*journal, numbered(i));
  ASSERT_GT(ends_.back().seq, 4u);
  for (size_t i = 0; i < ends_.size(); ++i) {
    if (i > 0 && ends_[i].seq != ends_[i - 1].seq && ends_[i - 1].seq > 0) {
      // Files wholly before a position may be gone.
      volume_->files().erase(journal_path("node-a", 3, ends_[i - 1].seq - 1));
    }
    const Replayed replayed = replay(*volume_, ends_[i]);
    EXPECT_EQ(replayed.stamps, numbers(i + 1, 20));
    EXPECT_EQ(replayed.problems(), "");
  }
}

TEST_F(JournalBlocks, AFileSaysLastWhereItGoesOn) {
  auto journal = writer();
  for (uint64_t i = 0; i < 4; ++i) append(*journal, numbered(i));
  ASSERT_TRUE(journal->rotate());
  for (const uint64_t seq : {0u, 1u}) {
    const Bytes& bytes = file(seq);
    const auto header = decode_journal_header(bytes);
    ASSERT_TRUE(header) << header.error().message;
    EXPECT_TRUE(header->header.blocks);
    FrameReader reader([&](std::span<std::byte> into, uint64_t offset) -> Result<size_t> {
      std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(offset), into.size(), into.begin());
      return into.size();
    }, bytes.size(), FrameKey(FileKind::kJournal, test_identity(), seq));
    const auto last = reader.at(bytes.size() - kBlockBytes);
    ASSERT_TRUE(last && *last);
    const auto batch = decode_batch((*last)->payload);
    ASSERT_TRUE(batch && batch->records.size() == 1);
    EXPECT_EQ(std::get<NextRecord>(batch->records[0]).seq, seq + 1);
    EXPECT_EQ(decode_journal_header(file(seq + 1))->header.previous, (JournalLink{seq, bytes.size() - kBlockBytes}));
  }
}

TEST_F(JournalBlocks, NothingHangsOnWhatAFileSaysLast) {
  for (const size_t left : {size_t{0}, size_t{10}, kBlockBytes - 1}) {
    volume_ = std::make_shared<MemoryVolume>();
    ends_.clear();
    auto journal = writer();
    for (uint64_t i = 0; i < 4; ++i) append(*journal, numbered(i));
    ASSERT_TRUE(journal->append({{4}, {SyncedRecord{}}}));
    file(0).resize(file(0).size() - kBlockBytes + left);
    const Replayed replayed = replay(*volume_);
    EXPECT_EQ(replayed.stamps, numbers(0, 5));
    EXPECT_EQ(replayed.statistics.damaged_files, 0u) << replayed.problems();
    EXPECT_EQ(replayed.statistics.torn_tails, left == 0 ? 0u : 1u) << replayed.problems();
  }
}

TEST_F(JournalBlocks, ABatchWithoutItsZerosWasNotWritten) {
  auto journal = writer();
  append(*journal, numbered(0));
  append(*journal, numbered(1));
  file(0).pop_back();
  const Replayed replayed = replay(*volume_);
  EXPECT_EQ(replayed.stamps, numbers(0, 1));
  EXPECT_EQ(replayed.statistics.torn_tails, 1u);
}

TEST_F(JournalBlocks, FramesBehindADamagedHeaderAreStillRead) {
  for (const bool alone : {false, true}) {
    volume_ = std::make_shared<MemoryVolume>();
    auto journal = writer(3, alone ? 64 * kMiB : kFileBytes);
    for (uint64_t i = 0; i < 6; ++i) append(*journal, numbered(i));
    ASSERT_TRUE(journal->append({{6}, {SyncedRecord{}}}));
    file(0)[30] ^= std::byte{1};
    const Replayed replayed = replay(*volume_);
    auto stamps = replayed.stamps;
    std::erase_if(stamps, [](uint64_t stamp) { return stamp > 6; });
    EXPECT_EQ(stamps, numbers(0, 7)) << replayed.problems();
    EXPECT_EQ(replayed.statistics.damaged_files, 1u) << replayed.problems();
  }
}

TEST_F(JournalBlocks, CoveredFilesGo) {
  auto journal = writer();
  for (uint64_t i = 0; i < 5; ++i) append(*journal, numbered(i));
  ASSERT_EQ(ends_[2].seq, 0u);
  ASSERT_EQ(ends_[3].seq, 1u);
  const auto remove = [&](JournalPosition covered) {
    ASSERT_TRUE(remove_covered(*volume_, test_identity(), covered, {3, 1, {covered, {1}, 1}, 0}));
  };
  remove(ends_[1]);
  EXPECT_TRUE(volume_->files().contains(journal_path("node-a", 3, 0)));
  remove(ends_[2]);
  EXPECT_FALSE(volume_->files().contains(journal_path("node-a", 3, 0)));
  EXPECT_TRUE(volume_->files().contains(journal_path("node-a", 3, 1)));
  EXPECT_EQ(replay(*volume_, ends_[2]).stamps, numbers(3, 5));
}

// --- how far epochs count ---

class EpochEndsTest : public JournalBlocks {
 protected:
  // Epoch 3 goes on behind `end`, where epoch 4 says that it ended; 4 has a batch of its own.
  void lose_the_node() {
    old_ = writer();
    for (uint64_t i = 0; i < 5; ++i) append(*old_, numbered(i));
    end_ = ends_.back();
    other_ = writer(4);
    append(*other_, {{50}, {EndsRecord{end_, false}}});
    append(*other_, numbered(51));
    for (uint64_t i = 90; i < 99; ++i) append(*old_, numbered(i));  // it does not know yet
  }
  std::unique_ptr<JournalWriter> old_, other_;
  JournalPosition end_;
};

TEST_F(EpochEndsTest, NothingBehindTheEndIsRead) {
  lose_the_node();
  const Replayed replayed = replay(*volume_);
  EXPECT_EQ(replayed.stamps, (std::vector<uint64_t>{0, 1, 2, 3, 4, 50, 51}));
  EXPECT_EQ(replayed.problems(), "");
  EXPECT_EQ(replay(*volume_, end_).stamps, (std::vector<uint64_t>{50, 51}));
  EXPECT_EQ(replay(*volume_, ends_[2]).stamps, (std::vector<uint64_t>{3, 4, 50, 51}));
  // A reader that has read further sees it here, and begins anew.
  uint64_t counting = 0;
  const auto infos = list_journals(*volume_, test_identity(0));
  ASSERT_TRUE(infos);
  for (const JournalFileInfo& info : *infos) {
    EXPECT_LE(info.counting_bytes, info.size_bytes);
    if (info.epoch == 3 && info.seq >= end_.seq) {
      EXPECT_EQ(info.counting_bytes, info.seq == end_.seq ? end_.offset : 0u);
    }
    counting += info.epoch == 4 && info.counting_bytes == info.size_bytes;
  }
  EXPECT_GT(counting, 0u);
}

TEST_F(EpochEndsTest, ACheckpointOfWhatDoesNotCountIsNone) {
  lose_the_node();
  const auto write = [&](uint64_t seq, JournalPosition covers) {
    auto checkpoint = CheckpointWriter::create(volume_, test_identity(3), seq, {covers, {1}, 1});
    ASSERT_TRUE(checkpoint && (*checkpoint)->finish());
  };
  write(1, ends_[2]);
  write(2, end_);
  write(3, old_->position());
  std::vector<std::string> problems;
  const auto found = find_checkpoint(*volume_, test_identity(0), problems);
  ASSERT_TRUE(found && *found);
  EXPECT_EQ((*found)->seq, 2u);
  EXPECT_TRUE(problems.empty());
}

TEST_F(EpochEndsTest, AnEpochThatCameToNothingEndsNothing) {
  lose_the_node();
  // A third daemon had taken the node before the second one began its epoch, and neither saw the other.
  auto third = writer(5);
  append(*third, {{60}, {EndsRecord{ends_[1], true}}});
  const Replayed replayed = replay(*volume_);
  EXPECT_EQ(replayed.stamps, (std::vector<uint64_t>{0, 1, 60}));
  const auto ends = EpochEnds::read(*volume_, test_identity(0), {3, 4, 5}, 0);
  ASSERT_TRUE(ends);
  EXPECT_TRUE(ends->counts(ends_[1]));
  EXPECT_FALSE(ends->counts(end_));
  EXPECT_FALSE(ends->counts({4, 0, kBlockBytes * 2}));
  EXPECT_TRUE(ends->counts({5, 0, kBlockBytes * 2}));
}

TEST_F(EpochEndsTest, OnlyTheFirstRecordAndOnlyOfEarlierEpochsCounts) {
  auto first = writer(3);
  for (uint64_t i = 0; i < 3; ++i) append(*first, numbered(i));
  auto second = writer(4);
  append(*second, numbered(10));
  append(*second, {{11}, {EndsRecord{{3, 0, 0}, false}}});
  auto third = writer(5);
  append(*third, {{12}, {EndsRecord{{5, 0, 0}, false}}});
  EXPECT_EQ(replay(*volume_).stamps, (std::vector<uint64_t>{0, 1, 2, 10, 11, 12}));
}

TEST_F(EpochEndsTest, HeadAndAcksGoWithAnEpochThatHoldsNothingElse) {
  lose_the_node();
  for (const char* name : {kHeadFileName, kAcksFileName}) volume_->put(epoch_directory("node-a", 3) + "/" + name, Bytes(kBlockBytes));
  const JournalPosition covered = other_->position();
  ASSERT_TRUE(remove_covered(*volume_, test_identity(4), covered, {4, 1, {covered, {1}, 1}, 0}));
  EXPECT_EQ(list_epochs(*volume_, "node-a").value(), (std::vector<uint32_t>{4}));
}

TEST_F(EpochEndsTest, HeadAndAcksStayWithExtents) {
  lose_the_node();
  for (const char* name : {kHeadFileName, kAcksFileName, "extents/0/1.pack"})
    volume_->put(epoch_directory("node-a", 3) + "/" + name, Bytes(kBlockBytes));
  const JournalPosition covered = other_->position();
  ASSERT_TRUE(remove_covered(*volume_, test_identity(4), covered, {4, 1, {covered, {1}, 1}, 0}));
  EXPECT_TRUE(volume_->files().contains(epoch_directory("node-a", 3) + "/" + kHeadFileName));
}

}  // namespace journal_blocks_test
}  // namespace kvcachefs

#include "store/journal/journal.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "store/journal/goes_on.h"
#include "store/journal/lost_records.h"
#include "store/journal/journal_file.h"
#include "store/journal/memory_volume.h"
#include "store/journal/test_records.h"

namespace kvcachefs {
namespace journal_test {

constexpr uint64_t kFileBytes = 64 * 1024 * 1024;

struct Seen {
  Batch batch;
  JournalPosition after;
  bool synced = false;
};

struct Replayed {
  ReplayStatistics statistics;
  std::vector<Seen> batches;
  std::string all_problems() const {
    std::string text;
    for (const std::string& problem : statistics.problems) text += problem + "\n";
    return text;
  }
};

Result<Replayed> replay(Volume& volume, JournalPosition from = {}) {
  Replayed replayed;
  auto statistics = replay_journals(volume, test_identity(0), from,
                                    [&](const Batch& batch, JournalPosition after, bool synced) -> Status {
                                      replayed.batches.push_back({batch, after, synced});
                                      return {};
                                    });
  if (!statistics) return std::unexpected(statistics.error());
  replayed.statistics = *statistics;
  return replayed;
}

Batch numbered(uint64_t number) { return {{number}, {PutRecord{chunk_object(number)}, chunk_name(number)}}; }
Batch synced_mark(uint64_t number) { return {{number}, {SyncedRecord{}}}; }

class JournalTest : public ::testing::Test {
 protected:
  std::unique_ptr<JournalWriter> writer(uint32_t epoch = 3, uint64_t max_file_bytes = kFileBytes) {
    auto made = JournalWriter::create(volume_, test_identity(epoch), "boot-1", max_file_bytes);
    EXPECT_TRUE(made) << made.error().message;
    return std::move(*made);
  }
  void append(JournalWriter& journal, const Batch& batch) {
    const auto after = journal.append(batch);
    ASSERT_TRUE(after) << after.error().message;
    written_.push_back(batch);
    ends_.push_back(*after);
  }
  Bytes& file(uint64_t seq, uint32_t epoch = 3) { return *volume_->files().at(journal_path("node-a", epoch, seq)); }
  void expect_numbers(const Replayed& replayed, const std::vector<uint64_t>& numbers) {
    std::vector<uint64_t> found;
    for (const Seen& seen : replayed.batches) found.push_back(seen.batch.stamp.value);
    EXPECT_EQ(found, numbers) << replayed.all_problems();
  }

  std::shared_ptr<MemoryVolume> volume_ = std::make_shared<MemoryVolume>();
  std::vector<Batch> written_;
  std::vector<JournalPosition> ends_;
};

TEST_F(JournalTest, WhatWasAppendedComesBackInOrder) {
  auto journal = writer();
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    TestRandom random(seed);
    const Batch batch = random_batch(random);
    if (!says_only_next(batch)) append(*journal, batch);
  }
  const auto replayed = replay(*volume_);
  ASSERT_TRUE(replayed) << replayed.error().message;
  ASSERT_EQ(replayed->batches.size(), written_.size());
  for (size_t i = 0; i < written_.size(); ++i) {
    ASSERT_TRUE(same_batch(replayed->batches[i].batch, written_[i])) << "batch " << i;
    ASSERT_EQ(replayed->batches[i].after, ends_[i]) << "batch " << i;
  }
  EXPECT_EQ(replayed->statistics.batches, written_.size());
  EXPECT_EQ(replayed->statistics.files, 1u);
  EXPECT_TRUE(replayed->statistics.problems.empty()) << replayed->all_problems();
}

TEST_F(JournalTest, SyncedTellsWhatALaterRecordCovers) {
  auto journal = writer();
  append(*journal, numbered(1));
  append(*journal, synced_mark(2));
  append(*journal, numbered(3));
  const auto replayed = replay(*volume_);
  ASSERT_EQ(replayed->batches.size(), 3u);
  EXPECT_TRUE(replayed->batches[0].synced);
  EXPECT_TRUE(replayed->batches[1].synced);
  EXPECT_FALSE(replayed->batches[2].synced);
}

TEST_F(JournalTest, EveryPositionIsAPlaceToGoOnFrom) {
  auto journal = writer(3, 700);
  for (uint64_t i = 0; i < 30; ++i) append(*journal, numbered(i));
  ASSERT_GT(ends_.back().seq, 3u);
  for (size_t i = 0; i < ends_.size(); ++i) {
    const auto replayed = replay(*volume_, ends_[i]);
    ASSERT_TRUE(replayed) << replayed.error().message;
    EXPECT_EQ(replayed->batches.size(), ends_.size() - i - 1);
    EXPECT_TRUE(replayed->statistics.problems.empty()) << replayed->all_problems();
  }
}

TEST_F(JournalTest, FilesBeforeAPositionMayBeGone) {
  auto journal = writer(3, 700);
  for (uint64_t i = 0; i < 30; ++i) append(*journal, numbered(i));
  for (size_t i = 0; i + 1 < ends_.size(); ++i) {
    if (ends_[i].seq == ends_[i + 1].seq) continue;
    // Everything of the file is covered: it may be removed, and the position at its end still leads on.
    volume_->files().erase(journal_path("node-a", 3, ends_[i].seq));
    const auto replayed = replay(*volume_, ends_[i]);
    EXPECT_EQ(replayed->batches.size(), ends_.size() - i - 1);
    EXPECT_TRUE(replayed->statistics.problems.empty()) << replayed->all_problems();
    // But not one before that.
    const auto early = replay(*volume_, ends_[i - 1]);
    EXPECT_EQ(early->statistics.damaged_files, 1u) << early->all_problems();
    EXPECT_EQ(early->batches.size(), ends_.size() - i - 1);
  }
}

TEST_F(JournalTest, EpochsComeInOrderAndEarlierOnesAreSkipped) {
  for (const uint32_t epoch : {10u, 2u, 9u}) {
    auto journal = writer(epoch);
    append(*journal, numbered(epoch));
    append(*journal, numbered(100 + epoch));
  }
  expect_numbers(*replay(*volume_), {2, 102, 9, 109, 10, 110});
  expect_numbers(*replay(*volume_, {9, 0, 0}), {9, 109, 10, 110});
  expect_numbers(*replay(*volume_, ends_[4]), {109, 10, 110});  // written third: epoch 9
  EXPECT_EQ(list_epochs(*volume_, "node-a").value(), (std::vector<uint32_t>{2, 9, 10}));
  const auto infos = list_journals(*volume_, test_identity(0)).value();
  ASSERT_EQ(infos.size(), 3u);
  EXPECT_EQ(infos[1].epoch, 9u);
  EXPECT_EQ(infos[1].boot_id, "boot-1");
  EXPECT_EQ(infos[1].size_bytes, file(0, 9).size());
}

TEST_F(JournalTest, RotateStartsAFileAndCountsFromThere) {
  auto journal = writer();
  const JournalPosition start = journal->position();
  EXPECT_EQ(journal->rotate().value(), start) << "nothing written: nothing to leave behind";
  append(*journal, numbered(1));
  EXPECT_EQ(journal->appended().bytes_since_rotate, ends_.back().offset - start.offset);
  const JournalPosition second = journal->rotate().value();
  EXPECT_EQ(second.seq, start.seq + 1);
  EXPECT_EQ(journal->appended().bytes_since_rotate, 0u);
  EXPECT_EQ(journal->appended().bytes_in_all, ends_.back().offset - start.offset);
  append(*journal, numbered(2));
  expect_numbers(*replay(*volume_, second), {2});
  expect_numbers(*replay(*volume_, ends_[0]), {2});
}

TEST_F(JournalTest, AFailedWriteLeavesNothingAndTheNextFileGoesOn) {
  auto journal = writer();
  append(*journal, numbered(1));
  volume_->writes_until_full = 0;
  const JournalPosition before = journal->position();
  const auto failed = journal->append(numbered(2));
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, Code::kNoSpace);
  EXPECT_EQ(journal->position(), before);
  EXPECT_FALSE(journal->append(numbered(2))) << "not even a new file's header can be written";
  volume_->writes_until_full = -1;
  append(*journal, numbered(3));
  append(*journal, synced_mark(4));
  const auto replayed = replay(*volume_);
  expect_numbers(*replayed, {1, 3, 4});
  EXPECT_EQ(replayed->statistics.damaged_files, 0u) << replayed->all_problems();
  EXPECT_EQ(replayed->statistics.torn_tails, 1u) << replayed->all_problems();
}

TEST_F(JournalTest, ABatchThatReachedTheFileThoughItsWriteFailedDoesNotCount) {
  auto journal = writer();
  append(*journal, numbered(1));
  const size_t good = file(0).size();
  append(*journal, numbered(2));
  const Bytes with_second = file(0);
  // The same again, the second append failing after all its bytes were put down.
  volume_ = std::make_shared<MemoryVolume>();
  journal = writer();
  append(*journal, numbered(1));
  volume_->writes_until_full = 0;
  ASSERT_FALSE(journal->append(numbered(2)));
  volume_->writes_until_full = -1;
  append(*journal, numbered(3));
  file(0) = with_second;
  ASSERT_GT(file(0).size(), good);
  const auto replayed = replay(*volume_);
  expect_numbers(*replayed, {1, 3});
  EXPECT_EQ(replayed->statistics.torn_tails, 1u);
}

TEST_F(JournalTest, AFileWhoseHeaderWasNeverFinishedIsPassedOver) {
  auto journal = writer();
  append(*journal, numbered(1));
  volume_->put(journal_path("node-a", 3, 1), as_bytes("half a head"));
  volume_->writes_until_full = 0;
  EXPECT_FALSE(journal->append(numbered(2)));
  volume_->writes_until_full = -1;
  EXPECT_FALSE(journal->append(numbered(2))) << "file 1 is there already";
  append(*journal, numbered(3));
  append(*journal, synced_mark(4));
  const auto replayed = replay(*volume_);
  expect_numbers(*replayed, {1, 3, 4});
  EXPECT_EQ(replayed->statistics.damaged_files, 0u) << replayed->all_problems();
}

TEST_F(JournalTest, AFailedSyncIsRepeatedByWritingAgain) {
  auto journal = writer();
  append(*journal, numbered(1));
  volume_->sync_fails = true;
  EXPECT_EQ(journal->sync().error().code, Code::kIo);
  volume_->sync_fails = false;
  ASSERT_TRUE(journal->sync());
  append(*journal, numbered(2));
  volume_->sync_fails = true;
  EXPECT_FALSE(journal->sync());
  volume_->sync_fails = false;
  // The kernel dropped the page that could not be written: the medium now differs from the appended bytes.
  file(0).back() ^= std::byte{1};
  const auto lost = journal->sync();
  ASSERT_FALSE(lost);
  EXPECT_NE(lost.error().message.find("are lost"), std::string::npos) << lost.error().message;
  EXPECT_FALSE(journal->sync()) << "stays an error";
}

TEST_F(JournalTest, SyncCoversTheFilesBeforeAndTheirNames) {
  auto journal = writer(3, 700);
  const int syncs = volume_->file_syncs, directories = volume_->directory_syncs;
  for (uint64_t i = 0; i < 12; ++i) append(*journal, numbered(i));
  const int files = static_cast<int>(journal->position().seq) + 1;
  ASSERT_GT(files, 2);
  EXPECT_EQ(volume_->file_syncs, syncs) << "append does not sync";
  ASSERT_TRUE(journal->sync());
  EXPECT_EQ(volume_->file_syncs - syncs, files);
  EXPECT_EQ(volume_->directory_syncs - directories, 1);
  ASSERT_TRUE(journal->sync());
  EXPECT_EQ(volume_->file_syncs - syncs, files) << "nothing new, nothing to sync";
}

TEST_F(JournalTest, ATornTailIsNotDamage) {
  auto journal = writer();
  append(*journal, numbered(1));
  append(*journal, synced_mark(2));
  append(*journal, numbered(3));
  file(0).resize(file(0).size() - 7);
  const auto replayed = replay(*volume_);
  expect_numbers(*replayed, {1, 2});
  EXPECT_EQ(replayed->statistics.torn_tails, 1u);
  EXPECT_EQ(replayed->statistics.damaged_files, 0u);
  ASSERT_EQ(replayed->statistics.problems.size(), 1u);
  EXPECT_NE(replayed->statistics.problems[0].find("nodes/node-a/3/journal/0.log: ends in a broken frame at " +
                                                  std::to_string(ends_[1].offset)),
            std::string::npos)
      << replayed->all_problems();
}

TEST_F(JournalTest, DamageBeforeTheLastSyncedRecordIsPassedOverAndReported) {
  auto journal = writer();
  for (uint64_t i = 0; i < 10; ++i) append(*journal, numbered(i));
  append(*journal, synced_mark(10));
  append(*journal, numbered(11));
  file(0)[ends_[3].offset + 20] ^= std::byte{4};  // inside batch 4
  const auto replayed = replay(*volume_);
  expect_numbers(*replayed, {0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11});
  EXPECT_EQ(replayed->statistics.damaged_files, 1u);
  EXPECT_EQ(replayed->statistics.torn_tails, 0u);
  EXPECT_NE(replayed->all_problems().find("are damaged"), std::string::npos) << replayed->all_problems();
}

TEST_F(JournalTest, AHoleInTheUnsyncedTailEndsTheEpoch) {
  auto journal = writer(3, 700);
  append(*journal, numbered(0));
  append(*journal, synced_mark(1));
  for (uint64_t i = 2; i < 20; ++i) append(*journal, numbered(i));
  std::fill_n(file(ends_[6].seq).begin() + static_cast<ptrdiff_t>(ends_[6].offset) - 30, 30, std::byte{0});
  auto next = writer(4);
  append(*next, numbered(50));
  const auto replayed = replay(*volume_);
  expect_numbers(*replayed, {0, 1, 2, 3, 4, 5, 50});
  EXPECT_EQ(replayed->statistics.damaged_files, 0u) << replayed->all_problems();
  EXPECT_EQ(replayed->statistics.torn_tails, 1u);
  EXPECT_NE(replayed->all_problems().find("never synced and is left out"), std::string::npos);
}

TEST_F(JournalTest, AFileCutAtAFrameBorderIsNoticedByTheNextOne) {
  auto journal = writer(3, 700);
  for (uint64_t i = 0; i < 12; ++i) append(*journal, numbered(i));
  append(*journal, synced_mark(12));
  ASSERT_EQ(ends_[1].seq, 0u);
  file(0).resize(ends_[0].offset);
  const auto replayed = replay(*volume_);
  EXPECT_EQ(replayed->statistics.damaged_files, 1u) << replayed->all_problems();
  EXPECT_NE(replayed->all_problems().find("are lost"), std::string::npos) << replayed->all_problems();
  EXPECT_EQ(replayed->batches.back().batch.stamp.value, 12u);
}

TEST_F(JournalTest, AMissingFileIsDamage) {
  auto journal = writer(3, 700);
  for (uint64_t i = 0; i < 12; ++i) append(*journal, numbered(i));
  append(*journal, synced_mark(12));
  volume_->files().erase(journal_path("node-a", 3, 1));
  const auto replayed = replay(*volume_);
  EXPECT_EQ(replayed->statistics.damaged_files, 1u) << replayed->all_problems();
  EXPECT_NE(replayed->all_problems().find("2.log: journal files before it are missing"), std::string::npos);
  EXPECT_EQ(replayed->batches.front().batch.stamp.value, 0u);
  EXPECT_EQ(replayed->batches.back().batch.stamp.value, 12u);
}

TEST_F(JournalTest, FramesBehindADamagedHeaderAreStillRead) {
  auto journal = writer();
  append(*journal, numbered(1));
  append(*journal, synced_mark(2));
  file(0)[30] ^= std::byte{1};
  const auto replayed = replay(*volume_);
  expect_numbers(*replayed, {1, 2});
  EXPECT_EQ(replayed->statistics.damaged_files, 1u) << replayed->all_problems();
}

TEST_F(JournalTest, APositionBehindTheJournalIsReported) {
  auto journal = writer();
  append(*journal, numbered(1));
  append(*journal, numbered(2));
  file(0).resize(ends_[0].offset);
  const auto replayed = replay(*volume_, ends_[1]);
  expect_numbers(*replayed, {});
  EXPECT_EQ(replayed->statistics.damaged_files, 1u) << replayed->all_problems();
}

TEST_F(JournalTest, FilesOfOthersAreErrors) {
  auto journal = writer();
  append(*journal, numbered(1));
  FileIdentity other = test_identity(0);
  other.volume_uuid[0] ^= std::byte{1};
  const auto ignore = [](const Batch&, JournalPosition, bool) -> Status { return {}; };
  const auto foreign = replay_journals(*volume_, other, {}, ignore);
  ASSERT_FALSE(foreign);
  EXPECT_NE(foreign.error().message.find("belongs to volume"), std::string::npos) << foreign.error().message;

  volume_->put(journal_path("node-b", 3, 0), file(0));
  FileIdentity renamed = test_identity(0);
  renamed.node = "node-b";
  const auto moved = replay_journals(*volume_, renamed, {}, ignore);
  ASSERT_FALSE(moved);
  EXPECT_NE(moved.error().message.find("belongs to node 'node-a'"), std::string::npos) << moved.error().message;
}

TEST_F(JournalTest, AFileInThePlaceOfAnotherIsNotRead) {
  auto journal = writer(3, 700);
  for (uint64_t i = 0; i < 12; ++i) append(*journal, numbered(i));
  append(*journal, synced_mark(12));
  file(1) = file(2);
  const auto replayed = replay(*volume_);
  EXPECT_EQ(replayed->statistics.damaged_files, 1u) << replayed->all_problems();
  EXPECT_NE(replayed->all_problems().find("is journal file 2 of epoch 3, in the wrong place"), std::string::npos);
  for (size_t i = 1; i < replayed->batches.size(); ++i) {
    EXPECT_LT(replayed->batches[i - 1].batch.stamp, replayed->batches[i].batch.stamp);
  }
}

TEST_F(JournalTest, BatchesOverTheLimitAreRefused) {
  auto journal = writer();
  Batch big = numbered(1);
  std::get<PutRecord>(big.records[0]).object.body.inline_bytes.resize(33 * 1024 * 1024);
  EXPECT_EQ(journal->append(big).error().code, Code::kTooBig);
  append(*journal, numbered(2));
  expect_numbers(*replay(*volume_), {2});
}

TEST_F(JournalTest, ErrorsOfApplyEndTheReplay) {
  auto journal = writer();
  for (uint64_t i = 0; i < 5; ++i) append(*journal, numbered(i));
  int calls = 0;
  const auto replayed =
      replay_journals(*volume_, test_identity(0), {}, [&](const Batch&, JournalPosition, bool) -> Status {
        if (++calls == 3) return fail(Code::kCanceled, "enough");
        return {};
      });
  ASSERT_FALSE(replayed);
  EXPECT_EQ(replayed.error().code, Code::kCanceled);
  EXPECT_EQ(calls, 3);
}

TEST_F(JournalTest, BadIdentitiesAreRefused) {
  EXPECT_EQ(JournalWriter::create(volume_, test_identity(0), "boot", kFileBytes).error().code, Code::kInvalid);
  FileIdentity nameless = test_identity();
  nameless.node.clear();
  EXPECT_EQ(JournalWriter::create(volume_, nameless, "boot", kFileBytes).error().code, Code::kInvalid);
  EXPECT_EQ(JournalWriter::create(volume_, test_identity(), std::string(256, 'b'), kFileBytes).error().code,
            Code::kInvalid);
}

TEST(JournalsGoOn, WhereTheIndexEnds) {
  const auto at = [](uint32_t epoch, uint64_t seq, uint64_t offset) { return JournalPosition{.epoch = epoch, .seq = seq, .offset = offset}; };
  std::vector<JournalFileInfo> files(1);
  files[0] = {.epoch = 2, .seq = 3, .boot_id = "", .size_bytes = 900, .counting_bytes = 800};
  EXPECT_TRUE(journals_go_on_from(at(2, 3, 800), {}, files));
  EXPECT_FALSE(journals_go_on_from(at(2, 3, 801), {}, files)) << "past what counts";
  EXPECT_FALSE(journals_go_on_from(at(2, 2, 10), {}, files)) << "of a file that is gone";
  EXPECT_TRUE(journals_go_on_from({}, {}, files)) << "nothing was seen, and nothing went";
  CheckpointInfo checkpoint;
  checkpoint.header.covers = at(2, 3, 400);
  EXPECT_FALSE(journals_go_on_from({}, checkpoint, files));
  EXPECT_FALSE(journals_go_on_from(at(2, 3, 399), checkpoint, files));
  EXPECT_TRUE(journals_go_on_from(at(2, 3, 400), checkpoint, {})) << "the checkpoint is what there is";
  EXPECT_TRUE(journals_go_on_from(at(2, 3, 500), checkpoint, files));
}

TEST_F(JournalTest, WhetherJournalsThatAnIndexHasReadWereLost) {
  const auto at = [](uint32_t epoch, uint64_t seq, uint64_t offset) { return JournalPosition{.epoch = epoch, .seq = seq, .offset = offset}; };
  std::vector<JournalFileInfo> files(1);
  files[0] = {.epoch = 2, .seq = 3, .boot_id = "", .size_bytes = 900, .counting_bytes = 900};
  const auto lost = [&](JournalPosition position, const std::optional<CheckpointInfo>& checkpoint) {
    return journals_were_lost(*volume_, test_identity(), position, checkpoint, files).value();
  };
  EXPECT_TRUE(lost(at(2, 3, 901), {}));
  EXPECT_TRUE(lost(at(2, 4, 10), {}));
  EXPECT_FALSE(lost({}, {}));
  CheckpointInfo checkpoint;
  checkpoint.header.covers = at(2, 5, 400);
  EXPECT_FALSE(lost(at(2, 4, 10), checkpoint)) << "it is older";
  EXPECT_TRUE(lost(at(2, 5, 401), checkpoint));
}

TEST_F(JournalTest, AnIndexThatLiesElsewhereMayBeOfAnotherTime) {
  const auto at = [](uint32_t epoch, uint64_t seq, uint64_t offset) { return JournalPosition{.epoch = epoch, .seq = seq, .offset = offset}; };
  const auto why = [&](JournalPosition position, bool closed, std::vector<JournalFileInfo> files) {
    return why_of_another_time(*volume_, test_identity(), position, closed, {}, files).value();
  };
  const uint32_t epoch = test_identity().epoch;
  ASSERT_TRUE(volume_->make_directories(epoch_directory(test_identity().node, epoch)));
  const JournalFileInfo earlier{.epoch = epoch, .seq = 0, .boot_id = "", .size_bytes = 900}, later{.epoch = epoch, .seq = 4, .boot_id = "", .size_bytes = 900};
  EXPECT_NE(why(at(epoch + 1, 0, 10), true, {earlier}), "") << "these tell of the volume as it was before";
  EXPECT_EQ(why(at(epoch + 1, 0, 10), true, {}), "") << "it is all that there is";
  EXPECT_EQ(why(at(epoch, 3, 10), true, {earlier}), "");
  EXPECT_NE(why(at(epoch, 3, 10), true, {later}), "") << "it was closed behind the last one";
  EXPECT_EQ(why(at(epoch, 3, 10), false, {later}), "");
  EXPECT_EQ(behind_what_is_lost(at(epoch, 3, 10), std::vector{earlier, later}), at(epoch, 4, 0));
  EXPECT_EQ(behind_what_is_lost(at(epoch, 4, 10), std::vector{earlier, later}), at(epoch + 1, 0, 0));
}

TEST_F(JournalTest, ThatRecordsWereLostIsToldToLaterLives) {
  const std::string node = test_identity().node;
  ASSERT_TRUE(volume_->make_directories("nodes/" + node));
  EXPECT_EQ(epochs_with_lost_records(*volume_, node).value(), 0u);
  ASSERT_TRUE(note_lost_records(*volume_, node, 7));
  ASSERT_TRUE(note_lost_records(*volume_, node, 5));
  EXPECT_EQ(epochs_with_lost_records(*volume_, node).value(), 7u);
  ASSERT_TRUE(note_lost_records(*volume_, node, 12));
  EXPECT_EQ(epochs_with_lost_records(*volume_, node).value(), 12u);
  ASSERT_TRUE(volume_->remove_file(lost_records_path(node)));
  ASSERT_TRUE(volume_->open(lost_records_path(node), {.writable = true, .create_exclusive = true}));
  EXPECT_EQ(epochs_with_lost_records(*volume_, node).value(), kMaxEpoch) << "it says something";
  ASSERT_TRUE(forget_lost_records(*volume_, node));
  EXPECT_EQ(epochs_with_lost_records(*volume_, node).value(), 0u);
  EXPECT_TRUE(forget_lost_records(*volume_, node));
}

}  // namespace journal_test
}  // namespace kvcachefs

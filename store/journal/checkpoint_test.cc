#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "store/journal/journal.h"
#include "store/journal/journal_file.h"
#include "store/journal/memory_volume.h"
#include "store/journal/test_records.h"

namespace kvcachefs {
namespace checkpoint_test {

CheckpointHeader header_for(uint32_t epoch, uint64_t seq) { return {{epoch, seq, 500}, {77 + seq}, 1000 + seq}; }

class CheckpointTest : public ::testing::Test {
 protected:
  std::unique_ptr<CheckpointWriter> start(uint64_t seq, uint32_t epoch = 3) {
    auto made = CheckpointWriter::create(volume_, test_identity(epoch), seq, header_for(epoch, seq));
    EXPECT_TRUE(made) << made.error().message;
    return std::move(*made);
  }
  std::vector<Record> write(uint64_t seq, uint64_t count, uint32_t epoch = 3) {
    auto writer = start(seq, epoch);
    TestRandom random(seq * 1000 + epoch);
    std::vector<Record> records;
    for (uint64_t i = 0; i < count; ++i) {
      records.push_back(random_record(random));
      EXPECT_TRUE(writer->add(records.back()));
    }
    const Status finished = writer->finish();
    EXPECT_TRUE(finished) << finished.error().message;
    return records;
  }
  std::optional<CheckpointInfo> find() {
    auto found = find_checkpoint(*volume_, test_identity(0), problems_);
    EXPECT_TRUE(found) << found.error().message;
    return *found;
  }
  Result<std::vector<Record>> read(const CheckpointInfo& which) {
    std::vector<Record> records;
    KVC_TRY(read_checkpoint(*volume_, test_identity(0), which, [&](Record&& record) -> Status {
      records.push_back(std::move(record));
      return {};
    }, problems_));
    return records;
  }
  std::string path(uint64_t seq, uint32_t epoch = 3) { return checkpoint_path("node-a", epoch, seq); }
  Bytes& file(uint64_t seq, uint32_t epoch = 3) { return *volume_->files().at(path(seq, epoch)); }

  std::shared_ptr<MemoryVolume> volume_ = std::make_shared<MemoryVolume>();
  std::vector<std::string> problems_;
};

TEST_F(CheckpointTest, RecordsComeBackInOrder) {
  for (const uint64_t count : {0u, 1u, 20000u}) {
    const auto written = write(count, count);
    const auto info = find();
    ASSERT_TRUE(info);
    EXPECT_EQ(info->epoch, 3u);
    EXPECT_EQ(info->seq, count);
    EXPECT_GE(info->records, count);  // plus `about` records
    EXPECT_EQ(info->header.covers, header_for(3, count).covers);
    EXPECT_EQ(info->header.stamp, header_for(3, count).stamp);
    EXPECT_EQ(info->header.next_number, header_for(3, count).next_number);
    const auto records = read(*info);
    ASSERT_TRUE(records) << records.error().message;
    EXPECT_EQ(*records, written);
  }
  EXPECT_TRUE(problems_.empty());
  for (const auto& [name, content] : volume_->files()) EXPECT_FALSE(name.ends_with(".tmp")) << name;
}

TEST_F(CheckpointTest, NoneIsNoError) { EXPECT_FALSE(find()); }

TEST_F(CheckpointTest, TheNewestValidOneIsFound) {
  write(7, 10, 2);
  write(1, 10, 3);
  write(12, 10, 3);
  EXPECT_EQ(find()->seq, 12u);
  file(12).resize(file(12).size() - 1);
  EXPECT_EQ(find()->seq, 1u);
  ASSERT_EQ(problems_.size(), 1u);
  EXPECT_NE(problems_[0].find("nodes/node-a/3/checkpoint/12"), std::string::npos) << problems_[0];
  file(1).front() ^= std::byte{1};
  EXPECT_EQ(find()->epoch, 2u);
  file(7, 2).push_back(std::byte{0});
  EXPECT_FALSE(find());
}

TEST_F(CheckpointTest, AnUnfinishedOneLeavesNothing) {
  {
    auto writer = start(5);
    for (uint64_t i = 0; i < 50000; ++i) ASSERT_TRUE(writer->add(PutRecord{chunk_object(i)}));
    EXPECT_TRUE(volume_->files().contains(path(5) + ".tmp"));
    EXPECT_FALSE(volume_->files().contains(path(5)));
  }
  EXPECT_TRUE(volume_->files().empty());
}

TEST_F(CheckpointTest, ATempFileOfACrashIsReplaced) {
  volume_->put(path(5) + ".tmp", as_bytes("rest"));
  write(5, 10);
  EXPECT_EQ(find()->seq, 5u);
}

TEST_F(CheckpointTest, FailedWritesAreReportedAndNothingIsPublished) {
  auto writer = start(5);
  volume_->writes_until_full = 1;
  Status status;
  for (uint64_t i = 0; i < 100000 && status; ++i) status = writer->add(PutRecord{chunk_object(i)});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kNoSpace);
  EXPECT_FALSE(writer->finish());
  volume_->writes_until_full = -1;
  writer.reset();
  EXPECT_TRUE(volume_->files().empty());

  auto unsynced = start(6);
  ASSERT_TRUE(unsynced->add(SyncedRecord{}));
  volume_->sync_fails = true;
  EXPECT_FALSE(unsynced->finish());
  unsynced.reset();
  EXPECT_FALSE(find());
}

TEST_F(CheckpointTest, ATakenNumberIsRefused) {
  write(5, 1);
  EXPECT_EQ(CheckpointWriter::create(volume_, test_identity(), 5, {}).error().code, Code::kExists);
}

// As at a clean unmount: nothing was appended since, and the journal went on in a new file.
TEST_F(CheckpointTest, RemoveCoveredTakesAFileThatEndsWhereItIsCovered) {
  auto journal = JournalWriter::create(volume_, test_identity(3), "boot", 1 << 20);
  ASSERT_TRUE((*journal)->append({{1}, {chunk_name(1)}}));
  const JournalPosition inside = (*journal)->position();
  ASSERT_TRUE((*journal)->append({{2}, {chunk_name(2)}}));
  const JournalPosition end = (*journal)->position();
  write(1, 5, 3);
  auto keep = *find();
  keep.header.covers = end;
  ASSERT_TRUE(remove_covered(*volume_, test_identity(3), end, keep));
  EXPECT_TRUE(volume_->files().contains(journal_path("node-a", 3, 0))) << "frames may still come to it";
  ASSERT_TRUE((*journal)->rotate());
  ASSERT_TRUE(remove_covered(*volume_, test_identity(3), inside, keep));
  EXPECT_TRUE(volume_->files().contains(journal_path("node-a", 3, 0)));
  ASSERT_TRUE(remove_covered(*volume_, test_identity(3), end, keep));
  EXPECT_FALSE(volume_->files().contains(journal_path("node-a", 3, 0)));
  ASSERT_TRUE((*journal)->append({{3}, {chunk_name(3)}}));
  const auto replayed = replay_journals(*volume_, test_identity(3), end,
                                        [](const Batch&, JournalPosition, bool) -> Status { return {}; });
  ASSERT_TRUE(replayed);
  EXPECT_EQ(replayed->batches, 1u);
  EXPECT_TRUE(replayed->problems.empty());
}

TEST_F(CheckpointTest, RemoveCoveredLeavesWhatIsNeeded) {
  for (const uint32_t epoch : {1u, 2u, 3u}) {
    auto journal = JournalWriter::create(volume_, test_identity(epoch), "boot", 700);
    for (uint64_t i = 0; i < 30; ++i) ASSERT_TRUE((*journal)->append({{i}, {chunk_name(i)}}));
    ASSERT_GT((*journal)->position().seq, 1u);
    write(0, 5, epoch);
    write(1, 5, epoch);
  }
  volume_->put(checkpoint_path("node-a", 1, 9) + ".tmp", as_bytes("rest"));
  auto keep = *find();
  keep.header.covers = {3, 1, 0};
  EXPECT_EQ(remove_covered(*volume_, test_identity(3), {3, 2, 0}, keep).error().code, Code::kInvalid);
  const Status removed = remove_covered(*volume_, test_identity(3), {3, 1, 0}, keep);
  ASSERT_TRUE(removed) << removed.error().message;
  for (const uint32_t epoch : {1u, 2u}) {
    EXPECT_FALSE(volume_->info(journal_directory("node-a", epoch)));
    EXPECT_FALSE(volume_->info(checkpoint_directory("node-a", epoch)));
  }
  EXPECT_FALSE(volume_->files().contains(journal_path("node-a", 3, 0)));
  EXPECT_TRUE(volume_->files().contains(journal_path("node-a", 3, 1)));
  EXPECT_FALSE(volume_->files().contains(path(0)));
  EXPECT_TRUE(volume_->files().contains(path(1)));
  EXPECT_TRUE(remove_covered(*volume_, test_identity(3), {3, 1, 0}, keep)) << "nothing left to remove is fine";
}

}  // namespace checkpoint_test
}  // namespace kvcachefs

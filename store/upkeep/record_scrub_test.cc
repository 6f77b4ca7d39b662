#include "store/upkeep/record_scrub.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "store/commit/testing/commit_fixture.h"
#include "store/index/index.h"

namespace kvcachefs {
namespace record_scrub_test {

class RecordScrubTest : public CommitFixture {
 protected:
  void put_some(int count) {
    for (int i = 0; i < count; ++i) put("file-" + std::to_string(made_++));
  }
  std::string verify() {
    bytes = 0;
    auto problem = scrub.verify([] { return true; }, bytes);
    EXPECT_TRUE(problem) << problem.error().message;
    return problem.value_or("");
  }
  void write_checkpoint(uint64_t seq) {
    auto writer = CheckpointWriter::create(volume, identity, seq, {journal->position(), index.newest, next_id});
    ASSERT_TRUE(writer) << writer.error().message;
    for (const auto& [id, object] : index.objects) ASSERT_TRUE((*writer)->add(PutRecord{object}));
    ASSERT_TRUE((*writer)->finish());
    counters.checkpoints.fetch_add(1);
  }
  std::string journal_of(uint64_t seq) const { return journal_path("test", 1, seq); }
  uint64_t size_of(const std::string& path) { return volume->info(path)->size_bytes; }

  int wanted = 0;
  uint64_t bytes = 0;  // from verify()
  RecordScrub scrub{{*volume, identity, index, counters, [this] { ++wanted; }}};

 private:
  int made_ = 0;
};

TEST_F(RecordScrubTest, WhatIsWholeIsWhole) {
  EXPECT_EQ(verify(), "");
  put_some(20);
  EXPECT_EQ(verify(), "");
  EXPECT_GT(bytes, 20u * 50);
  write_checkpoint(1);
  EXPECT_EQ(verify(), "");
  put_some(3);
  ASSERT_TRUE(journal->rotate());
  put_some(3);
  EXPECT_EQ(verify(), "");
  EXPECT_GT(scrub.run([] { return true; }).bytes, 0u);
  EXPECT_EQ(wanted, 0);
}

// No synced record follows, so a start would take it for the effect of a power loss; the index knows better.
TEST_F(RecordScrubTest, AFlippedByteInAJournalIsFound) {
  put_some(20);
  ASSERT_TRUE(sim->corrupt(journal_of(0), size_of(journal_of(0)) / 2, std::byte{1}));
  EXPECT_NE(verify().find("end before what was read of them"), std::string::npos) << verify();
  EXPECT_TRUE(scrub.run([] { return true; }).all);
  EXPECT_EQ(wanted, 1);
  EXPECT_EQ(counters.errors_checksum.load(), 1u);
  write_checkpoint(1);
  EXPECT_EQ(verify(), "") << "it is mended";
}

TEST_F(RecordScrubTest, AJournalThatIsGoneIsFound) {
  put_some(3);
  ASSERT_TRUE(journal->rotate());
  put_some(3);
  ASSERT_TRUE(journal->rotate());
  put_some(3);
  ASSERT_TRUE(sim->remove_file(journal_of(1)));
  EXPECT_NE(verify(), "");
}

TEST_F(RecordScrubTest, AFlippedByteInTheCheckpointIsFound) {
  put_some(20);
  write_checkpoint(1);
  const std::string path = checkpoint_path("test", 1, 1);
  ASSERT_TRUE(sim->corrupt(path, size_of(path) / 2, std::byte{1}));
  EXPECT_NE(verify().find(path), std::string::npos) << verify();
}

// A torn record beyond the end that the index has is being written, or was never completed.
TEST_F(RecordScrubTest, ATornEndIsNoDamage) {
  put_some(5);
  const Stamp before = index.newest;
  put_some(1);
  ASSERT_TRUE(sim->corrupt(journal_of(0), size_of(journal_of(0)) - 4, std::byte{1}));
  EXPECT_NE(verify(), "");
  index.newest = before;
  EXPECT_EQ(verify(), "");
}

TEST_F(RecordScrubTest, WhatACheckpointReplacesMeanwhileIsNoDamage) {
  put_some(20);
  ASSERT_TRUE(sim->corrupt(journal_of(0), size_of(journal_of(0)) / 2, std::byte{1}));
  bool written = false;
  const auto problem = scrub.verify(
      [&] {
        if (!std::exchange(written, true)) counters.checkpoints.fetch_add(1);
        return true;
      },
      bytes);
  ASSERT_TRUE(problem);
  EXPECT_EQ(*problem, "");
}

TEST_F(RecordScrubTest, AVolumeThatDoesNotAnswerIsNoDamageAndAnEndEndsIt) {
  put_some(5);
  const RecordScrub::Read ended = scrub.run([] { return false; });
  EXPECT_FALSE(ended.all) << "another time";
  EXPECT_GT(ended.bytes, 0u);
  on_call = [](const VolumeCall& call) { return call.kind == VolumeCall::Kind::kRead ? Fault{.sys_errno = EIO} : Fault{}; };
  EXPECT_TRUE(scrub.run([] { return true; }).all) << "in a week";
  EXPECT_EQ(wanted, 0);
}

}  // namespace record_scrub_test
}  // namespace kvcachefs

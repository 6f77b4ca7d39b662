#include "store/peers/journal_tail.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "store/base/units.h"
#include "store/journal/journal_file.h"
#include "store/journal/memory_volume.h"
#include "store/journal/test_records.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {
namespace journal_tail_test {

constexpr uint64_t kFileBytes = 4 * kBlockBytes;
constexpr int64_t kSecondNs = 1'000'000'000;
using State = JournalTail::State;

Batch numbered(uint64_t number) { return {{number}, {PutRecord{chunk_object(number)}, chunk_name(number)}}; }

class JournalTailTest : public ::testing::TestWithParam<JournalForm> {
 protected:
  std::unique_ptr<JournalWriter> writer(std::shared_ptr<Volume> volume) {
    auto made = JournalWriter::create(std::move(volume), test_identity(), "boot-1", GetParam() == JournalForm::kBlocks ? kFileBytes : 500, GetParam());
    EXPECT_TRUE(made) << made.error().message;
    return std::move(*made);
  }
  JournalTail tail(Volume& volume, JournalPosition from = {3, 0, 0}) {
    return {test_identity(), from, [&volume](uint64_t seq) { return volume.open(journal_path("node-a", 3, seq), {.direct = true}); }};
  }
  State poll(JournalTail& tail, std::optional<JournalPosition> written = {}, int64_t now_ns = 0) {
    const auto polled = tail.poll(written, now_ns, [this](const Batch& batch, JournalPosition after) -> Status {
      stamps_.push_back(batch.stamp.value);
      EXPECT_LT(last_, after);
      last_ = after;
      return {};
    });
    EXPECT_TRUE(polled) << polled.error().message;
    if (!polled) return State::kDamaged;
    EXPECT_EQ(polled->why.empty(), polled->state == State::kUpToDate || polled->state == State::kMore) << polled->why;
    return polled->state;
  }
  void expect_all(uint64_t end) {
    std::vector<uint64_t> expected;
    for (uint64_t i = 0; i < end; ++i) expected.push_back(i);
    EXPECT_EQ(stamps_, expected);
  }

  std::shared_ptr<MemoryVolume> volume_ = std::make_shared<MemoryVolume>();
  Bytes& file(uint64_t seq) { return *volume_->files().at(journal_path("node-a", 3, seq)); }
  std::vector<uint64_t> stamps_;
  JournalPosition last_;
};

TEST_P(JournalTailTest, EveryBatchIsGivenOnceAsSoonAsItIsThere) {
  auto journal = writer(volume_);
  JournalTail follower = tail(*volume_);
  EXPECT_EQ(poll(follower), State::kUpToDate);
  for (uint64_t i = 0; i < 40; ++i) {
    const auto after = journal->append(numbered(i));
    ASSERT_TRUE(after);
    if (i % 3 == 0) continue;
    EXPECT_EQ(poll(follower, *after), State::kUpToDate);
    expect_all(i + 1);
    EXPECT_EQ(follower.position(), *after);
    EXPECT_EQ(poll(follower, *after), State::kUpToDate);
  }
  ASSERT_GT(follower.position().seq, 3u);
  // The same from the beginning of any other batch.
  JournalTail late = tail(*volume_, follower.position());
  ASSERT_TRUE(journal->append(numbered(40)));
  EXPECT_EQ(poll(late, journal->position()), State::kUpToDate);
  expect_all(41);
}

TEST_P(JournalTailTest, WhatIsLongerThanOneRequestIsGivenWhole) {
  auto journal = writer(volume_);
  JournalTail follower = tail(*volume_);
  for (uint64_t i = 0; i < 6; ++i) {
    Batch batch = numbered(i);
    std::get<PutRecord>(batch.records[0]).object.attributes.xattrs = {{"user.x", std::string(5'000'000, 'x')}};
    ASSERT_TRUE(journal->append(batch));
  }
  EXPECT_EQ(poll(follower, journal->position()), State::kMore);
  EXPECT_LT(stamps_.size(), 6u);
  EXPECT_EQ(poll(follower, journal->position()), State::kUpToDate);
  expect_all(6);
}

// As bytes arrive one after another: never half a batch, and no damage.
TEST_P(JournalTailTest, AFrameThatIsNotThereYetIsWaitedFor) {
  auto journal = writer(volume_);
  ASSERT_TRUE(journal->append(numbered(0)));
  const size_t before = file(0).size();
  ASSERT_TRUE(journal->append(numbered(1)));
  const Bytes whole = file(0);
  ASSERT_EQ(journal->position().seq, 0u);
  JournalTail follower = tail(*volume_);
  for (size_t bytes = before; bytes < whole.size(); bytes += 1 + (whole.size() - before) / 50) {
    file(0).resize(bytes);
    EXPECT_EQ(poll(follower, journal->position(), 0), State::kUpToDate);
    EXPECT_EQ(stamps_.size(), 1u) << bytes;
    file(0) = whole;
    std::fill(file(0).begin() + static_cast<ptrdiff_t>(bytes), file(0).end(), std::byte{0});
    if (bytes - before > 100) continue;  // its last bytes may be the zeros
    EXPECT_EQ(poll(follower, journal->position(), 0), State::kUpToDate);
    EXPECT_EQ(stamps_.size(), 1u) << bytes;
  }
  file(0) = whole;
  EXPECT_EQ(poll(follower, journal->position(), 0), State::kUpToDate);
  expect_all(2);
}

TEST_P(JournalTailTest, WhatShouldBeThereForLongIsDamage) {
  auto journal = writer(volume_);
  ASSERT_TRUE(journal->append(numbered(0)));
  const JournalPosition first = journal->position();
  ASSERT_TRUE(journal->append(numbered(1)));
  file(0)[first.offset + 20] ^= std::byte{1};
  JournalTail follower = tail(*volume_);
  EXPECT_EQ(poll(follower), State::kUpToDate) << "nobody says that there is more";
  EXPECT_EQ(poll(follower, first, 1000 * kSecondNs), State::kUpToDate);
  EXPECT_EQ(poll(follower, journal->position(), 1001 * kSecondNs), State::kUpToDate);
  EXPECT_EQ(poll(follower, journal->position(), 1002 * kSecondNs), State::kUpToDate);
  EXPECT_EQ(poll(follower, journal->position(), 1004 * kSecondNs), State::kDamaged);
  expect_all(1);
  file(0)[first.offset + 20] ^= std::byte{1};  // the damage was not permanent
  EXPECT_EQ(poll(follower, journal->position(), 1005 * kSecondNs), State::kUpToDate);
  expect_all(2);
}

// A batch that arrived although its writer got an error: it does not count, and is written to another file.
TEST_P(JournalTailTest, WhatTheWriterGaveUpIsTakenBack) {
  const auto disk = make_sim_volume();
  ASSERT_TRUE(disk->make_directories("nodes/node-a/3"));
  bool fails = false;
  const auto volume = make_fault_volume(disk, [&](const VolumeCall& call) -> Fault {
    if (call.kind == VolumeCall::Kind::kWrite && fails) return {EIO, 1'000'000, 0};  // all of it was written
    if (call.kind == VolumeCall::Kind::kTruncate) return {EIO, -1, 0};
    return {};
  });
  auto journal = writer(volume);
  ASSERT_TRUE(journal->append(numbered(0)));
  JournalTail fast = tail(*disk), slow = tail(*disk);
  EXPECT_EQ(poll(slow), State::kUpToDate);
  fails = true;
  EXPECT_FALSE(journal->append(numbered(70)));
  fails = false;
  last_ = {};
  stamps_.clear();
  EXPECT_EQ(poll(fast), State::kUpToDate);
  EXPECT_EQ(stamps_, (std::vector<uint64_t>{0, 70}));
  ASSERT_TRUE(journal->append(numbered(1)));
  EXPECT_EQ(poll(fast, journal->position()), State::kReload);
  // A reader that begins behind the first batch and knows how far the writer is goes the right way only if it had not read that far.
  last_ = {};
  stamps_.clear();
  JournalTail anew = tail(*disk, {3, journal->position().seq, 0});
  EXPECT_EQ(poll(anew, journal->position()), State::kUpToDate);
  EXPECT_EQ(stamps_, (std::vector<uint64_t>{1}));
}

TEST_P(JournalTailTest, AWriterThatLeftAFileWithoutAWordIsFollowed) {
  auto journal = writer(volume_);
  ASSERT_TRUE(journal->append(numbered(0)));
  JournalTail follower = tail(*volume_);
  EXPECT_EQ(poll(follower), State::kUpToDate);
  volume_->writes_until_full = 0;
  EXPECT_FALSE(journal->append(numbered(70)));
  volume_->writes_until_full = -1;
  ASSERT_TRUE(journal->append(numbered(1)));
  ASSERT_EQ(journal->position().seq, 1u);
  EXPECT_EQ(poll(follower), State::kUpToDate);
  EXPECT_EQ(stamps_.size(), 1u) << "nobody has told of another file";
  EXPECT_EQ(poll(follower, journal->position()), State::kUpToDate);
  expect_all(2);
}

TEST_P(JournalTailTest, AJournalThatIsGoneIsReloaded) {
  auto journal = writer(volume_);
  ASSERT_TRUE(journal->append(numbered(0)));
  volume_->files().erase(journal_path("node-a", 3, 0));
  JournalTail follower = tail(*volume_);
  EXPECT_EQ(poll(follower), State::kReload);
}

TEST_P(JournalTailTest, AnErrorOfWhoAppliesLosesNothing) {
  auto journal = writer(volume_);
  ASSERT_TRUE(journal->append(numbered(0)));
  JournalTail follower = tail(*volume_);
  const auto failed = follower.poll({}, 0, [](const Batch&, JournalPosition) -> Status { return fail(Code::kNoSpace, "full"); });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, Code::kNoSpace);
  EXPECT_EQ(poll(follower), State::kUpToDate);
  expect_all(1);
}

TEST_P(JournalTailTest, TheFileOfAnotherIsDamage) {
  auto journal = writer(volume_);
  ASSERT_TRUE(journal->append(numbered(0)));
  FileIdentity other = test_identity();
  other.node = "node-b";
  JournalTail follower(other, {3, 0, 0}, [this](uint64_t seq) { return volume_->open(journal_path("node-a", 3, seq), {}); });
  EXPECT_EQ(poll(follower), State::kDamaged);
  EXPECT_TRUE(stamps_.empty());
}

INSTANTIATE_TEST_SUITE_P(Forms, JournalTailTest, ::testing::Values(JournalForm::kPacked, JournalForm::kBlocks),
                         [](const auto& form) { return form.param == JournalForm::kBlocks ? "Blocks" : "Packed"; });

}  // namespace journal_tail_test
}  // namespace kvcachefs

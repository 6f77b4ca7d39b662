// Journals and checkpoints on a simulated disk: stopped, torn and powered off at every call, and every call failing
// once.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "store/base/units.h"
#include "store/journal/journal.h"
#include "store/journal/test_records.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {
namespace crash_test {

constexpr uint64_t kBatches = 24;
constexpr uint64_t kCheckpointAt = 12;

// The answers that a run of the scenario got.
struct Told {
  std::vector<uint64_t> attempted;  // stamps, in order
  std::vector<uint64_t> appended;   // of those: append() succeeded
  size_t synced = 0;                // that many of `appended` lie before a sync() that succeeded
  size_t covered = 0;               // that many of `attempted` lie before the checkpoint
  bool checkpointed = false;
};

Batch numbered(uint64_t number) { return {{number}, {PutRecord{chunk_object(number)}, chunk_name(number)}}; }

std::shared_ptr<SimVolume> fresh_volume() {
  auto volume = make_sim_volume();
  EXPECT_TRUE(volume->make_directories("nodes/node-a/3"));
  for (const char* directory : {"", "nodes", "nodes/node-a"}) EXPECT_TRUE(volume->sync_directory(directory));
  return volume;
}

class Scenario {
 public:
  Scenario(std::shared_ptr<Volume> volume, JournalForm form) : volume_(std::move(volume)), form_(form) {}

  Told run() {
    const uint64_t most = form_ == JournalForm::kBlocks ? 4 * kBlockBytes : 600;  // a few batches a file
    auto journal = JournalWriter::create(volume_, test_identity(), "boot", most, form_);
    if (!journal) return told_;
    journal_ = std::move(*journal);
    for (uint64_t i = 1; i <= kBatches; ++i) {
      append(numbered(i));
      if (i % 5 == 0) sync(i);
      if (i == kCheckpointAt) checkpoint();
    }
    sync(kBatches + 1);
    return told_;
  }

 private:
  void append(const Batch& batch) {
    told_.attempted.push_back(batch.stamp.value);
    if (journal_->append(batch)) told_.appended.push_back(batch.stamp.value);
  }
  // As the store does it: the record that says so follows the sync.
  void sync(uint64_t number) {
    const size_t before = told_.appended.size();
    if (!journal_->sync()) return;
    told_.synced = before;
    append({{1000 + number}, {SyncedRecord{}}});
  }
  void checkpoint() {
    const auto position = journal_->rotate();
    if (!position || !journal_->sync()) return;
    const size_t covered = told_.attempted.size();
    const CheckpointInfo info{3, 1, {*position, {kCheckpointAt}, 500}, 3};
    auto writer = CheckpointWriter::create(volume_, test_identity(), 1, info.header);
    if (!writer) return;
    told_.covered = covered;  // from here on it may be found
    for (uint64_t i = 1; i <= 3; ++i) {
      if (!(*writer)->add(PutRecord{chunk_object(i)})) return;
    }
    if (!(*writer)->finish()) return;
    told_.checkpointed = true;
    (void)remove_covered(*volume_, test_identity(), *position, info);
  }

  std::shared_ptr<Volume> volume_;
  JournalForm form_;
  std::unique_ptr<JournalWriter> journal_;
  Told told_;
};

struct Found {
  bool checkpoint = false;
  std::vector<uint64_t> stamps;
  uint64_t damaged = 0;
  std::string problems;
};

Found look(Volume& volume) {
  Found found;
  std::vector<std::string> problems;
  const auto checkpoint = find_checkpoint(volume, test_identity(0), problems);
  EXPECT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_TRUE(problems.empty()) << problems[0];  // a file with its final name is complete
  if (!checkpoint) return found;
  found.checkpoint = checkpoint->has_value();
  const auto statistics =
      replay_journals(volume, test_identity(0), found.checkpoint ? (*checkpoint)->header.covers : JournalPosition{},
                      [&](const Batch& batch, JournalPosition, bool) -> Status {
                        found.stamps.push_back(batch.stamp.value);
                        return {};
                      });
  EXPECT_TRUE(statistics) << statistics.error().message;
  if (!statistics) return found;
  found.damaged = statistics->damaged_files;
  for (const std::string& problem : statistics->problems) found.problems += problem + "\n";
  return found;
}

// The records found are those attempted, without a hole, from the checkpoint on, to `at_least` or further.
void expect_prefix(const Found& found, const Told& told, size_t at_least) {
  ASSERT_EQ(found.damaged, 0u) << found.problems;
  const size_t from = found.checkpoint ? told.covered : 0;
  ASSERT_LE(from + found.stamps.size(), told.attempted.size());
  ASSERT_GE(from + found.stamps.size(), at_least) << found.problems;
  for (size_t i = 0; i < found.stamps.size(); ++i) ASSERT_EQ(found.stamps[i], told.attempted[from + i]);
  ASSERT_TRUE(found.checkpoint || !told.checkpointed);
}

uint64_t calls_of_a_clean_run(JournalForm form) {
  auto volume = fresh_volume();
  const uint64_t before = volume->mutating_calls();
  const Told told = Scenario(volume, form).run();
  EXPECT_EQ(told.appended.size(), told.attempted.size());
  EXPECT_TRUE(told.checkpointed);
  EXPECT_GT(volume->mutating_calls() - before, 50u);
  return volume->mutating_calls();
}

class JournalCrash : public ::testing::TestWithParam<JournalForm> {};
INSTANTIATE_TEST_SUITE_P(Forms, JournalCrash, ::testing::Values(JournalForm::kPacked, JournalForm::kBlocks),
                         [](const auto& form) { return form.param == JournalForm::kBlocks ? "Blocks" : "Packed"; });

TEST_P(JournalCrash, PowerCutAtEveryCall) {
  const uint64_t calls = calls_of_a_clean_run(GetParam());
  uint64_t torn_tails = 0;
  for (uint64_t stop = fresh_volume()->mutating_calls() + 1; stop <= calls; ++stop) {
    for (const int64_t torn_bytes : {int64_t{-1}, int64_t{7}, int64_t{512}}) {
      for (uint64_t seed = 1; seed <= 4; ++seed) {
        auto volume = fresh_volume();
        volume->stop_at(stop, torn_bytes);
        const Told told = Scenario(volume, GetParam()).run();
        const auto after = volume->cut_power({stop * 16 + seed, seed % 2 ? 0.5 : 0.9, seed <= 2 ? 512u : 4096u});
        const Found found = look(*after);
        SCOPED_TRACE(testing::Message() << "stopped at call " << stop << ", torn " << torn_bytes << ", seed " << seed);
        expect_prefix(found, told, told.synced);
        if (HasFatalFailure()) return;
        torn_tails += !found.problems.empty();
      }
    }
  }
  EXPECT_GT(torn_tails, 50u) << "the power cuts tore too little to prove anything";
}

TEST_P(JournalCrash, KilledAtEveryCall) {
  const uint64_t calls = calls_of_a_clean_run(GetParam());
  for (uint64_t stop = fresh_volume()->mutating_calls() + 1; stop <= calls; ++stop) {
    for (const int64_t torn_bytes : {int64_t{-1}, int64_t{7}, int64_t{4096}}) {
      auto volume = fresh_volume();
      volume->stop_at(stop, torn_bytes);
      const Told told = Scenario(volume, GetParam()).run();
      SCOPED_TRACE(testing::Message() << "stopped at call " << stop << ", torn " << torn_bytes);
      expect_prefix(look(*volume->crash_process()), told, told.appended.size());
      if (HasFatalFailure()) return;
    }
  }
}

// The call fails, the program goes on: exactly the batches whose append succeeded are there.
TEST_P(JournalCrash, EveryCallFailingOnce) {
  const uint64_t calls = calls_of_a_clean_run(GetParam());
  for (uint64_t fails = 1; fails <= calls; ++fails) {
    for (const int sys_errno : {EIO, ENOSPC}) {
      for (const int64_t written_bytes : {int64_t{-1}, int64_t{20}, int64_t{100000}}) {
        auto disk = fresh_volume();
        std::atomic<uint64_t> count{0};
        auto volume = make_fault_volume(disk, [&](const VolumeCall& call) -> Fault {
          if (!call.mutates() || ++count != fails) return {};
          return {sys_errno, call.kind == VolumeCall::Kind::kWrite ? written_bytes : -1, 0};
        });
        const Told told = Scenario(volume, GetParam()).run();
        const Found found = look(*disk);
        SCOPED_TRACE(testing::Message() << "call " << fails << " errno " << sys_errno << " after " << written_bytes);
        ASSERT_EQ(found.damaged, 0u) << found.problems;
        std::vector<uint64_t> expected = told.appended;
        if (found.checkpoint) {  // of the batches that count, those before it are not replayed
          std::erase_if(expected, [&](uint64_t stamp) {
            return std::find(told.attempted.begin(), told.attempted.begin() + static_cast<ptrdiff_t>(told.covered),
                             stamp) != told.attempted.begin() + static_cast<ptrdiff_t>(told.covered);
          });
        }
        ASSERT_EQ(found.stamps, expected) << found.problems;
        // One failing call costs one batch, or none.
        ASSERT_GE(told.appended.size() + 1, told.attempted.size());
      }
    }
  }
}

}  // namespace crash_test
}  // namespace kvcachefs

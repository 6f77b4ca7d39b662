// A sync that fails: the kernel tells it once, and what was to be synced may be lost.
#include <algorithm>
#include <cerrno>

#include "tests/fault/promises.h"

namespace kvcachefs::testing {
namespace failed_sync_test {

class FailedSync : public Promises {
 protected:
  // The next sync of such a file fails, and what it was to write is lost; or all syncs of that file from then on.
  void fail_sync(const std::string& suffix, bool for_good = false, bool bytes_are_lost = true) {
    failures_ = 0;
    failed_.clear();
    fault_ = [=, this](const VolumeCall& call) {
      if (call.kind != VolumeCall::Kind::kSync || !ends_with(call, suffix)) return Fault{};
      if (failures_ > 0 && !(for_good && call.path == failed_)) return Fault{};
      ++failures_;
      failed_ = call.path;
      if (bytes_are_lost) static_cast<void>(rig_->disk().lose_unsynced(call.path));
      return Fault{.sys_errno = EIO};
    };
  }
  void put_renamed(const std::string& path, const std::string& bytes) {
    put("t", bytes);
    ASSERT_TRUE(rig_->rename("t", path));
  }
  // As others do it: all extents and their directories.
  void remove_extents() {
    std::string extents;
    for (const std::string& path : rig_->disk().all_files()) {
      const size_t at = path.find("/extents/");
      if (at == std::string::npos) continue;
      extents = path.substr(0, at) + "/extents";
      ASSERT_TRUE(rig_->disk().remove_file(path));
    }
    ASSERT_TRUE(rig_->disk().remove_directory(extents + "/0"));
    ASSERT_TRUE(rig_->disk().remove_directory(extents));
  }
  bool is_there(const std::string& path) {
    const auto files = rig_->disk().all_files();
    return std::find(files.begin(), files.end(), path) != files.end();
  }
  int failures_ = 0;
  std::string failed_;
};

TEST_F(FailedSync, OfJournaledBodiesMovesThem) {
  for (const bool packed : {true, false}) {
    SCOPED_TRACE(packed);
    start();
    const std::string bytes = content('a', packed ? kPackedBytes : kSoloBytes);
    put_renamed("f", bytes);
    rig_->settle();  // journaled, not synced
    fail_sync(packed ? ".pack" : ".solo");
    rig_->pass_time(kUpkeepNs);
    rig_->pass_time(kUpkeepNs);
    EXPECT_EQ(failures_, 1);
    EXPECT_GT(rig_->errors(), 0u);
    EXPECT_TRUE(rig_->fsync(open("f", false)));
    cut_power_and_mount(kNothingKept);
    expect("f", bytes);
  }
}

// Before upkeep had its turn.
TEST_F(FailedSync, IsMadeUpForByTheNextFsync) {
  start();
  put_renamed("f", content('f', kPackedBytes));
  rig_->settle();
  put_renamed("g", content('g', kPackedBytes));
  fail_sync(".pack");
  auto f = open("f", false), g = open("g", false);
  EXPECT_FALSE(rig_->fsync(g) && rig_->fsync(f)) << "who asked hears of it";
  ASSERT_EQ(failures_, 1);
  EXPECT_TRUE(rig_->fsync(f));
  EXPECT_TRUE(rig_->fsync(g));
  f.reset();
  g.reset();
  cut_power_and_mount(kNothingKept);
  expect("f", content('f', kPackedBytes));
  expect("g", content('g', kPackedBytes));
}

TEST_F(FailedSync, OfWhatIsNotInMemoryAnyMoreMakesItAbsent) {
  for (const bool packed : {true, false}) {
    SCOPED_TRACE(packed);
    start();
    put_renamed("f", content('a', packed ? kPackedBytes : kSoloBytes));
    rig_->settle();
    rig_->store().drop_caches();
    auto handle = open("f", false);
    fail_sync(packed ? ".pack" : ".solo");
    rig_->pass_time(kUpkeepNs);
    ASSERT_EQ(failures_, 1);
    EXPECT_FALSE(rig_->fsync(handle));
    handle.reset();
    put("g", content('g', kPackedBytes));
    EXPECT_TRUE(rig_->drain()) << "no concern of others";
    EXPECT_FALSE(*rig_->read("f"));
    EXPECT_EQ(rig_->store().status().objects_quarantined, 1u);
    EXPECT_EQ(rig_->store().status().staged_bytes, 0u);
    cut_power_and_mount(kNothingKept);
    EXPECT_FALSE(*rig_->read("f"));
    expect("g", content('g', kPackedBytes));
  }
}

TEST_F(FailedSync, OfFilesOfWhichTheDirectoryWasRemovedMovesWhatWasNotSynced) {
  for (const bool packed : {true, false})
    for (const bool in_memory : {true, false}) {
      SCOPED_TRACE(packed);
      SCOPED_TRACE(in_memory);
      start();
      const size_t bytes = packed ? kPackedBytes : kSoloBytes;
      put_renamed("old", content('o', bytes));
      ASSERT_TRUE(rig_->drain());
      put_renamed("f", content('f', bytes));
      rig_->settle();  // journaled, not synced
      if (!in_memory) rig_->store().drop_caches();
      remove_extents();
      put_renamed("g", content('g', bytes));
      rig_->pass_time(kUpkeepNs);
      rig_->pass_time(kUpkeepNs);
      EXPECT_TRUE(rig_->fsync(open("f", false)));
      EXPECT_TRUE(rig_->drain());
      EXPECT_EQ(rig_->store().status().state, "ok");
      kill_and_mount();
      expect("f", content('f', bytes));
      expect("g", content('g', bytes));
      EXPECT_EQ(rig_->store().status().reclaimable_bytes, 0u);
    }
}

// The kernel has the bytes yet, as written: only they are not on the medium.
TEST_F(FailedSync, OfWhatCanStillBeReadLosesNothing) {
  start();
  put_renamed("f", content('a', kSoloBytes));
  rig_->settle();
  rig_->store().drop_caches();
  fail_sync(".solo", /*for_good=*/true, /*bytes_are_lost=*/false);
  rig_->pass_time(kUpkeepNs);
  ASSERT_GT(failures_, 0);
  EXPECT_TRUE(rig_->drain());
  cut_power_and_mount(kNothingKept);
  expect("f", content('a', kSoloBytes));
}

TEST_F(FailedSync, ForGoodKeepsNothingElseBack) {
  for (const bool packed : {true, false}) {
    SCOPED_TRACE(packed);
    start();
    put_renamed("f", content('f', packed ? kPackedBytes : kSoloBytes));
    put_renamed("old", content('o', packed ? kPackedBytes : kSoloBytes));
    ASSERT_TRUE(rig_->drain());
    put_renamed("g", content('g', packed ? kPackedBytes : kSoloBytes));
    rig_->settle();
    fail_sync(packed ? ".pack" : ".solo", /*for_good=*/true);
    rig_->pass_time(kUpkeepNs);
    put_renamed("h", content('h', kPackedBytes));
    ASSERT_TRUE(rig_->unlink("old"));
    EXPECT_TRUE(rig_->drain());
    const uint64_t commits = rig_->store().status().index_commits;
    ASSERT_TRUE(rig_->unlink("f"));
    for (int i = 0; i < 3; ++i) rig_->pass_time(kUpkeepNs);
    EXPECT_EQ(failures_, 1) << "it is not tried again";
    EXPECT_GT(rig_->store().status().index_commits, commits);
    EXPECT_EQ(rig_->store().status().reclaimable_bytes, 0u);
    EXPECT_FALSE(is_there(failed_)) << "all that was in it is elsewhere, or gone";
    EXPECT_EQ(rig_->store().status().state, "ok");
    cut_power_and_mount(kNothingKept);
    EXPECT_FALSE(*rig_->read("f"));
    expect("g", content('g', packed ? kPackedBytes : kSoloBytes));
    expect("h", content('h', kPackedBytes));
  }
}

TEST_F(FailedSync, OfEverythingDoesNotWriteForEver) {
  constexpr int kBodies = 8;
  start();
  for (int i = 0; i < kBodies; ++i) put_renamed("f" + std::to_string(i), content(static_cast<char>('a' + i), kSoloBytes));
  rig_->settle();
  const uint64_t once = rig_->store().status().write_volume_bytes;
  fault_ = [&](const VolumeCall& call) {
    const bool hit = call.kind == VolumeCall::Kind::kSync && (ends_with(call, ".pack") || ends_with(call, ".solo"));
    return hit ? Fault{.sys_errno = EIO} : Fault{};
  };
  for (int i = 0; i < 40; ++i) rig_->pass_time(kUpkeepNs);
  EXPECT_FALSE(rig_->drain());
  EXPECT_LE(rig_->store().status().write_volume_bytes, 4 * once);
  fault_ = [](const VolumeCall&) { return Fault{}; };
  constexpr int64_t kLongestPauseNs = 600'000'000'000;
  for (int i = 0; i < 3; ++i) rig_->pass_time(kLongestPauseNs);
  EXPECT_TRUE(rig_->drain()) << "a body that was tried by itself went well: all follow";
  cut_power_and_mount(kNothingKept);
  for (int i = 0; i < kBodies; ++i) expect("f" + std::to_string(i), content(static_cast<char>('a' + i), kSoloBytes));
}

TEST_F(FailedSync, OnAFullVolumeMovesAllTheSame) {
  StoreOptions options = small_options(Durability::kNone);
  options.capacity_bytes = 17 * kMiB;
  options.keep_free_bytes = 1;
  rig_ = std::make_unique<Rig>(options);
  mount();
  put_renamed("f", content('f', 10 * kMiB));
  rig_->settle();
  fail_sync(".solo");
  rig_->pass_time(kUpkeepNs);
  rig_->pass_time(kUpkeepNs);
  ASSERT_EQ(failures_, 1);
  EXPECT_FALSE(is_there(failed_));
  put("g", content('g', 5 * kMiB));
  EXPECT_TRUE(rig_->drain());
  EXPECT_LE(rig_->store().status().physical_bytes, options.capacity_bytes);
  cut_power_and_mount(kNothingKept);
  expect("f", content('f', 10 * kMiB));
  expect("g", content('g', 5 * kMiB));
}

// Renamed before it is closed, as engines do: the body is journaled, and goes on being open.
TEST_F(FailedSync, OfABodyThatIsStillOpenMovesIt) {
  start(Durability::kClose);
  auto handle = rig_->create("t");
  ASSERT_TRUE(handle);
  ASSERT_TRUE(rig_->write(*handle, 0, content('f', kPackedBytes)));
  ASSERT_TRUE(rig_->rename("t", "f"));
  fail_sync(".pack");
  rig_->pass_time(kUpkeepNs);
  ASSERT_EQ(failures_, 1);
  const int64_t before = rig_->store().stat(rig_->store().lookup(kRootId, "f", {})->id)->mtime_ns;
  EXPECT_TRUE(rig_->drain());
  EXPECT_EQ(rig_->store().stat(rig_->store().lookup(kRootId, "f", {})->id)->mtime_ns, before);
  keep_open(*handle);
  cut_power_and_mount(kNothingKept);
  expect("f", content('f', kPackedBytes));
}

TEST_F(FailedSync, OfASpillFileMovesWhatItTook) {
  StoreOptions options = small_options(Durability::kNone);
  options.memory_bytes = 16 * kMiB;
  rig_ = std::make_unique<Rig>(options);
  mount();
  auto handle = rig_->create("f");
  ASSERT_TRUE(handle);
  const std::string bytes = content('f', 24 * kMiB);
  for (size_t at = 0; at < bytes.size(); at += kMiB) ASSERT_TRUE(rig_->write(*handle, at, bytes.substr(at, kMiB)));
  put("other", content('o', kPackedBytes));
  fail_sync(".solo", /*for_good=*/true, /*bytes_are_lost=*/false);
  rig_->pass_time(kUpkeepNs);
  ASSERT_EQ(failures_, 1);
  ASSERT_TRUE(rig_->flush(*handle));
  handle->reset();
  EXPECT_TRUE(rig_->drain());
  rig_->pass_time(kUpkeepNs);
  EXPECT_FALSE(is_there(failed_));
  EXPECT_EQ(rig_->store().status().staged_bytes, 0u);
  cut_power_and_mount(kNothingKept);
  expect("f", bytes);
}

// A writer has it open, with changes that may not be published yet: the journal knows the body in the old place only.
TEST_F(FailedSync, OfABodyThatCannotMoveLetsNothingBeMarkedAsSafe) {
  for (const bool closed : {false, true}) {
    SCOPED_TRACE(closed);
    start();
    put_renamed("f", content('f', kSoloBytes));
    rig_->settle();
    auto handle = open("f", true);
    ASSERT_TRUE(rig_->write(handle, 0, "new"));
    fail_sync(".solo");
    rig_->pass_time(kUpkeepNs);
    rig_->pass_time(kUpkeepNs);
    ASSERT_EQ(failures_, 1);
    EXPECT_FALSE(rig_->drain());
    put_renamed("g", content('g', kPackedBytes));
    EXPECT_TRUE(rig_->fsync(open("g", false)));
    if (closed) {
      rig_->store().drop_caches();
      EXPECT_FALSE(rig_->flush(handle) && rig_->fsync(handle)) << "a part of it is gone";
      handle.reset();
      rig_->pass_time(kUpkeepNs);
      rig_->pass_time(kUpkeepNs);
      EXPECT_TRUE(rig_->drain()) << "nobody can complete it: it is given up";
    } else {
      keep_open(handle);
    }
    cut_power_and_mount(kNothingKept);
    auto found = rig_->read("f");
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_FALSE(*found) << "absent";
    expect("g", content('g', kPackedBytes));
  }
}

// Neither eviction nor the end of a change that was refused takes what is in memory only.
TEST_F(FailedSync, OfBodiesThatCannotBeWrittenYetKeepsThemInMemory) {
  StoreOptions options = small_options(Durability::kNone);
  options.capacity_bytes = 16 * kMiB;
  options.keep_free_bytes = 1;
  rig_ = std::make_unique<Rig>(options);
  mount();
  put_renamed("f", content('f', kSoloBytes));
  rig_->settle();
  bool refuses = true;
  fail_sync(".solo");
  fault_ = [&, fail = fault_](const VolumeCall& call) {
    const bool hit = refuses && failures_ > 0 && call.kind == VolumeCall::Kind::kWrite && ends_with(call, ".solo");
    return hit ? Fault{.sys_errno = EIO} : fail(call);
  };
  rig_->pass_time(kUpkeepNs);
  ASSERT_EQ(failures_, 1);
  rig_->store().drop_caches();
  auto handle = open("f", true);
  EXPECT_FALSE(rig_->write(handle, 20 * kMiB, "x"));
  EXPECT_FALSE(rig_->flush(handle));
  handle.reset();
  refuses = false;
  rig_->pass_time(kUpkeepNs);
  EXPECT_TRUE(rig_->drain());
  cut_power_and_mount(kNothingKept);
  expect("f", content('f', kSoloBytes));
}

TEST_F(FailedSync, AtTheEndIsMadeUpFor) {
  start();
  put_renamed("f", content('f', kPackedBytes));
  rig_->settle();
  put_renamed("g", content('g', kPackedBytes));
  fail_sync(".pack");
  const Status closed = rig_->unmount();
  EXPECT_TRUE(closed) << closed.error().message;
  ASSERT_EQ(failures_, 1);
  rig_ = std::make_unique<Rig>(rig_->options(), rig_->disk().cut_power(kNothingKept));
  reboot(rig_->disk());
  mount();
  expect("f", content('f', kPackedBytes));
  expect("g", content('g', kPackedBytes));
}

}  // namespace failed_sync_test
}  // namespace kvcachefs::testing

// Volumes made by the store, damaged by hand, checked and repaired.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/base/unique_fd.h"
#include "store/check/check.h"
#include "store/check/body_check.h"
#include "store/check/recovered_index.h"
#include "store/index/index.h"
#include "store/testing/test_store.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {
namespace check_test {

namespace fs = std::filesystem;
using testing::TestStore;

constexpr size_t kPackedBytes = 300'000;
constexpr size_t kSoloBytes = 6'000'000;  // above pack_below of a local volume

class Check : public ::testing::Test {
 protected:
  Check() {
    store_.mkdir("d");
    store_.mkdir("d/e");
    for (int i = 0; i < 8; ++i) store_.write_file(packed(i), store_.payload(i, kPackedBytes));
    store_.write_file("d/solo", store_.payload(100, kSoloBytes));
    store_.drain();
  }

  static std::string packed(int i) { return "d/e/packed" + std::to_string(i); }

  CheckReport check(bool repair = false, bool remove_orphans = false) {
    auto node = open_offline_node({.volume = store_.root(), .node = {}, .index_directory = {}, .purpose = "test"}, /*goes_without=*/true);
    if (!node) {
      ADD_FAILURE() << node.error().message;
      return {};
    }
    auto report = check_node(*node, {.repair = repair, .remove_orphans = remove_orphans, .journals_only = false, .progress = nullptr});
    if (!report) {
      ADD_FAILURE() << report.error().message;
      return {};
    }
    return std::move(*report);
  }

  // Clean, with everything still there: what must hold after any repair.
  void expect_clean() {
    const CheckReport report = check();
    EXPECT_TRUE(report.findings.empty()) << report.findings.front().text;
  }

  bool says(const CheckReport& report, const std::string& what) {
    return std::ranges::any_of(report.findings,
                               [&](const Finding& finding) { return finding.text.find(what) != std::string::npos; });
  }

  std::vector<fs::path> files(const std::string& extension) {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(store_.root()))
      if (entry.path().extension() == extension) found.push_back(entry.path());
    std::ranges::sort(found);
    return found;
  }

  fs::path index() const { return fs::path(store_.root()) / "nodes/test/index"; }

  static void flip(const fs::path& path, std::streamoff at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const int byte = file.get();
    ASSERT_GE(byte, 0) << path;
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 0x10));
  }

  // Fills the blocks that have only zeros.
  static void fill_holes(const fs::path& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const std::string filling(kBlockBytes, 'x');
    for (uintmax_t at = 0; at + kBlockBytes <= fs::file_size(path); at += kBlockBytes) {
      std::string block(kBlockBytes, 0);
      file.seekg(static_cast<std::streamoff>(at));
      file.read(block.data(), static_cast<std::streamsize>(block.size()));
      if (block.find_first_not_of('\0') != std::string::npos) continue;
      file.seekp(static_cast<std::streamoff>(at));
      file.write(filling.data(), static_cast<std::streamsize>(filling.size()));
    }
  }

  TestStore store_;
};

TEST_F(Check, AnUndamagedVolumeIsClean) {
  store_.unmount();
  const CheckReport report = check();
  EXPECT_TRUE(report.findings.empty()) << report.findings.front().text;
  EXPECT_TRUE(report.notes.empty()) << report.notes.front();
  EXPECT_EQ(report.files, 9u);
  EXPECT_EQ(report.directories, 3u);
  EXPECT_EQ(report.names, 11u);
  EXPECT_EQ(report.bodies_read, 9u);
  EXPECT_EQ(report.bytes_read, 8 * kPackedBytes + kSoloBytes);
  for (const auto& entry : fs::directory_iterator(index().parent_path()))
    EXPECT_EQ(entry.path().filename().string().find(".fsck"), std::string::npos) << entry.path();
  store_.mount();
}

TEST_F(Check, ALostVolumeFileIsMadeAnew) {
  store_.unmount();
  const fs::path file = fs::path(store_.root()) / "VOLUME";
  for (const bool cut : {false, true}) {
    if (cut) fs::resize_file(file, 100);
    else fs::remove(file);
    const auto refused = open_offline_node({.volume = store_.root(), .node = {}, .index_directory = {}, .purpose = "test"});
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("fsck --repair"), std::string::npos) << refused.error().message;
    const CheckReport found = check();
    EXPECT_EQ(found.errors_left(), 1u);
    EXPECT_TRUE(says(found, cut ? "VOLUME is damaged" : "VOLUME is missing")) << found.findings.front().text;
    EXPECT_EQ(fs::exists(file), cut) << "nothing is changed without repair";
    EXPECT_EQ(check(/*repair=*/true).errors_left(), 0u);
    expect_clean();
  }
  store_.mount();
  EXPECT_EQ(store_.read_file("d/solo"), store_.payload(100, kSoloBytes));
}

TEST_F(Check, AVolumeIsCleanAfterTheDaemonDied) {
  store_.write_file("d/late", store_.payload(7, 100'000));
  store_.settle();
  store_.crash();
  store_.write_file("d/later", store_.payload(8, 100'000));
  store_.unmount();
  expect_clean();
  store_.mount();
}

// As after a power cut: what the journals had not synced is read before it is trusted, by the check as by the next
// mount.
TEST_F(Check, ABodyThatDidNotReachTheMediumIsLeftOutAfterTheHostWentDown) {
  store_.write_file("d/late", store_.payload(7, 100'000));
  store_.write_file("d/lost", store_.payload(8, 100'000));
  store_.settle();
  store_.flip_in_extents(store_.payload(8, 100'000).substr(0, 32));
  store_.die();
  auto node = open_offline_node({.volume = store_.root(), .node = {}, .index_directory = {}, .purpose = "test"});
  ASSERT_TRUE(node) << node.error().message;
  auto history = read_history(*node);
  ASSERT_TRUE(history) << history.error().message;
  BodyChecker bodies(node->volume, node->identity.node);
  for (bool host_restarted : {false, true}) {
    history->other_boot.clear();
    if (host_restarted)
      for (const JournalFileInfo& file : history->journals) history->other_boot.insert(file.epoch);
    const std::string directory = fmt::format("{}.test{}", index().string(), host_restarted);
    auto recovered = recover_index(*node, *history, directory, bodies);
    ASSERT_TRUE(recovered) << recovered.error().message;
    EXPECT_TRUE(recovered->unclean);
    EXPECT_EQ(recovered->dropped.size(), host_restarted ? 1u : 0u);
    EXPECT_EQ(recovered->index->totals().objects, host_restarted ? 10u : 11u);
  }
  node->lock.reset();
  store_.mount();
}

TEST_F(Check, AFlippedByteIsFoundNamedAndQuarantined) {
  store_.flip_in_extents(store_.payload(3, kPackedBytes).substr(270'000, 32));
  store_.unmount();
  const CheckReport found = check();
  ASSERT_EQ(found.findings.size(), 1u);
  EXPECT_EQ(found.bad_bodies, 1u);
  EXPECT_TRUE(says(found, "(/" + packed(3) + ")")) << found.findings.front().text;
  EXPECT_TRUE(says(found, ".pack at ")) << found.findings.front().text;
  EXPECT_EQ(found.errors_left(), 1u);
  EXPECT_EQ(check().bad_bodies, 1u);  // looking changes nothing

  const CheckReport repaired = check(true);
  EXPECT_EQ(repaired.findings.size(), 1u);
  EXPECT_EQ(repaired.errors_left(), 0u);
  const CheckReport after = check();
  EXPECT_TRUE(after.findings.empty()) << after.findings.front().text;
  EXPECT_EQ(after.quarantined, 1u);

  store_.mount();
  EXPECT_FALSE(store_.exists(packed(3)));
  for (int i : {0, 1, 2, 4, 5, 6, 7}) EXPECT_EQ(store_.read_file(packed(i)), store_.payload(i, kPackedBytes));
  EXPECT_EQ(store_.read_file("d/solo"), store_.payload(100, kSoloBytes));
}

TEST_F(Check, AMissingExtentIsOneErrorForEachOfItsBodies) {
  store_.unmount();
  for (const fs::path& path : files(".solo")) fs::remove(path);
  const CheckReport found = check();
  EXPECT_EQ(found.missing_extents, 1u);
  EXPECT_EQ(found.findings.size(), 1u);
  EXPECT_TRUE(says(found, "d/solo"));
  EXPECT_EQ(check(true).errors_left(), 0u);
  expect_clean();
  store_.mount();
  EXPECT_FALSE(store_.exists("d/solo"));
}

struct NoFile {
  const char* what;
  std::function<int(const char* path)> make;
};

class CheckNoFile : public Check, public ::testing::WithParamInterface<NoFile> {};

// Nothing of the bodies is there: they go into quarantine like those of a missing extent, and what is there stays as it is.
TEST_P(CheckNoFile, WhatHasTheNameOfAnExtentIsTakenForAMissingOne) {
  store_.unmount();
  for (const char* extension : {".solo", ".pack"}) {
    SCOPED_TRACE(extension);
    ASSERT_EQ(files(extension).size(), 1u);
    const fs::path place = files(extension).front();
    const size_t bodies = extension == std::string(".solo") ? 1 : 8;
    fs::rename(place, store_.root() + "/away");
    if (GetParam().make(place.c_str()) != 0) GTEST_SKIP() << "may not be made here";
    struct stat before {}, after {};
    ASSERT_EQ(::lstat(place.c_str(), &before), 0);
    const CheckReport found = check();
    EXPECT_EQ(found.bad_bodies, bodies);
    EXPECT_EQ(found.errors_left(), bodies);
    EXPECT_TRUE(says(found, place)) << found.findings.front().text;
    const CheckReport repaired = check(true);
    EXPECT_EQ(repaired.findings.size(), bodies);
    EXPECT_EQ(repaired.errors_left(), 0u) << repaired.findings.front().text;
    expect_clean();
    ASSERT_EQ(::lstat(place.c_str(), &after), 0);
    EXPECT_EQ(before.st_ino, after.st_ino);
    EXPECT_EQ(before.st_mode, after.st_mode);
    if (bodies == 1) {
      store_.mount();
      EXPECT_FALSE(store_.exists("d/solo"));
      EXPECT_EQ(store_.read_file(packed(3)), store_.payload(3, kPackedBytes));
      store_.unmount();
    }
  }
  store_.mount();
  EXPECT_FALSE(store_.exists(packed(3)));
  EXPECT_TRUE(store_.write_file("d/again", store_.payload(9, kPackedBytes)));
  store_.remount();
  EXPECT_EQ(store_.read_file("d/again"), store_.payload(9, kPackedBytes));
}

// After the host went down a mount keeps their records, for what is there may go again; so does the check.
TEST_P(CheckNoFile, OfWhichNoRecordIsLeftOut) {
  store_.write_file("d/late", store_.payload(7, kSoloBytes));
  store_.settle();
  store_.die();
  for (const fs::path& place : files(".solo")) {
    fs::remove(place);
    if (GetParam().make(place.c_str()) != 0) GTEST_SKIP() << "may not be made here";
  }
  auto node = open_offline_node({.volume = store_.root(), .node = {}, .index_directory = {}, .purpose = "test"});
  ASSERT_TRUE(node) << node.error().message;
  auto history = read_history(*node);
  ASSERT_TRUE(history) << history.error().message;
  for (const JournalFileInfo& file : history->journals) history->other_boot.insert(file.epoch);
  BodyChecker bodies(node->volume, node->identity.node);
  auto recovered = recover_index(*node, *history, index().string() + ".test", bodies);
  ASSERT_TRUE(recovered) << recovered.error().message;
  EXPECT_TRUE(recovered->dropped.empty()) << recovered->dropped.front();
  node->lock.reset();
}

INSTANTIATE_TEST_SUITE_P(
    All, CheckNoFile,
    ::testing::Values(NoFile{"Fifo", [](const char* path) { return ::mkfifo(path, 0600); }},
                      NoFile{"Socket", [](const char* path) { return ::mknod(path, S_IFSOCK | 0600, 0); }},
                      NoFile{"Device", [](const char* path) { return ::mknod(path, S_IFCHR | 0600, makedev(1, 3)); }},
                      NoFile{"Directory", [](const char* path) { return ::mkdir(path, 0700); }},
                      NoFile{"Link", [](const char* path) { return ::symlink("/etc/hostname", path); }},
                      NoFile{"LinkToNothing", [](const char* path) { return ::symlink("absent", path); }}),
    [](const auto& each) { return each.param.what; });

TEST_F(Check, ATruncatedExtentIsFound) {
  store_.unmount();
  const auto solo = files(".solo");
  ASSERT_EQ(solo.size(), 1u);
  fs::resize_file(solo.front(), kSoloBytes / 2);
  EXPECT_TRUE(says(check(), "the extent ends there"));
  store_.mount();
}

TEST_F(Check, ExtentsThatNothingNamesAreRemoved) {
  store_.unmount();
  const fs::path orphan = files(".solo").front().parent_path() / "4000.solo";
  std::ofstream(orphan) << "left over";
  const CheckReport found = check();
  EXPECT_EQ(found.orphan_extents, 1u);
  EXPECT_TRUE(says(found, "4000.solo"));
  EXPECT_TRUE(fs::exists(orphan));
  EXPECT_EQ(check(true).errors_left(), 0u);
  EXPECT_FALSE(fs::exists(orphan));
  expect_clean();
  store_.mount();
}

// The daemon died after its last record was synced, with a file begun since: the index alone tells, and the next mount removes it.
TEST_F(Check, AnExtentThatADeadDaemonHadBegunIsNoDamage) {
  store_.unmount();
  ASSERT_TRUE(fs::remove(index() / "clean"));  // as it is while a daemon has the index open
  const fs::path orphan = files(".solo").front().parent_path() / "4000.solo";
  std::ofstream(orphan) << "begun";
  const CheckReport found = check();
  EXPECT_TRUE(found.findings.empty()) << found.findings.front().text;
  EXPECT_EQ(found.orphan_extents, 1u);
  ASSERT_EQ(found.notes.size(), 1u);
  EXPECT_NE(found.notes.front().find("4000.solo"), std::string::npos) << found.notes.front();
  EXPECT_TRUE(fs::exists(orphan));
  EXPECT_EQ(check(/*repair=*/true).errors_left(), 0u);
  EXPECT_FALSE(fs::exists(orphan)) << "every record is synced: nothing is going to name it";
  expect_clean();
  store_.mount();
}

// As a daemon leaves it that dies between giving a range up and punching it: here the bytes are put back by hand.
TEST_F(Check, DeadRangesOfAPackAreToldAndGivenBack) {
  const auto pack = files(".pack").front();
  const uint64_t full = store_.allocated_bytes();
  for (int i : {0, 3, 4}) ASSERT_TRUE(store_.unlink(packed(i)));
  store_.unmount();
  const uint64_t needed = store_.allocated_bytes();
  ASSERT_LT(needed, full - 3 * (kPackedBytes - 5000));
  fs::resize_file(pack, fs::file_size(pack) + 100'000);  // a hole, not dead
  EXPECT_EQ(check().packs_with_dead_ranges, 0u);
  fill_holes(pack);
  const CheckReport found = check();
  EXPECT_TRUE(found.findings.empty());
  EXPECT_EQ(found.packs_with_dead_ranges, 1u);
  EXPECT_GT(found.dead_range_bytes, 3 * kPackedBytes);
  ASSERT_EQ(found.notes.size(), 1u);
  EXPECT_NE(found.notes.front().find("--repair gives it back"), std::string::npos) << found.notes.front();
  EXPECT_GT(store_.allocated_bytes(), needed + 3 * kPackedBytes);  // looking changes nothing
  EXPECT_EQ(check(true).errors_left(), 0u);
  EXPECT_LE(store_.allocated_bytes(), needed + 20 * kKiB);
  EXPECT_EQ(check().packs_with_dead_ranges, 0u);
  expect_clean();
  store_.mount();
  for (int i : {1, 2, 5, 6, 7}) EXPECT_EQ(store_.read_file(packed(i)), store_.payload(i, kPackedBytes));
}

TEST_F(Check, ADamagedPackHeaderIsWrittenAnew) {
  store_.unmount();
  flip(files(".pack").front(), 40);
  EXPECT_TRUE(says(check(), "its header"));
  EXPECT_EQ(check(true).errors_left(), 0u);
  expect_clean();
  store_.mount();
}

TEST_F(Check, ADamagedIndexIsFoundAndRemoved) {
  store_.unmount();
  flip(index() / "data.mdb", 3 * 4096 + 100);
  const CheckReport found = check();
  EXPECT_EQ(found.findings.size(), 1u);
  EXPECT_TRUE(says(found, index().string()));
  EXPECT_TRUE(fs::exists(index() / "data.mdb"));
  EXPECT_EQ(check(true).errors_left(), 0u);
  EXPECT_FALSE(fs::exists(index()));
  store_.mount();
  EXPECT_EQ(store_.read_file(packed(5)), store_.payload(5, kPackedBytes));
  store_.unmount();
  expect_clean();
  store_.mount();
}

// A bit of its length flipped: what is behind its end is a hole, which is not read.
TEST_F(Check, AnIndexThatWasMadeHugeTakesNoLongerToCheck) {
  store_.unmount();
  fs::resize_file(index() / "data.mdb", uint64_t{1} << 42);
  EXPECT_TRUE(says(check(), index().string())) << "it is not the file that was closed";
  EXPECT_EQ(check(true).errors_left(), 0u);
  store_.mount();
  EXPECT_EQ(store_.read_file(packed(5)), store_.payload(5, kPackedBytes));
}

// Sound rows that say something else than the journals: the index of a moment that never was.
TEST_F(Check, AnIndexThatContradictsTheJournalsIsFound) {
  store_.unmount();
  {
    Index::Found found{};
    std::string why;
    auto node = open_offline_node({.volume = store_.root(), .node = {}, .index_directory = {}, .purpose = "test"});
    ASSERT_TRUE(node);
    auto wrong = Index::open(index().string(), {node->identity.volume_uuid, "test"}, &found, &why);
    ASSERT_TRUE(wrong) << wrong.error().message;
    Batch batch;
    batch.stamp.value = (*wrong)->stamp().value + 1;
    ObjectRecord invented;
    invented.id = ObjectId::make(0, 1, 999);
    invented.attributes.mode = S_IFREG | 0644;
    batch.records.emplace_back(PutRecord{invented});
    batch.records.emplace_back(NameRecord{kRootId, "invented", invented.id});
    ASSERT_TRUE((*wrong)->apply(batch, (*wrong)->position()));
    ASSERT_TRUE((*wrong)->commit());
    ASSERT_TRUE((*wrong)->close_clean());
  }
  const CheckReport found = check();
  EXPECT_EQ(found.index_differences, 2u);
  EXPECT_TRUE(says(found, "should not be there"));
  EXPECT_EQ(check(true).errors_left(), 0u);
  store_.mount();
  EXPECT_FALSE(store_.exists("invented"));
}

TEST_F(Check, AMissingIndexIsNoError) {
  store_.unmount();
  fs::remove_all(index());
  const CheckReport report = check();
  EXPECT_TRUE(report.findings.empty());
  EXPECT_EQ(report.notes.size(), 1u);
  store_.mount();
}

TEST_F(Check, WhatDamagedJournalsLackIsKeptByTheIndex) {
  store_.unmount();
  const auto journals = files(".log");
  flip(journals.front(), static_cast<std::streamoff>(fs::file_size(journals.front()) / 2));
  const CheckReport told = check();
  EXPECT_TRUE(says(told, "the index has what was in it"));
  EXPECT_EQ(told.errors_left(), told.findings.size());
  EXPECT_EQ(told.files, 9u);
  EXPECT_EQ(told.index_differences, 0u);
  const CheckReport repaired = check(true);
  EXPECT_GE(repaired.findings.size(), 1u);
  EXPECT_EQ(repaired.errors_left(), 0u) << repaired.findings.front().text;
  expect_clean();
  fs::remove_all(index());  // what was written tells all of it
  expect_clean();
  store_.mount();
  for (int i = 0; i < 8; ++i) EXPECT_EQ(store_.read_file(packed(i)), store_.payload(i, kPackedBytes));
  EXPECT_EQ(store_.read_file("d/solo"), store_.payload(100, kSoloBytes));
  store_.write_file("d/more", store_.payload(7, 1000));
  store_.unmount();
  expect_clean();
}

struct Loss {
  const char* name;
  std::function<void(const fs::path&)> lose;
};
class CheckLostJournal : public Check, public ::testing::WithParamInterface<Loss> {};

// Of an earlier epoch: nothing in the journals themselves tells of it.
TEST_P(CheckLostJournal, IsMadeUpForByTheIndex) {
  store_.unmount();
  store_.mount();
  store_.write_file("d/later", store_.payload(9, 1000));
  store_.unmount();
  GetParam().lose(files(".log").front());
  const size_t extents = files(".pack").size() + files(".solo").size();
  EXPECT_TRUE(check().index_has_more);
  const CheckReport repaired = check(true);
  EXPECT_EQ(repaired.errors_left(), 0u) << repaired.findings.front().text;
  EXPECT_EQ(files(".pack").size() + files(".solo").size(), extents);
  fs::remove_all(index());
  expect_clean();
  store_.mount();
  for (int i = 0; i < 8; ++i) EXPECT_EQ(store_.read_file(packed(i)), store_.payload(i, kPackedBytes));
  EXPECT_EQ(store_.read_file("d/solo"), store_.payload(100, kSoloBytes));
  EXPECT_EQ(store_.read_file("d/later"), store_.payload(9, 1000));
}

INSTANTIATE_TEST_SUITE_P(
    , CheckLostJournal,
    ::testing::Values(Loss{"Missing", [](const fs::path& path) { fs::remove(path); }},
                      Loss{"Emptied", [](const fs::path& path) { fs::resize_file(path, 0); }},
                      Loss{"Truncated", [](const fs::path& path) { fs::resize_file(path, fs::file_size(path) / 2); }},
                      Loss{"EndZeroed",
                           [](const fs::path& path) {
                             const auto bytes = fs::file_size(path);
                             fs::resize_file(path, bytes / 2);
                             fs::resize_file(path, bytes);
                           }}),
    [](const ::testing::TestParamInfo<Loss>& loss) { return std::string(loss.param.name); });

// Of the last epoch, behind which the index ends: it alone has what was lost. Nothing that it names goes, whoever comes first.
class CheckLostEnd : public CheckLostJournal {
 protected:
  void lose_last() {
    store_.remount();
    if (store_.exists("d/later")) store_.unlink("d/later");
    store_.write_file("d/later", store_.payload(9, kSoloBytes));
    store_.unmount();
    GetParam().lose(last_journal());
  }
  // As a daemon that was killed after it committed the index leaves it.
  void was_not_closed() { ASSERT_TRUE(fs::remove(index() / "clean")); }
  fs::path last_journal() {
    const auto epoch = [](const fs::path& path) { return std::stoul(path.parent_path().parent_path().filename()); };
    return std::ranges::max(files(".log"), {}, epoch);
  }
  size_t extents() { return files(".pack").size() + files(".solo").size(); }
  void expect_all() {
    for (int i = 0; i < 8; ++i) EXPECT_EQ(store_.read_file(packed(i)), store_.payload(i, kPackedBytes));
    EXPECT_EQ(store_.read_file("d/solo"), store_.payload(100, kSoloBytes));
    EXPECT_EQ(store_.read_file("d/later"), store_.payload(9, kSoloBytes));
  }
};

TEST_P(CheckLostEnd, IsMadeUpForByAnIndexThatWasNotClosed) {
  for (const bool by_mount : {true, false}) {
    lose_last();
    was_not_closed();
    const size_t before = extents();
    if (!by_mount) {
      const CheckReport repaired = check(true);
      EXPECT_EQ(repaired.errors_left(), 0u) << repaired.findings.front().text;
      EXPECT_GE(repaired.findings.size(), 1u);
      expect_clean();
    }
    for (int life = 0; life < 3; ++life) {
      store_.mount();
      expect_all();
      store_.drain();
      store_.unmount();
      if (life == 0) was_not_closed();
      EXPECT_EQ(extents(), before);
    }
    fs::remove_all(index());
    expect_clean();
    store_.mount();
    expect_all();
  }
}

TEST_P(CheckLostEnd, IsMadeUpForByTheIndexAtAMount) {
  lose_last();
  const size_t before = extents();
  store_.mount();
  expect_all();
  store_.unmount();
  EXPECT_EQ(extents(), before);
  fs::remove_all(index());  // a checkpoint was written
  expect_clean();
  store_.mount();
  expect_all();
}

TEST_P(CheckLostEnd, IsMadeUpForByTheIndexInARepair) {
  lose_last();
  const size_t before = extents();
  EXPECT_TRUE(check().index_has_more);
  const CheckReport repaired = check(true);
  EXPECT_EQ(repaired.errors_left(), 0u) << repaired.findings.front().text;
  EXPECT_GE(repaired.findings.size(), 1u);
  EXPECT_EQ(extents(), before);
  expect_clean();
  fs::remove_all(index());
  expect_clean();
  store_.mount();
  expect_all();
}

// An extent is gone as well, as where the volume was put back to an earlier state.
TEST_P(CheckLostEnd, IsKeptAsideWithAnIndexThatIsNotToBeBelieved) {
  for (const bool by_mount : {true, false}) {
    store_.remount();
    store_.write_file(by_mount ? "d/solo2" : "d/solo3", store_.payload(11, kSoloBytes));  // which nothing names then
    store_.write_file("d/later", store_.payload(9, kSoloBytes));
    store_.unmount();
    GetParam().lose(last_journal());
    fs::remove(files(".solo").back());
    const size_t before = extents();
    if (!by_mount) {
      const CheckReport repaired = check(true);
      EXPECT_TRUE(repaired.index_has_more);
      EXPECT_TRUE(says(repaired, "set aside"));
    }
    store_.mount();
    store_.unmount();
    EXPECT_EQ(extents(), before) << by_mount;
    EXPECT_TRUE(fs::exists(index().string() + ".damaged/data.mdb"));
    for (int life = 0; life < 3; ++life) {  // also of lives that do not know any more what was lost
      fs::remove(index() / "clean");
      check(/*repair=*/life == 1);
      store_.mount();
      store_.drain();
      store_.unmount();
      EXPECT_EQ(extents(), before) << by_mount << life;
    }
    fs::remove(index() / "clean");
    check(true, /*remove_orphans=*/true);
    EXPECT_EQ(extents(), before - (std::string_view(GetParam().name) == "WithoutTheLastByte" ? 0 : 1)) << by_mount;  // where all but a mark is left it is named
    EXPECT_FALSE(fs::exists(index().parent_path() / "LOST"));
    expect_clean();
    fs::remove_all(index().string() + ".damaged");
    store_.mount();
  }
}

INSTANTIATE_TEST_SUITE_P(
    , CheckLostEnd,
    ::testing::Values(Loss{"Missing", [](const fs::path& path) { fs::remove(path); }},
                      Loss{"WithItsDirectory", [](const fs::path& path) { fs::remove_all(path.parent_path()); }},
                      Loss{"Emptied", [](const fs::path& path) { fs::resize_file(path, 0); }},
                      Loss{"Truncated", [](const fs::path& path) { fs::resize_file(path, fs::file_size(path) / 2); }},
                      Loss{"WithoutTheLastByte", [](const fs::path& path) { fs::resize_file(path, fs::file_size(path) - 1); }}),
    [](const ::testing::TestParamInfo<Loss>& loss) { return std::string(loss.param.name); });

// In which nothing was stored: only its checkpoint and its journal lay there, and they had taken the place of all before them.
TEST_F(Check, TheLastEpochIsGone) {
  const auto epochs = [this] {
    size_t last = 0;
    for (const auto& entry : fs::directory_iterator(index().parent_path()))
      if (std::isdigit(static_cast<unsigned char>(entry.path().filename().string()[0]))) last = std::max(last, std::stoul(entry.path().filename().string()));
    return last;
  };
  for (const bool by_mount : {true, false}) {
    store_.remount();
    store_.mkdir(by_mount ? "more" : "still more");
    store_.unmount();
    const size_t last = epochs();
    fs::remove_all(index().parent_path() / std::to_string(last));
    for (const fs::path& journal : files(".log")) fs::remove(journal);
    if (!by_mount) {
      const CheckReport repaired = check(true);
      EXPECT_EQ(repaired.errors_left(), 0u) << repaired.findings.front().text;
    }
    store_.mount();
    EXPECT_GT(epochs(), last) << "a number is taken once";
    EXPECT_TRUE(store_.exists("more"));
    EXPECT_EQ(store_.exists("still more"), !by_mount);
    for (int i = 0; i < 8; ++i) EXPECT_EQ(store_.read_file(packed(i)), store_.payload(i, kPackedBytes));
    EXPECT_EQ(store_.read_file("d/solo"), store_.payload(100, kSoloBytes));
  }
}

// More than is read at once: what is found of it first may be the lesser evil, and other bodies are told of in between.
TEST_F(Check, ABodyOfManyPiecesIsToldOfOnceWithTheWorst) {
  constexpr size_t kHugeBytes = 150'000'000;
  store_.write_file("d/huge", store_.payload(12, kHugeBytes));
  store_.unmount();
  fs::path huge;
  for (const fs::path& path : files(".solo"))
    if (fs::file_size(path) > kSoloBytes * 2) huge = path;
  ASSERT_FALSE(huge.empty());
  flip(huge, 140'000'000);
  auto node = open_offline_node({.volume = store_.root(), .node = {}, .index_directory = {}, .purpose = "test"});
  ASSERT_TRUE(node) << node.error().message;
  const std::string name = huge.filename();
  BodyChecker bodies(make_fault_volume(node->volume, [&](const VolumeCall& call) {
    return Fault{.sys_errno = call.kind == VolumeCall::Kind::kRead && call.path.ends_with(name) && call.offset < 4'000'000 ? EIO : 0};
  }), node->identity.node);
  NodeHistory history = *read_history(*node);
  BodyChecker plain(node->volume, node->identity.node);
  auto recovered = recover_index(*node, history, store_.root() + "/scratch", plain);
  ASSERT_TRUE(recovered) << recovered.error().message;
  std::vector<BadBody> bad;
  bodies.start([&](BadBody found) { bad.push_back(std::move(found)); });
  ASSERT_TRUE(recovered->index->scan_objects([&](ObjectRecord&& row) {
    if (row.body.size_bytes != kHugeBytes) return true;
    EXPECT_TRUE(bodies.add(row));
    row.id = ObjectId::make(0, 1, 900'000);
    row.body.place.extent.seq = 900'000;  // which is not there
    EXPECT_TRUE(bodies.add(row));
    return true;
  }));
  bodies.finish();
  recovered->index.reset();
  fs::remove_all(store_.root() + "/scratch");
  ASSERT_EQ(bad.size(), 2u);
  EXPECT_NE(bad[0].object, bad[1].object);
  for (const BadBody& body : bad) EXPECT_TRUE(body.wrong) << body.why;
  node->lock.reset();
  store_.mount();
}

TEST_F(Check, WhatAKilledRunLeftIsRemovedByTheNextOne) {
  store_.unmount();
  const std::string old = index().string() + ".fsck-Ab12xY", other = index().string() + ".fsck-notes1-mine", link = index().string() + ".fsck-linked";
  fs::create_directories(old + "/recovered");
  std::ofstream(old + "/recovered/data.mdb") << "left";
  fs::create_directories(other);
  fs::create_directory_symlink(other, link);
  expect_clean();
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(other));
  EXPECT_TRUE(fs::is_symlink(link));
  fs::remove(link);
  fs::remove_all(other);
  store_.mount();
}

// Nothing can be made in the directory of the node, where a repair begins an epoch.
TEST_F(Check, WhatCouldNotBeRepairedIsTold) {
  store_.unmount();
  flip(files(".log").front(), static_cast<std::streamoff>(fs::file_size(files(".log").front()) / 2));
  flip(files(".solo").front(), 5'000'000);
  const std::string node = store_.root() + "/nodes/test";
  const auto set_immutable = [&](bool immutable) {
    const UniqueFd directory(open(node.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    int flags = 0;
    if (ioctl(directory.get(), FS_IOC_GETFLAGS, &flags) != 0) return false;
    flags = immutable ? flags | FS_IMMUTABLE_FL : flags & ~FS_IMMUTABLE_FL;
    return ioctl(directory.get(), FS_IOC_SETFLAGS, &flags) == 0;
  };
  if (!set_immutable(true)) GTEST_SKIP() << "needs a file system that has it, and root";
  const CheckReport report = check(true);
  EXPECT_TRUE(set_immutable(false));
  EXPECT_TRUE(says(report, "could not be repaired"));
  EXPECT_TRUE(says(report, "(/d/solo)"));
  EXPECT_TRUE(says(report, "the index has what was in it"));
  EXPECT_FALSE(says(report, "now")) << "nothing was done";
  EXPECT_EQ(report.errors_left(), report.findings.size());
  EXPECT_EQ(check(true).errors_left(), 0u);
}

TEST_F(Check, BadBodiesBesideDamagedJournalsGoIntoQuarantine) {
  store_.unmount();
  const auto journals = files(".log");
  flip(journals.front(), static_cast<std::streamoff>(fs::file_size(journals.front()) / 2));
  flip(files(".solo").front(), 5'000'000);
  const CheckReport repaired = check(true);
  EXPECT_EQ(repaired.errors_left(), 0u) << repaired.findings.front().text;
  expect_clean();
  EXPECT_EQ(check().quarantined, 1u);
}

TEST_F(Check, ADamagedJournalIsToldAndNoExtentIsRemoved) {
  store_.unmount();
  fs::remove_all(index());
  const auto journals = files(".log");
  ASSERT_FALSE(journals.empty());
  flip(journals.front(), static_cast<std::streamoff>(fs::file_size(journals.front()) / 2));
  const size_t extents = files(".pack").size() + files(".solo").size();
  const CheckReport report = check(true);
  EXPECT_TRUE(says(report, "journal "));
  EXPECT_GE(report.errors_left(), 1u);
  EXPECT_EQ(files(".pack").size() + files(".solo").size(), extents);
  store_.mount();
}

TEST_F(Check, AMountedVolumeIsNotChecked) {
  auto node = open_offline_node({.volume = store_.root(), .node = {}, .index_directory = {}, .purpose = "test"});
  ASSERT_FALSE(node);
  EXPECT_EQ(node.error().code, Code::kBusy);
  EXPECT_NE(node.error().message.find("test store"), std::string::npos) << node.error().message;
}

TEST_F(Check, WhatIsNoVolumeIsNotTouched) {
  const std::string plain = store_.root() + "/nodes";
  auto node = open_offline_node({.volume = plain, .node = {}, .index_directory = {}, .purpose = "test"});
  ASSERT_FALSE(node);
  EXPECT_EQ(node.error().code, Code::kNotFound);
  EXPECT_FALSE(fs::exists(plain + "/nodes"));
}

}  // namespace check_test
}  // namespace kvcachefs

// One repair is enough: what it says that it left is what the next check finds, and a mount serves what it would have served without it.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/check/check.h"
#include "store/testing/test_store.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {
namespace repair_test {

namespace fs = std::filesystem;
using testing::TestStore;

class Repair : public ::testing::Test {
 protected:
  ~Repair() override {
    if (store_.operator->() == nullptr) store_.mount();
    std::error_code ignored;
    for (const char* state : {".closed", ".died"}) fs::remove_all(store_.root() + state, ignored);
  }

  CheckReport check(bool repair = false, bool remove_orphans = false, bool without_index = false) {
    auto node = open_offline_node({.volume = store_.root(), .node = "test", .index_directory = {}, .purpose = "test"}, /*goes_without=*/true);
    if (!node) {
      ADD_FAILURE() << node.error().message;
      return {};
    }
    auto report = check_node(*node, {.repair = repair, .remove_orphans = remove_orphans, .without_index = without_index, .journals_only = false, .progress = nullptr});
    if (!report) {
      ADD_FAILURE() << report.error().message;
      return {};
    }
    return std::move(*report);
  }
  // With the statement that there is no index elsewhere.
  CheckReport repair_without_index() { return check(true, false, /*without_index=*/true); }
  void expect_clean() {
    const CheckReport report = check();
    EXPECT_TRUE(report.findings.empty()) << report.findings.front().text;
  }

  fs::path node() const { return store_.root() + "/nodes/test"; }
  fs::path index() const { return node() / "index"; }
  // Below `<epoch>/<kind>`, in the order of the epochs.
  std::vector<fs::path> files(const std::string& kind) const {
    std::map<unsigned long, std::vector<fs::path>> by_epoch;
    for (const auto& epoch : fs::directory_iterator(node())) {
      std::error_code none;
      if (std::isdigit(static_cast<unsigned char>(epoch.path().filename().string()[0])) == 0) continue;
      for (const auto& file : fs::directory_iterator(epoch.path() / kind, none)) by_epoch[std::stoul(epoch.path().filename())].push_back(file.path());
    }
    std::vector<fs::path> found;
    for (auto& [epoch, paths] : by_epoch) {
      std::ranges::sort(paths);
      found.insert(found.end(), paths.begin(), paths.end());
    }
    return found;
  }

  static void overwrite(const fs::path& path, double where, size_t bytes, int seed) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(static_cast<double>(fs::file_size(path)) * where));
    const std::string rot = TestStore::payload(seed, bytes);
    file.write(rot.data(), static_cast<std::streamsize>(rot.size()));
  }

  // `count` files, some removed and some renamed; each is in the journal alone until the index is committed.
  void work(const std::string& directory, int count) {
    store_.mkdir(directory);
    for (int i = 0; i < count; ++i) {
      store_.write_file(fmt::format("{}/{}", directory, i), store_.payload(++seed_, i % 4 == 0 ? 20'000 : 900));
      store_.drain();  // a batch for each
    }
    store_.unlink(directory + "/1");
    store_.rename(directory + "/2", directory + "/moved");
    store_.drain();
  }
  // The index was committed in between, and the daemon died.
  void make_died() {
    work("a", 6);
    store_.remount();
    work("b", 6);
    store_.die();
  }

  // Copies of the volume, as it was left.
  void save(const char* state) {
    fs::remove(node() / "RESERVE");
    fs::copy(store_.root(), store_.root() + state, fs::copy_options::recursive);
  }
  void restore(const char* state) {
    for (const auto& entry : fs::directory_iterator(store_.root())) fs::remove_all(entry.path());
    fs::copy(store_.root() + state, store_.root(), fs::copy_options::recursive);
  }

  TestStore store_;
  int seed_ = 0;
};

TEST_F(Repair, AnIndexThatIsOlderThanTheCheckpointIsRemoved) {
  make_died();
  overwrite(files("journal").front(), 0.4, 3, 1);  // the index has that part, and not what came later
  const CheckReport repaired = check(true);
  EXPECT_GE(repaired.findings.size(), 1u);
  EXPECT_EQ(repaired.errors_left(), 0u) << repaired.findings.front().text;
  expect_clean();
  store_.mount();
  EXPECT_EQ(store_.contents().size(), 12u);
}

TEST_F(Repair, OneIsEnoughWhereRecordsAreLost) {
  make_died();
  fs::remove_all(index());
  overwrite(files("journal").front(), 0.4, 3, 1);
  EXPECT_EQ(check().errors_of_lost(), 0u) << "nothing is settled yet";
  const CheckReport repaired = repair_without_index();
  EXPECT_GE(repaired.errors_of_lost(), 1u);
  EXPECT_EQ(repaired.errors_left(), repaired.errors_of_lost()) << repaired.findings.front().text;
  expect_clean();
  EXPECT_TRUE(fs::exists(node() / "LOST"));
  store_.mount();
  store_.unmount();
  expect_clean();
}

// No record is left in it, so none tells where it ends.
TEST_F(Repair, OneIsEnoughForTheLastJournal) {
  make_died();
  for (const double where : {0.0, 0.05}) {
    overwrite(files("journal").back(), where, 64, 2);
    EXPECT_GE(check(true).findings.size(), 1u);
    expect_clean();
    store_.mount();
    store_.unmount();
    expect_clean();
  }
}

TEST_F(Repair, ADamagedIndexStaysBesideDamagedJournals) {
  make_died();
  overwrite(files("journal").front(), 0.4, 3, 1);
  overwrite(index() / "data.mdb", 0.3, 8192, 2);
  EXPECT_GE(check(true).errors_of_lost(), 1u);
  EXPECT_TRUE(fs::exists(index().string() + ".damaged/data.mdb")) << "where a mount puts it: it may have what is lost";
  expect_clean();
}

// A repair that is killed before its checkpoint is whole has changed nothing that it needs.
TEST_F(Repair, ADamagedIndexIsSetAsideBeforeTheJournalsGo) {
  make_died();
  overwrite(files("journal").front(), 0.4, 3, 1);
  overwrite(index() / "data.mdb", 0.3, 8192, 2);
  {
    auto node = open_offline_node({.volume = store_.root(), .node = "test", .index_directory = {}, .purpose = "test"}, /*goes_without=*/true);
    ASSERT_TRUE(node) << node.error().message;
    bool checkpoint_begun = false;
    node->volume = make_fault_volume(node->volume, [&](const VolumeCall& call) {
      checkpoint_begun |= call.kind == VolumeCall::Kind::kCreate && call.path.contains("/checkpoint/");
      return Fault{.sys_errno = checkpoint_begun && call.mutates() ? EIO : 0};
    });
    const auto report = check_node(*node, {.repair = true, .progress = nullptr});
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_TRUE(checkpoint_begun);
    EXPECT_EQ(report->errors_of_lost(), 0u);
  }
  EXPECT_TRUE(fs::exists(index().string() + ".damaged/data.mdb"));
  store_.mount();
  EXPECT_TRUE(fs::exists(index().string() + ".damaged/data.mdb"));
}

// A mount has its index elsewhere (`index=`, or the volume is on a network and it runs on another host).
class IndexElsewhere : public Repair {
 protected:
  IndexElsewhere() {
    make_died();
    fs::rename(index(), elsewhere());
    overwrite(files("journal").front(), 0.4, 3, 1);
  }
  ~IndexElsewhere() override { fs::remove_all(elsewhere()); }
  fs::path elsewhere() const { return store_.root() + ".index"; }
  void mount_with_it() {
    fs::rename(elsewhere(), index());
    store_.mount();
  }
  static bool says(const CheckReport& report, const std::string& text) {
    return std::ranges::any_of(report.findings, [&](const Finding& finding) { return finding.text.contains(text); });
  }
};

TEST_F(IndexElsewhere, RepairLeavesJournalsAloneThatItMayComplete) {
  const fs::path body = files("extents").front();
  fs::rename(body, body.string() + ".away");  // a record that was lost may have removed it
  const CheckReport repaired = check(true);
  EXPECT_GE(repaired.errors_left(), 2u);
  EXPECT_EQ(repaired.errors_of_lost(), 0u);
  EXPECT_TRUE(std::ranges::none_of(repaired.findings, &Finding::repaired));
  EXPECT_TRUE(says(repaired, "--index"));
  EXPECT_TRUE(says(repaired, "--without-index"));
  EXPECT_TRUE(files("checkpoint").empty());
  EXPECT_FALSE(fs::exists(node() / "LOST")) << "nothing that shows the loss has changed";
  fs::rename(body.string() + ".away", body);
  mount_with_it();
  EXPECT_EQ(store_.contents().size(), 12u);
  store_.unmount();
  expect_clean();
}

TEST_F(IndexElsewhere, IsKeptByTheMountThatFindsItOlderThanTheRepair) {
  EXPECT_GE(repair_without_index().errors_of_lost(), 1u);
  mount_with_it();
  EXPECT_LT(store_.contents().size(), 12u);
  EXPECT_TRUE(fs::exists(index().string() + ".damaged/data.mdb"));
}

// What lies in the default place is an index that the last mount did not use, for instance because `index=` was given later.
class StaleIndex : public IndexElsewhere {
 protected:
  StaleIndex() { fs::rename(elsewhere(), index()); }  // the volume of the base is not used
  ~StaleIndex() override { fs::remove_all(older()); }
  fs::path older() const { return store_.root() + ".older"; }
  void make(const char* of) {
    fs::remove_all(node());
    store_.mount();
    work("a", 6);
    store_.unmount();
    fs::copy(index(), older());
    store_.mount();
    work("b", 6);
    store_.unmount();
    fs::rename(index(), elsewhere());
    if (std::string(of) == "another volume") {
      TestStore another;
      another.write_file("x", "y");
      another.unmount();
      fs::copy(another.root() + "/nodes/test/index", index());
      another.mount();
    } else {
      fs::rename(older(), index());
    }
    overwrite(files("journal").back(), 0.4, 3, 1);
  }
  void expect_left_alone() {
    const CheckReport repaired = check(true);
    EXPECT_GE(repaired.errors_left(), 1u);
    EXPECT_EQ(repaired.errors_of_lost(), 0u);
    EXPECT_TRUE(std::ranges::none_of(repaired.findings, &Finding::repaired));
    EXPECT_TRUE(says(repaired, "--index"));
    EXPECT_TRUE(files("checkpoint").empty());
    EXPECT_FALSE(fs::exists(node() / "LOST"));
    EXPECT_TRUE(fs::exists(index() / "data.mdb"));
    fs::remove_all(index());
    mount_with_it();
    EXPECT_EQ(store_.contents().size(), 12u);
  }
};

TEST_F(StaleIndex, OfAnEarlierLifeIsNotThatOfTheMount) {
  make("an earlier life");
  expect_left_alone();
}

TEST_F(StaleIndex, OfAnotherVolumeIsNotThatOfTheMount) {
  make("another volume");
  expect_left_alone();
}

TEST_F(StaleIndex, IsGoneByIfItIsStatedThatThereIsNoOther) {
  make("an earlier life");
  EXPECT_GE(repair_without_index().errors_of_lost(), 1u);
  expect_clean();
}

TEST_F(Repair, OfBadBodiesDoesNotMakeTheIndexStale) {
  work("a", 6);
  const std::string big = store_.payload(77, 50'000);
  store_.write_file("big", big);
  store_.drain();
  store_.unmount();
  store_.flip_in_extents(big.substr(1000, 64));
  EXPECT_EQ(check(true).errors_left(), 0u);
  overwrite(files("journal").front(), 0.4, 3, 1);
  const CheckReport repaired = check(true);
  EXPECT_GE(repaired.findings.size(), 1u);
  EXPECT_EQ(repaired.errors_left(), 0u) << repaired.findings.front().text;
  for (const std::string& note : repaired.notes) EXPECT_FALSE(note.contains("lies elsewhere")) << note;
}

// The daemon had begun a file that no record names; only the index tells that it died.
TEST_F(Repair, WhatTheDeadDaemonHadBegunGoesWithTheIndex) {
  make_died();
  overwrite(files("journal").front(), 0.4, 3, 1);
  const fs::path orphan = files("extents").back() / "4000.solo";
  std::ofstream(orphan) << "begun";
  EXPECT_EQ(check(true).errors_left(), 0u);
  expect_clean();
  EXPECT_FALSE(fs::exists(orphan));
}

// Other nodes may have read what is lost: only a mount takes it back from them.
TEST_F(Repair, WhatOthersMayHaveReadIsLeftToAMount) {
  make_died();
  fs::create_directories(store_.root() + "/nodes/other");
  fs::remove_all(index());
  overwrite(files("journal").front(), 0.4, 3, 1);
  const CheckReport repaired = check(true);
  ASSERT_GE(repaired.errors_left(), 1u);
  EXPECT_EQ(repaired.errors_of_lost(), 0u);
  EXPECT_TRUE(std::ranges::any_of(repaired.findings, [](const Finding& finding) { return finding.text.contains("mount the node"); }));
  store_.mount();
  store_.unmount();
  expect_clean();
  fs::remove_all(store_.root() + "/nodes/other");
}

class RepairOfAny : public Repair {
 protected:
  RepairOfAny() {
    work("first", 8);
    store_.unmount();
    overwrite(files("journal").front(), 0.4, 3, 1);
    EXPECT_EQ(check(true).errors_left(), 0u);
    EXPECT_EQ(files("checkpoint").size(), 1u);  // made by the repair
    store_.mount();
    work("second", 6);
    store_.remount();
    work("third", 6);
    store_.unmount();
    save(".closed");
    store_.mount();
    work("fourth", 4);
    store_.die();
    save(".died");
  }

  // Without those that cannot be read: the record of a removal may be lost, and the bytes were given back.
  std::map<std::string, std::string> served() {
    std::map<std::string, std::string> found;
    for (const char* directory : {"first", "second", "third", "fourth"})
      for (const char* name : {"0", "1", "2", "3", "4", "5", "6", "7", "moved"}) {
        const std::string path = fmt::format("{}/{}", directory, name);
        if (store_.exists(path) && store_.try_read_file(path) == Code::kNoData) found.emplace(path, store_.read_file(path));
      }
    return found;
  }

  // Returns what was done.
  std::string damage(std::mt19937& random) {
    const auto below = [&](size_t end) { return static_cast<size_t>(random() % end); };
    const auto rot = [&](const fs::path& path) {
      const double where = static_cast<double>(random() % 1000) / 1000;
      const size_t bytes = size_t{1} << below(7);
      overwrite(path, where, bytes, static_cast<int>(random() % 1000));
      return fmt::format(" {} bytes of {} at {};", bytes, fs::relative(path, node()).string(), where);
    };
    std::string done;
    if (below(4) != 0)
      for (size_t i = 1 + below(2); i > 0; --i) {
        const auto journals = files("journal");
        done += rot(journals[below(journals.size())]);
      }
    if (below(4) == 0) done += rot(files("checkpoint").front());
    const size_t index_is = below(3);
    if (index_is == 0) done += rot(index() / "data.mdb");
    if (index_is == 1) done += fmt::format(" no index ({});", fs::remove_all(index()));
    return done;
  }
};

TEST_F(RepairOfAny, IsTruthfulAndCostsNothing) {
  constexpr int kRounds = 12;
  for (int round = 0; round < kRounds; ++round) {
    std::mt19937 random(static_cast<unsigned>(round));
    const char* const state = random() % 2 == 0 ? ".closed" : ".died";
    restore(state);
    const std::mt19937 as_it_was = random;
    const std::string done = damage(random);
    SCOPED_TRACE(fmt::format("round {}{}:{}", round, state, done));
    store_.mount();
    const auto before = served();
    store_.unmount();

    restore(state);
    random = as_it_was;
    damage(random);
    const fs::path volume_file = store_.root() + "/VOLUME";
    if (random() % 4 == 0) fs::remove(volume_file);
    else if (random() % 4 == 0) overwrite(volume_file, 0.01, 3, round);
    const CheckReport repaired = repair_without_index();
    for (const Finding& finding : check().findings) {
      const auto same = [&](const Finding& told) { return told.text == finding.text && !told.repaired && !told.lost; };
      EXPECT_TRUE(std::ranges::any_of(repaired.findings, same)) << "not told by the repair: " << finding.text;
    }
    EXPECT_EQ(repaired.errors_left(), repaired.errors_of_lost()) << repaired.findings.front().text;
    store_.mount();
    const auto after = served();
    for (const auto& [path, content] : before) {
      const auto found = after.find(path);
      if (found == after.end()) ADD_FAILURE() << path << " is gone";
      else EXPECT_TRUE(found->second == content) << path;
    }
    store_.unmount();
    expect_clean();
    if (HasFailure()) break;
  }
  store_.mount();
}

}  // namespace repair_test
}  // namespace kvcachefs

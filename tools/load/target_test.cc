#include "tools/load/target.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "store/base/units.h"
#include "tools/load/test_directory.h"
#include "tools/load/test_mount.h"

namespace kvcachefs {
namespace target_test {

Result<std::vector<Target>> open_dirs(std::vector<std::string> dirs) {
  return open_targets({.dirs = std::move(dirs), .nodes = {}}, "bench");
}

Result<std::vector<Target>> open_nodes(std::vector<std::string> nodes) {
  return open_targets({.dirs = {}, .nodes = {std::move(nodes)}}, "bench");
}

TEST(Target, LeavesTheDirectoryAsItWas) {
  const TestDirectory directory;
  {
    auto targets = open_targets({.dirs = {directory.path()}, .nodes = {}}, "bench");
    ASSERT_TRUE(targets);
    const auto made = targets->at(0).make_dirs("a");
    ASSERT_TRUE(made);
    ASSERT_EQ(made->size(), 1u);
    std::ofstream(made->front() + "file") << "x";
    EXPECT_FALSE(directory.empty());
  }
  EXPECT_TRUE(directory.empty());
}

TEST(Target, WhatAKilledRunOfTheSameNumberLeftIsNoHindrance) {
  const TestDirectory directory;
  const auto left = Target::open({directory.path()}, 0, "bench");
  ASSERT_TRUE(left);
  EXPECT_TRUE(Target::open({directory.path()}, 0, "bench"));
}

TEST(Target, RefusesWhatIsNoDirectoryOrNamedTwice) {
  const TestDirectory directory;
  const std::string file = directory.path() + "/file";
  std::ofstream(file) << "x";
  EXPECT_EQ(open_dirs({file}).error().code, Code::kNotDirectory);
  const auto missing = open_dirs({directory.path() + "/none"});
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("/none"), std::string::npos);
  EXPECT_FALSE(open_dirs({}));
  EXPECT_FALSE(open_dirs({directory.path(), directory.path() + "/."}));
}

TEST(Target, ReadOnlyFileSystemIsACleanError) {
  const auto opened = open_dirs({"/proc"});  // takes no new directories, from root either
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().message.find("/proc"), std::string::npos) << opened.error().message;
}

TEST(TargetNodes, HaveADirectoryOfOneNameEach) {
  const TestDirectory a, b;
  {
    auto targets = open_nodes({a.path(), b.path()});
    ASSERT_TRUE(targets) << targets.error().message;
    ASSERT_EQ(targets->size(), 1u);
    EXPECT_EQ(targets->at(0).name(), a.path() + "," + b.path());
    EXPECT_FALSE(targets->at(0).shared_volume_note()) << "not known of plain directories";
    const auto made = targets->at(0).make_dirs("x");
    ASSERT_TRUE(made);
    ASSERT_EQ(made->size(), 2u);
    EXPECT_EQ(made->at(0).substr(a.path().size()), made->at(1).substr(b.path().size()));
    for (const std::string& path : *made) std::ofstream(path + "file") << "x";
    EXPECT_TRUE(targets->at(0).remove_dirs(*made));
    EXPECT_FALSE(std::filesystem::exists(made->at(0)) || std::filesystem::exists(made->at(1)));
    EXPECT_FALSE(a.empty() || b.empty());
  }
  EXPECT_TRUE(a.empty() && b.empty());
}

TEST(TargetNodes, OneThatIsMissingIsNamedAndNothingIsLeftBehind) {
  const TestDirectory a, b;
  const auto missing = open_nodes({a.path(), b.path() + "/none"});
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("--nodes " + a.path() + "," + b.path() + "/none: " + b.path() + "/none: "),
            std::string::npos)
      << missing.error().message;
  const std::string file = b.path() + "/file";
  std::ofstream(file) << "x";
  EXPECT_EQ(open_nodes({a.path(), file}).error().code, Code::kNotDirectory);
  EXPECT_FALSE(open_nodes({a.path(), "/proc"})) << "takes no new directories, from root either";
  EXPECT_TRUE(a.empty());
}

TEST(TargetNodes, TwoOfOneDirectoryAreRefused) {
  const TestDirectory a;
  const auto twice = open_nodes({a.path(), a.path() + "/."});
  ASSERT_FALSE(twice);
  EXPECT_NE(twice.error().message.find("named twice"), std::string::npos) << twice.error().message;
  EXPECT_TRUE(a.empty());
}

TEST(TargetNodes, TwoOfOneMountAreRefusedAndOneBesideAPlainDirectory) {
  if (!TestMount::permitted()) GTEST_SKIP() << "needs root (a mount)";
  const TestMount mount("ramfs");
  mount.write_status(R"({"pid": 1, "volume": {"uuid": "u"}})");
  const std::string a = mount.path() + "/a", b = mount.path() + "/b";
  std::filesystem::create_directory(a);
  std::filesystem::create_directory(b);
  const auto one_mount = open_nodes({a, b});
  ASSERT_FALSE(one_mount);
  EXPECT_NE(one_mount.error().message.find("are on one mount, " + mount.path()), std::string::npos)
      << one_mount.error().message;
  EXPECT_NE(one_mount.error().message.find("-o node="), std::string::npos);
  const TestDirectory plain;
  const auto mixed = open_nodes({plain.path(), a});
  ASSERT_FALSE(mixed);
  EXPECT_NE(mixed.error().message.find(plain.path() + " is on none"), std::string::npos) << mixed.error().message;
}

TEST(TargetNodes, SayWhetherTheyShareAVolume) {
  if (!TestMount::permitted()) GTEST_SKIP() << "needs root (a mount)";
  const TestMount a("ramfs"), b("ramfs"), c("ramfs");
  a.write_status(R"({"pid": 1, "volume": {"uuid": "u"}})");
  b.write_status(R"({"pid": 2, "volume": {"uuid": "u"}})");
  c.write_status(R"({"pid": 3, "volume": {"uuid": "v"}})");
  const auto note = [](std::vector<std::string> nodes) {
    // Not by Target's end: a ramfs cannot be drained.
    const auto target = Target::open(nodes, 0, "bench");
    return target ? target->shared_volume_note().value_or("none") : target.error().message;
  };
  EXPECT_TRUE(note({a.path(), b.path()}).ends_with(": mounts of one volume"));
  EXPECT_TRUE(note({a.path(), c.path()}).ends_with(": mounts of a volume each"));
  EXPECT_TRUE(note({a.path(), b.path(), c.path()}).ends_with(": mounts of 2 volumes"));
}

TEST(ParseNodes, SplitsListsAndRefusesWhatCannotBeCompared) {
  const auto lists = parse_nodes({"/a,/b", "c,d"});
  ASSERT_TRUE(lists);
  EXPECT_EQ(*lists, (std::vector<std::vector<std::string>>{{"/a", "/b"}, {"c", "d"}}));
  EXPECT_TRUE(parse_nodes({})->empty());
  const auto message = [](const std::vector<std::string>& given) {
    const auto parsed = parse_nodes(given);
    return parsed ? "accepted" : parsed.error().message;
  };
  EXPECT_NE(message({"/a"}).find("one directory only"), std::string::npos) << message({"/a"});
  EXPECT_NE(message({"/a,,/b"}).find("a name is missing"), std::string::npos) << message({"/a,,/b"});
  EXPECT_NE(message({"/a,"}).find("a name is missing"), std::string::npos);
  EXPECT_NE(message({""}).find("a name is missing"), std::string::npos);
  EXPECT_NE(message({"/a,/b", "/c,/d,/e"}).find("3 directories after 2"), std::string::npos);
}

TEST(ColumnNames, DirectoriesThenNodes) {
  const TargetNames names{.dirs = {"/a"}, .nodes = {{"/b", "/c"}, {"/d", "/e"}}};
  EXPECT_EQ(column_names(names), (std::vector<std::string>{"/a", "/b,/c", "/d,/e"}));
  EXPECT_EQ(names.columns(), 3u);
  EXPECT_EQ(names.nodes_per_column(), 2u);
}

TEST(CheckSpace, NodesOnOneFileSystemShareIt) {
  const TestDirectory a, b;
  const auto targets = open_nodes({a.path(), b.path()});
  const uint64_t free = std::filesystem::space(a.path()).available;
  EXPECT_TRUE(check_space(*targets, free / 4, "advice"));
  EXPECT_FALSE(check_space(*targets, free / 4 * 3, "advice"));
  EXPECT_TRUE(check_space(a.path(), free / 4 * 3, "advice"));
}

TEST(CheckSpace, NamesNeedAndAdvice) {
  const TestDirectory directory;
  EXPECT_TRUE(check_space(directory.path(), 4096, "advice"));
  const Status full = check_space(directory.path(), uint64_t{1} << 60, "lower --scale");
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, Code::kNoSpace);
  EXPECT_NE(full.error().message.find("lower --scale"), std::string::npos);
}

TEST(RemoveContents, KeepsTheDirectory) {
  const TestDirectory directory;
  std::filesystem::create_directories(directory.path() + "/a/b");
  std::ofstream(directory.path() + "/a/b/file") << "x";
  EXPECT_TRUE(remove_contents({directory.path()}));
  EXPECT_TRUE(directory.empty());
}

}  // namespace target_test
}  // namespace kvcachefs

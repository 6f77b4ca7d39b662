#include "tools/load/target.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "store/base/units.h"
#include "tools/load/test_directory.h"

namespace kvcachefs {
namespace {

TEST(Target, LeavesTheDirectoryAsItWas) {
  const TestDirectory directory;
  {
    auto targets = open_targets({directory.path()}, "bench");
    ASSERT_TRUE(targets);
    const auto made = targets->at(0).make_dir("a");
    ASSERT_TRUE(made);
    std::ofstream(*made + "file") << "x";
    EXPECT_FALSE(directory.empty());
  }
  EXPECT_TRUE(directory.empty());
}

TEST(Target, WhatAKilledRunOfTheSameNumberLeftIsNoHindrance) {
  const TestDirectory directory;
  const auto left = Target::open(directory.path(), 0, "bench");
  ASSERT_TRUE(left);
  EXPECT_TRUE(Target::open(directory.path(), 0, "bench"));
}

TEST(Target, RefusesWhatIsNoDirectoryOrNamedTwice) {
  const TestDirectory directory;
  const std::string file = directory.path() + "/file";
  std::ofstream(file) << "x";
  EXPECT_EQ(open_targets({file}, "bench").error().code, Code::kNotDirectory);
  const auto missing = open_targets({directory.path() + "/none"}, "bench");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("/none"), std::string::npos);
  EXPECT_FALSE(open_targets({}, "bench"));
  EXPECT_FALSE(open_targets({directory.path(), directory.path() + "/."}, "bench"));
}

TEST(Target, ReadOnlyFileSystemIsACleanError) {
  const auto opened = open_targets({"/proc"}, "bench");  // takes no new directories, from root either
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().message.find("/proc"), std::string::npos) << opened.error().message;
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
  EXPECT_TRUE(remove_contents(directory.path()));
  EXPECT_TRUE(directory.empty());
}

}  // namespace
}  // namespace kvcachefs

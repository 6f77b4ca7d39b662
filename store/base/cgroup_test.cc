// The limits of control groups, on trees of files.
#include "store/base/cgroup.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace kvcachefs {
namespace cgroup_test {

class Cgroups : public ::testing::Test {
 protected:
  Cgroups() {
    const char* base = std::getenv("TMPDIR");
    root_ = std::string(base != nullptr ? base : "/tmp") + "/kvcachefs-cgroup-XXXXXX";
    if (mkdtemp(root_.data()) == nullptr) std::abort();
  }
  ~Cgroups() override {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << '\n';
  }
  uint64_t limit(const std::string& membership) { return cgroup_memory_limit(membership, root_).bytes; }

  std::string root_;
};

TEST_F(Cgroups, WithoutALimitThereIsNone) {
  EXPECT_EQ(limit(""), UINT64_MAX);
  EXPECT_EQ(limit("0::/a\n"), UINT64_MAX);
  put("/a/memory.max", "max");
  put("/memory/b/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_EQ(limit("4:memory:/b\n0::/a\n"), UINT64_MAX);
  EXPECT_EQ(limit("nonsense\n:\n1:\n"), UINT64_MAX);
  put("/a/memory.max", "many");
  EXPECT_EQ(limit("0::/a\n"), UINT64_MAX);
}

TEST_F(Cgroups, TheLeastOfAllLevelsOfVersion2) {
  put("/system.slice/memory.max", "4000000");
  put("/system.slice/kv.service/memory.max", "max");
  put("/system.slice/kv.service/memory.high", "5000000");
  EXPECT_EQ(limit("0::/system.slice/kv.service"), 4'000'000u);
  put("/system.slice/kv.service/memory.high", "3000000");
  EXPECT_EQ(limit("0::/system.slice/kv.service\n"), 3'000'000u);
  EXPECT_EQ(cgroup_memory_limit("0::/system.slice/kv.service\n", root_).file, root_ + "/system.slice/kv.service/memory.high");
  EXPECT_EQ(limit("0::/other.slice\n"), UINT64_MAX);
}

TEST_F(Cgroups, TheLeastOfAllLevelsOfVersion1) {
  put("/memory/memory.limit_in_bytes", "9223372036854771712");
  put("/memory/docker/memory.limit_in_bytes", "700000000");
  put("/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712");
  const std::string membership = "12:cpu,cpuacct:/x\n4:hugetlb,memory:/docker/abc\n1:name=systemd:/docker/abc\n";
  EXPECT_EQ(limit(membership), 700'000'000u);
  EXPECT_EQ(limit("4:memory_other:/docker\n"), UINT64_MAX);
}

// The group's name is the host's, and the mounted hierarchy is the group itself.
TEST_F(Cgroups, AContainerThatSeesItsGroupAsTheRoot) {
  put("/memory/memory.limit_in_bytes", "536870912");
  EXPECT_EQ(limit("4:memory:/docker/0123\n"), 536'870'912u);
  put("/memory.max", "268435456");
  EXPECT_EQ(limit("0::/\n"), 268'435'456u);
  EXPECT_EQ(limit("0::/../../kv\n"), 268'435'456u);
}

TEST_F(Cgroups, BothVersionsAtOnce) {
  put("/unified/a/memory.max", "2000000");
  put("/memory/b/memory.limit_in_bytes", "3000000");
  EXPECT_EQ(limit("4:memory:/b\n0::/a\n"), 2'000'000u);
}

}  // namespace cgroup_test
}  // namespace kvcachefs

#include "tools/load/mount_status.h"

#include <gtest/gtest.h>

#include "tools/load/test_directory.h"

namespace kvcachefs {
namespace mount_status_test {

TEST(MountStatus, NumbersByDottedPath) {
  const MountStatus status = parse_mount_status(
      R"({"version":"0.1","pid":42,"volume":{"state":"ok","root":"/v","uuid":"0a"},"options":{"evict":"on"},"reads":{"opens":7,"bytes_from_ram":1.5}})");
  EXPECT_EQ(status.pid, 42);
  EXPECT_EQ(status.volume, "/v");
  EXPECT_EQ(status.volume_uuid, "0a");
  EXPECT_TRUE(status.evicts);
  EXPECT_EQ(status.numbers.at("reads.opens"), 7);
  EXPECT_EQ(status.numbers.at("reads.bytes_from_ram"), 1.5);
  EXPECT_FALSE(status.numbers.contains("volume.state"));
}

TEST(MountStatus, AnythingElseIsNothing) {
  EXPECT_TRUE(parse_mount_status("").numbers.empty());
  EXPECT_TRUE(parse_mount_status("{\"pid\":").numbers.empty());
  EXPECT_TRUE(parse_mount_status("[1,2]").numbers.empty());
}

TEST(MountStatus, APlainDirectoryIsNoMount) {
  const TestDirectory directory;
  EXPECT_FALSE(read_mount_status(directory.path()).has_value());
}

TEST(MountStatus, ChangesOfCountersAlsoOfThoseThatDidNotMove) {
  const StatusNumbers before = {{"reads.opens", 5}, {"reads.bytes_from_ram", 10}, {"memory.used_bytes", 1}};
  const StatusNumbers after = {
      {"reads.opens", 8}, {"reads.bytes_from_ram", 10}, {"memory.used_bytes", 2}, {"prefetch.read_bytes", 4},
      {"probes.hit_1min_ratio", 0.5}, {"evictions.known_objects", 7}};  // levels
  EXPECT_EQ(counter_changes(before, after),
            (StatusNumbers{{"reads.opens", 3}, {"reads.bytes_from_ram", 0}, {"prefetch.read_bytes", 4}}));
}

TEST(FileSystemRoot, IsAnAncestor) {
  const TestDirectory directory;
  const std::string root = file_system_root(directory.path());
  EXPECT_TRUE(directory.path().starts_with(root)) << root;
  EXPECT_EQ(file_system_root(root), root);
  EXPECT_EQ(file_system_root("/proc/self"), "/proc");
}

}  // namespace mount_status_test
}  // namespace kvcachefs

#include "tools/load/cache_control.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include "tools/load/cold_start.h"
#include "tools/load/test_directory.h"
#include "tools/load/test_mount.h"

namespace kvcachefs {
namespace cache_control_test {

TEST(CacheControl, DrainsAPlainDirectoryAndNamesAMissingOne) {
  const TestDirectory directory;
  EXPECT_TRUE(drain_writes(directory.path()));
  const auto missing = drain_writes(directory.path() + "/none");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("/none"), std::string::npos);
}

TEST(CacheControl, SaysThatTmpfsIsNeverCold) {
  if (!std::filesystem::exists("/dev/shm")) GTEST_SKIP() << "no tmpfs at /dev/shm";
  const auto notes = drop_caches("/dev/shm");
  ASSERT_TRUE(notes);
  ASSERT_EQ(notes->size(), 1u);
  EXPECT_NE(notes->front().find("tmpfs"), std::string::npos);
}

bool mentions(const Notes& notes, const std::string& what) {
  return std::ranges::any_of(notes, [&](const std::string& note) { return note.find(what) != std::string::npos; });
}

TEST(CacheControl, AnOrdinaryUserWaitsUntilNothingIsStaged) {
  if (!TestMount::permitted()) GTEST_SKIP() << "needs root (a mount)";
  const TestMount mount("ramfs");
  mount.write_status(R"({"capacity": {"staged_bytes": 4096}})");
  std::atomic<bool> written_out = false;
  std::optional<Result<Notes>> drained;
  std::jthread client([&] {
    const AsNobody user;
    drained = drain_writes(mount.path());
    EXPECT_TRUE(written_out);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  written_out = true;
  mount.write_status(R"({"capacity": {"staged_bytes": 0}})");
  client.join();
  ASSERT_TRUE(*drained) << drained->error().message;
  EXPECT_TRUE(mentions(**drained, "user.kvcachefs.flush: Permission denied: waited until nothing was staged"));
}

TEST(CacheControl, AnOrdinaryUserSyncsWhereTheStatusDoesNotSayWhatIsStaged) {
  if (!TestMount::permitted()) GTEST_SKIP() << "needs root (a mount)";
  const TestMount mount("ramfs");
  mount.write_status(R"({"reads": {"passthrough_opens": 0}})");
  const AsNobody user;
  const auto notes = drop_caches(mount.path());
  ASSERT_TRUE(notes) << notes.error().message;
  EXPECT_TRUE(mentions(*notes, "synced instead"));
  EXPECT_FALSE(mentions(*notes, "passed through"));
}

TEST(CacheControl, SaysThatPassedThroughChunksMayBeWarm) {
  if (!TestMount::permitted()) GTEST_SKIP() << "needs root (a mount)";
  const TestMount mount("ramfs");
  mount.write_status(R"({"capacity": {"staged_bytes": 0}, "reads": {"passthrough_opens": 2}})");
  const AsNobody user;
  const auto notes = drop_caches(mount.path());
  ASSERT_TRUE(notes) << notes.error().message;
  EXPECT_TRUE(mentions(*notes, "passed through"));
}

TEST(ColdStart, KeepingCachesIsSaid) {
  const TestDirectory directory;
  Report report({directory.path()});
  ASSERT_TRUE(cold_start(directory.path(), true, report));
  EXPECT_EQ(report.notes().size(), 1u);
}

}  // namespace cache_control_test
}  // namespace kvcachefs

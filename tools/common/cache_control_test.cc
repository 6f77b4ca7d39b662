#include "tools/common/cache_control.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "tools/common/cold_start.h"
#include "tools/common/test_directory.h"

namespace kvcachefs {
namespace {

TEST(CacheControl, DrainsAPlainDirectoryAndNamesAMissingOne) {
  const TestDirectory directory;
  EXPECT_TRUE(drain_writes(directory.path()));
  const Status missing = drain_writes(directory.path() + "/none");
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

TEST(ColdStart, KeepingCachesIsSaid) {
  const TestDirectory directory;
  Report report({directory.path()});
  ASSERT_TRUE(cold_start(directory.path(), true, report));
  EXPECT_EQ(report.notes().size(), 1u);
}

}  // namespace
}  // namespace kvcachefs

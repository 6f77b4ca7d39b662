#include "store/index/mapped_pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "store/base/units.h"

namespace kvcachefs {
namespace mapped_pages_test {

constexpr uint64_t kBytes = 8 * kMiB;

class MappedPages : public ::testing::Test {
 protected:
  MappedPages() {
    const int fd = mkstemp(path_.data());
    EXPECT_GE(fd, 0);
    const std::string bytes(kBytes, 'x');
    EXPECT_EQ(write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(kBytes));
    map_ = static_cast<char*>(mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd, 0));
    EXPECT_NE(map_, MAP_FAILED);
    close(fd);
  }
  ~MappedPages() override {
    munmap(map_, kBytes);
    unlink(path_.c_str());
  }
  bool reads_all() const {
    for (uint64_t at = 0; at < kBytes; at += kBlockBytes)
      if (map_[at] != 'x') return false;
    return true;
  }
  // In the page tables of this process.
  uint64_t mapped_bytes() const {
    std::vector<uint64_t> entries(kBytes / kBlockBytes);
    const int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    EXPECT_GE(fd, 0);
    const auto length = static_cast<ssize_t>(entries.size() * sizeof(uint64_t));
    EXPECT_EQ(pread(fd, entries.data(), static_cast<size_t>(length), static_cast<off_t>(reinterpret_cast<uint64_t>(map_) / kBlockBytes * sizeof(uint64_t))),
              length);
    close(fd);
    uint64_t bytes = 0;
    for (const uint64_t entry : entries) bytes += (entry >> 63) != 0 ? kBlockBytes : 0;
    return bytes;
  }

  std::string path_ = ::testing::TempDir() + "mapped-pages-XXXXXX";
  char* map_ = nullptr;
};

TEST_F(MappedPages, WhatIsBehindWhatIsKeptLeavesTheProcessAndIsReadAgain) {
  ASSERT_TRUE(reads_all());
  EXPECT_EQ(mapped_bytes(), kBytes);
  let_go_of_mapped_pages(path_, kMiB, /*most_bytes=*/UINT64_MAX);
  EXPECT_EQ(mapped_bytes(), kBytes) << "there is no need";
  let_go_of_mapped_pages(path_, kMiB, /*most_bytes=*/0);
  EXPECT_LE(mapped_bytes(), kMiB);  // less, where the kernel had mapped a large page that begins in it
  EXPECT_TRUE(reads_all());
}

TEST_F(MappedPages, WhatIsLockedStays) {
  lock_mapped_pages(path_, 2 * kMiB);
  if (mlock(map_, kBlockBytes) != 0) GTEST_SKIP() << "RLIMIT_MEMLOCK is too small";
  ASSERT_TRUE(reads_all());
  let_go_of_mapped_pages(path_, 2 * kMiB, /*most_bytes=*/0);
  EXPECT_EQ(mapped_bytes(), 2 * kMiB) << "of a mapping that is two by now";
  let_go_of_mapped_pages(path_ + "-absent", 0, /*most_bytes=*/0);
  EXPECT_TRUE(reads_all());
}

}  // namespace mapped_pages_test
}  // namespace kvcachefs

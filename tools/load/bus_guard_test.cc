#include "tools/load/bus_guard.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace kvcachefs {
namespace bus_guard_test {

// A page of a mapping that lies past the end of its file.
class BusGuard : public ::testing::Test {
 protected:
  BusGuard() : fd_(::memfd_create("bus-guard-test", MFD_CLOEXEC)) {
    void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (memory != MAP_FAILED) page_ = static_cast<char*>(memory);
  }
  ~BusGuard() override {
    ::munmap(page_, 4096);
    ::close(fd_);
  }
  int fd_;
  char* page_ = nullptr;
};

TEST_F(BusGuard, AFailedFaultIsToldAgainAndAgain) {
  ASSERT_NE(page_, nullptr);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(survives_bus_error([&] { std::memset(page_, 1, 4096); }));
  ASSERT_EQ(::ftruncate(fd_, 4096), 0);
  EXPECT_TRUE(survives_bus_error([&] { std::memset(page_, 1, 4096); }));
  EXPECT_EQ(page_[4095], 1);
}

TEST_F(BusGuard, ThreadsAreIndependent) {
  ASSERT_NE(page_, nullptr);
  std::vector<std::jthread> threads;
  std::vector<int> survived(4, -1);
  for (size_t i = 0; i < survived.size(); ++i) {
    threads.emplace_back([&, i] {
      char own[4096];
      char* target = i % 2 == 0 ? page_ : own;
      survived[i] = survives_bus_error([&] { std::memset(target, 1, 4096); }) ? 1 : 0;
    });
  }
  threads.clear();
  EXPECT_EQ(survived, (std::vector<int>{0, 1, 0, 1}));
}

}  // namespace bus_guard_test
}  // namespace kvcachefs

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include "fs/passthrough.h"

#include <gtest/gtest.h>

#include <functional>
#include <new>
#include <utility>
#include <vector>

namespace kvcachefs {
namespace passthrough_test {

using Access = Passthrough::Access;

class PassthroughTest : public ::testing::Test {
 protected:
  // The store's answer is `answer`; what is opened meanwhile by it has to wait.
  void enable(std::function<BackingFile()> answer) {
    passthrough.enable(nullptr, {[answer](ObjectId) { return answer(); }, [](ObjectId) -> Result<Stat> { return Stat{}; }}, 1, false,
                       [](bool, int) {});
  }
  Passthrough::Then note() {
    return [this](Passthrough::Decision decision) { decisions.push_back(decision); };
  }

  Passthrough passthrough;
  std::vector<Passthrough::Decision> decisions;
  const ObjectId node = ObjectId::make(0, 1, 7);
};

TEST_F(PassthroughTest, WithoutMemoryAnOpenAndThoseThatWaitForItGoThroughTheDaemon) {
  if (FUSE_VERSION < FUSE_MAKE_VERSION(3, 16)) GTEST_SKIP() << "it asks for no file";
  bool first = true;
  enable([&]() -> BackingFile {
    if (!std::exchange(first, false)) return {};
    passthrough.open(node, Access::kRead, note());
    passthrough.open(node, Access::kWrite, note());
    EXPECT_TRUE(decisions.empty()) << "they wait";
    throw std::bad_alloc();
  });
  passthrough.open(node, Access::kRead, note());
  ASSERT_EQ(decisions.size(), 3u);
  for (const auto& decision : decisions) EXPECT_TRUE(!decision.stale && decision.backing_id == 0);
  passthrough.open(node, Access::kRead, note());
  EXPECT_EQ(decisions.size(), 4u) << "nor does a later one wait";
  for (int i = 0; i < 4; ++i) passthrough.release(node, false);
  passthrough.open(node, Access::kRead, note());
  EXPECT_EQ(decisions.size(), 5u);
}

}  // namespace passthrough_test
}  // namespace kvcachefs

// The threads of a store, where the process may not have as many.
#include <cstdint>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "store/base/thread.h"
#include "store/store.h"
#include "store/testing/test_store.h"

namespace kvcachefs {
namespace store_threads_test {

using testing::TestStore;

// Whichever of them cannot be started: the start fails with the reason, those that were started end, and the volume is as it was.
TEST(StoreThreads, AStartThatGetsTooFewFails) {
  StoreOptions options = testing::node_options("test");
  TestStore store(options);
  ASSERT_TRUE(store.write_file("chunk", store.payload(1, 300'000)));
  store.unmount();
  options.background = true;
  int64_t threads = 0;
  constexpr int64_t kMost = 100;
  for (; threads < kMost; ++threads) {
    let_start_threads(threads);
    auto opened = open_store_at(store.root(), options, system_clock(), "pid=1");
    let_start_threads(INT64_MAX);
    if (opened) {
      EXPECT_FALSE((*opened)->status().unclean_start);
      EXPECT_TRUE((*opened)->close());
      break;
    }
    EXPECT_TRUE(opened.error().message.starts_with("thread kvc-")) << opened.error().message;
    EXPECT_TRUE(opened.error().message.contains("ulimit -u")) << opened.error().message;
    EXPECT_NE(opened.error().code, Code::kBusy) << "the mount would wait for another daemon";
  }
  EXPECT_GT(threads, 10);
  EXPECT_LT(threads, kMost);
  store.mount();
  EXPECT_EQ(store.read_file("chunk"), store.payload(1, 300'000));
}

}  // namespace store_threads_test
}  // namespace kvcachefs

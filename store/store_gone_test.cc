// A volume that is taken away below a store that uses it.
#include <unistd.h>

#include <filesystem>

#include <gtest/gtest.h>

#include "store/testing/settling.h"
#include "store/testing/test_store.h"

namespace kvcachefs {
namespace store_gone_test {

using testing::TestStore;

Code created(TestStore& store, const std::string& name) {
  auto made = store->create(kRootId, name, 0644, {.write = true}, {.thread_id = 1});
  if (!made) return made.error().code;
  store->release(made->second);
  return Code::kNoData;
}

TEST(StoreGone, NothingIsAcceptedAndTheStatusSaysWhy) {
  TestStore store;
  const std::string chunk = store.payload(1, 300'000);
  ASSERT_TRUE(store.write_file("chunk", chunk));
  store.settle();
  EXPECT_EQ(created(store, "before"), Code::kNoData);
  EXPECT_EQ(store->status().state, "ok");
  std::filesystem::remove_all(store.root() + "/nodes");
  usleep(1'200'000);  // it is looked for once a second
  for (int i = 0; i < 20; ++i) store->pump();
  EXPECT_EQ(created(store, "after"), Code::kIo);
  EXPECT_EQ(store->make_directory(kRootId, "d", 0755, {}).error().code, Code::kIo);
  EXPECT_EQ(store->make_symlink(kRootId, "l", "to", {}).error().code, Code::kIo);
  const StoreStatus status = store->status();
  EXPECT_EQ(status.state, "degraded");
  EXPECT_NE(status.state_reason.find("removed"), std::string::npos) << status.state_reason;
  EXPECT_NE(status.state_reason.find(store.root()), std::string::npos);
  EXPECT_TRUE(store.read_file("chunk") == chunk) << "what is in RAM is answered";
  store.die();
}

}  // namespace store_gone_test
}  // namespace kvcachefs

#include "store/api/live_options.h"

#include <gtest/gtest.h>

#include <thread>

namespace kvcachefs {
namespace live_options_test {

OptionDefaults defaults_of(uint64_t backing_bytes) { return {.backing_bytes = backing_bytes, .memory_bytes = 8 * kGiB, .network_volume = false}; }

TEST(LiveOptions, DefaultsFollowFromTheMachineAndTheVolume) {
  LiveOptions live{StoreOptions{}};
  ASSERT_TRUE(live.resolve(defaults_of(100 * kGiB), "/i"));
  const StoreOptions options = live.current();
  EXPECT_EQ(options.capacity_bytes, 90 * kGiB);
  EXPECT_EQ(options.keep_free_bytes, 5 * kGiB);
  EXPECT_EQ(options.memory_bytes, 2 * kGiB);
  EXPECT_EQ(options.pack_below_bytes, 4 * kMiB);
  EXPECT_EQ(options.index_directory, "/i");
  LiveOptions network{StoreOptions{}};
  ASSERT_TRUE(network.resolve({.backing_bytes = kGiB, .memory_bytes = 8 * kMiB, .network_volume = true}, "/i"));
  EXPECT_EQ(network.current().pack_below_bytes, 32 * kMiB);
  EXPECT_EQ(network.current().memory_bytes, 16 * kMiB);
}

TEST(LiveOptions, ASubscriberHearsOfEachChangeAndAtOnce) {
  LiveOptions live{StoreOptions{}};
  ASSERT_TRUE(live.resolve(defaults_of(100 * kGiB), "/i"));
  std::vector<uint64_t> heard;
  live.subscribe([&](const StoreOptions& options) { heard.push_back(options.memory_bytes); });
  ASSERT_TRUE(live.set("memory", "64M", defaults_of(100 * kGiB)));
  EXPECT_EQ(heard, (std::vector<uint64_t>{2 * kGiB, 64 * kMiB}));
}

TEST(LiveOptions, ARefusedChangeChangesNothing) {
  LiveOptions live{StoreOptions{}};
  ASSERT_TRUE(live.resolve(defaults_of(100 * kGiB), "/i"));
  size_t heard = 0;
  live.subscribe([&](const StoreOptions&) { ++heard; });
  auto fixed = live.set("node", "other", defaults_of(100 * kGiB));
  ASSERT_FALSE(fixed);
  EXPECT_NE(fixed.error().message.find("unmount and mount with -o node=other"), std::string::npos) << fixed.error().message;
  for (const auto& [name, value] : {std::pair("node", "a/b"), std::pair("extent_size", "junk"), std::pair("bogus", "1")}) {
    auto refused = live.set(name, value, defaults_of(100 * kGiB));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message.find("unmount and mount"), std::string::npos) << refused.error().message;
  }
  ASSERT_TRUE(live.set("pack_below", "32K", defaults_of(100 * kGiB)));
  auto contradiction = live.set("inline_below", "64K", defaults_of(100 * kGiB));
  ASSERT_FALSE(contradiction);
  EXPECT_EQ(live.inline_below_bytes(), 0u);
  EXPECT_EQ(live.pack_below_bytes(), 32 * kKiB);
  EXPECT_EQ(heard, 2u);  // at the subscription, and of pack_below
}

TEST(LiveOptions, PercentagesFollowTheSizeOfTheVolumeAndSizesDoNot) {
  LiveOptions live{StoreOptions{}};
  ASSERT_TRUE(live.resolve(defaults_of(100 * kGiB), "/i"));
  EXPECT_TRUE(live.follow(defaults_of(200 * kGiB)));
  EXPECT_EQ(live.current().capacity_bytes, 180 * kGiB);
  ASSERT_TRUE(live.set("capacity", "10G", defaults_of(200 * kGiB)));
  ASSERT_TRUE(live.set("keep_free", "1G", defaults_of(200 * kGiB)));
  EXPECT_FALSE(live.follow(defaults_of(400 * kGiB)));
  EXPECT_EQ(live.current().capacity_bytes, 10 * kGiB);
  ASSERT_TRUE(live.set("capacity", "50%", defaults_of(400 * kGiB)));
  EXPECT_EQ(live.current().capacity_bytes, 200 * kGiB);
  EXPECT_TRUE(live.follow(defaults_of(100 * kGiB)));
  EXPECT_EQ(live.current().capacity_bytes, 50 * kGiB);
  EXPECT_EQ(live.current().keep_free_bytes, kGiB);
}

TEST(LiveOptions, ChangesAndReadsRunSideBySide) {
  LiveOptions live{StoreOptions{}};
  ASSERT_TRUE(live.resolve(defaults_of(100 * kGiB), "/i"));
  std::thread writer([&] {
    for (int i = 0; i < 1000; ++i) EXPECT_TRUE(live.set("flush_interval_ms", i % 2 == 0 ? "100" : "300", defaults_of(100 * kGiB)));
  });
  for (int i = 0; i < 1000; ++i) {
    const uint64_t interval = live.flush_interval_ms();
    EXPECT_TRUE(interval == 100 || interval == 200 || interval == 300) << interval;
    EXPECT_EQ(live.current().capacity_bytes, 90 * kGiB);
  }
  writer.join();
}

}  // namespace live_options_test
}  // namespace kvcachefs

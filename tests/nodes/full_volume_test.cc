// Two nodes on a volume that others have filled.
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "store/base/log.h"
#include "tests/nodes/names.h"
#include "tests/nodes/node.h"

namespace kvcachefs::testing {
namespace full_volume_test {

class NodesFullVolume : public ::testing::Test {
 protected:
  static StoreOptions options() {
    StoreOptions options;
    options.memory_bytes = 32 * kMiB;
    options.evict = false;
    return options;
  }
  void pass(int64_t ns) {
    server->advance_ns(ns);
    for (Node* node : {&a, &b}) node->clock().advance_ns(ns);
  }
  void SetUp() override {
    log::set_level(log::Level::kOff);
    ASSERT_TRUE(a.start());
    ASSERT_TRUE(b.start());
  }
  static Status write(Node& node, const std::string& name, const std::string& content) {
    KVC_ASSIGN(Handle* const handle, node.create(name));
    Status written = node.write(handle, content);
    const Status closed = node.close(handle);
    return written ? closed : written;
  }

  const std::shared_ptr<SimServer> server = std::make_shared<SimServer>();
  Node a{0, "m0", server, options(), 0, {}, [this](int64_t ns) { pass(ns); }};
  Node b{1, "m1", server, options(), 0, {}, [this](int64_t ns) { pass(ns); }};
};

// The second lookup of an open that is told to look again makes the file that takes the other node's place, and finds no room for it.
TEST_F(NodesFullVolume, ARewriteThatFindsNoRoomIsOver) {
  for (const char* name : {"x", "y"}) ASSERT_TRUE(write(a, name, make_body(1, 100'000)));
  ASSERT_TRUE(a.drain());
  ASSERT_TRUE(b.refresh());
  server->set_full(true);
  int stored = 0;
  for (const size_t bytes : {kMiB, 64 * kKiB, 4 * kKiB, size_t{30}})
    while (write(b, std::to_string(++stored), make_body(1, bytes))) ASSERT_LT(stored, 1000);
  for (const char* name : {"x", "y"}) {
    const Caller caller{.thread_id = 7};
    const auto found = b.store().lookup(kRootId, name, caller);
    ASSERT_TRUE(found) << found.error().message;
    const auto opened = b.store().open(found->id, {.read = false, .write = true, .truncate = true}, caller);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, Code::kStale) << name << ": " << opened.error().message;
    const auto again = b.store().lookup(kRootId, name, caller);
    ASSERT_FALSE(again) << "there is room";
    EXPECT_EQ(again.error().code, Code::kNoSpace);
  }
}

}  // namespace full_volume_test
}  // namespace kvcachefs::testing

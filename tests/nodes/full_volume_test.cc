// Two nodes on a volume that others have filled.
#include <string>

#include <gtest/gtest.h>

#include "tests/nodes/two_nodes.h"

namespace kvcachefs::testing {
namespace full_volume_test {

class NodesFullVolume : public TwoNodes {};

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

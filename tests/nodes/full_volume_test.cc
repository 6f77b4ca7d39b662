// Two nodes on a volume that others have filled.
#include <string>

#include <gtest/gtest.h>

#include "tests/nodes/two_nodes.h"

namespace kvcachefs::testing {
namespace full_volume_test {

class NodesFullVolume : public TwoNodes {};

// The repetition of an open that is told to look again makes the file that takes the place of the other node's, and finds no room for it. The call
// is over with that: the next open is told to look again.
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
    const OpenRequest rewrite{.read = false, .write = true, .truncate = true};
    const auto opened = b.store().open(found->id, rewrite, caller);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, Code::kStale) << name << ": " << opened.error().message;
    const auto again = b.store().lookup(kRootId, name, caller);
    ASSERT_TRUE(again) << again.error().message;
    const auto repeated = b.store().open(again->id, rewrite, caller);
    ASSERT_FALSE(repeated) << "there is room";
    EXPECT_EQ(repeated.error().code, Code::kNoSpace);
    const auto kept = b.store().lookup(kRootId, name, caller);
    ASSERT_TRUE(kept) << kept.error().message;
    EXPECT_EQ(kept->size_bytes, 100'000u) << "nothing was lost";
  }
}

}  // namespace full_volume_test
}  // namespace kvcachefs::testing

// What one node has open is kept by the other, which has replaced it, over the end of its daemon, too.
#include <string>

#include <gtest/gtest.h>

#include "tests/nodes/two_nodes.h"

namespace kvcachefs::testing {
namespace given_up_test {

// By the version of NFS: with 3 nothing can be punched.
class NodesGivenUp : public TwoNodes, public ::testing::WithParamInterface<unsigned> {
 protected:
  NodesGivenUp() : TwoNodes({.nfs_version = GetParam()}, options()) {}
  static StoreOptions options() {
    StoreOptions options = node_options();
    options.pack_below_bytes = 256 * kKiB;
    return options;
  }
  void work(int seconds) {
    for (int i = 0; i < 4 * seconds; ++i) {
      pass(250'000'000);
      for (Node* node : {&a, &b})
        if (node->runs()) node->pump();
    }
  }
};

// "y" is the last that lives in the pack.
TEST_P(NodesGivenUp, APackWithABodyThatIsOpenElsewhereStaysWhenAllOfItIsDead) {
  ASSERT_TRUE(write(a, "x", make_body(1, 100'000)));
  ASSERT_TRUE(write(a, "y", make_body(2, 100'000)));
  ASSERT_TRUE(a.drain());
  const uint64_t pack_bytes = server->allocated_bytes("/n0/1/extents/");
  ASSERT_GT(pack_bytes, 200'000u);
  ASSERT_TRUE(b.refresh());
  const auto opened = b.open("x", {});
  ASSERT_TRUE(opened);
  ASSERT_TRUE(write(a, "tmp", make_body(3, 300'000)));
  ASSERT_TRUE(a.rename("tmp", "x"));
  work(3);
  ASSERT_TRUE(a.end());
  ASSERT_TRUE(a.start());
  work(3);
  ASSERT_TRUE(a.unlink("y"));
  ASSERT_TRUE(a.drain());
  work(3);
  ASSERT_TRUE(a.end());
  b.store().drop_caches();
  const auto read = b.read(*opened);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(body_of(*read), 1);
  b.store().release(*opened);
  for (int life = 0; life < 2; ++life) {
    ASSERT_TRUE(a.start());
    work(3);
    ASSERT_TRUE(write(a, "z" + std::to_string(life), make_body(4, 100)));  // something happens
    ASSERT_TRUE(a.drain());
    work(3);
    ASSERT_TRUE(a.end());
  }
  ASSERT_TRUE(a.start());
  work(30);
  EXPECT_LE(server->allocated_bytes("/extents/"), 350'000u) << "closed, it is given back";
}

INSTANTIATE_TEST_SUITE_P(, NodesGivenUp, ::testing::Values(3u, 4u), [](const auto& each) { return "V" + std::to_string(each.param); });

}  // namespace given_up_test
}  // namespace kvcachefs::testing

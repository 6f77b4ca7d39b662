// An open that ends by an exception, before it is answered, leaves nothing open.
#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include "fs/open_guards.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "store/testing/test_store.h"

namespace kvcachefs {
namespace open_guards_test {

using Access = Passthrough::Access;

std::string kept_by(testing::TestStore& store, ObjectId id) {
  const auto facts = store->describe(id, {});
  for (const auto& [key, value] : facts.value())
    if (key == "kept_by") return value;
  return {};
}

TEST(AcceptedTest, AFileIsClosedUnlessItsHandleIsTaken) {
  testing::TestStore store;
  ASSERT_TRUE(store.write_file("file", testing::TestStore::payload(1, 4096)));
  store.settle();
  const ObjectId id = store->lookup(kRootId, "file", {.thread_id = 1}).value().id;
  ASSERT_NE(kept_by(store, id), "open");
  const auto opened = store->open(id, {}, {.thread_id = 1});
  ASSERT_TRUE(opened);
  Handle* handle = nullptr;
  {
    Accepted accepted(*store.operator->(), *opened);
    Accepted moved = std::move(accepted);
    handle = moved.take();
  }
  ASSERT_EQ(handle, *opened);
  EXPECT_EQ(kept_by(store, id), "open");
  { Accepted accepted(*store.operator->(), handle); }
  EXPECT_NE(kept_by(store, id), "open");
}

class CountedTest : public ::testing::Test {
 protected:
  CountedTest() {
    passthrough.enable(nullptr, {[this](ObjectId) { return ++asked, BackingFile{}; }, [](ObjectId) -> Result<Stat> { return Stat{}; }}, 1,
                       false, [](bool, int) {});
  }
  Counted open(Access access) {
    Passthrough::Decision decision;
    passthrough.open(node, access, [&](Passthrough::Decision made) { decision = made; });
    return Counted(passthrough, node, decision);
  }
  // While the nodeid is open otherwise, no file is asked for.
  bool is_open() {
    const int before = asked;
    open(Access::kRead);
    return asked == before;
  }

  int asked = 0;
  Passthrough passthrough;
  const ObjectId node = ObjectId::make(0, 1, 7);
};

TEST_F(CountedTest, AnOpenEndsOnceWithItsGuard) {
  if (FUSE_VERSION < FUSE_MAKE_VERSION(3, 16)) GTEST_SKIP() << "it asks for no file";
  {
    Counted counted = open(Access::kWrite);
    Counted moved = std::move(counted);
    EXPECT_TRUE(is_open());
    moved.end();
    EXPECT_FALSE(is_open());
  }
  EXPECT_FALSE(is_open());
  { Counted counted = open(Access::kWrite); }
  EXPECT_FALSE(is_open());
}

TEST_F(CountedTest, AnOpenStaysForItsRelease) {
  if (FUSE_VERSION < FUSE_MAKE_VERSION(3, 16)) GTEST_SKIP() << "it asks for no file";
  open(Access::kWrite).stays();
  EXPECT_TRUE(is_open());
  passthrough.release(node, false);
  EXPECT_FALSE(is_open());
}

}  // namespace open_guards_test
}  // namespace kvcachefs

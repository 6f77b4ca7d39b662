#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include "fs/passthrough.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <set>
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

// The kernel keeps a size and pages for each nodeid, so all opens through the daemon share one.
TEST_F(PassthroughTest, AFileIsOpenByOneOfItsNodeidsAtATime) {
  enable([]() -> BackingFile { return {}; });
  const auto opens = [&](ObjectId by, Access access) {
    passthrough.open(by, access, note());
    return !decisions.back().stale;
  };
  EXPECT_FALSE(passthrough.has_aliases(node));
  const ObjectId alias = passthrough.tell_held_node(node, std::make_shared<std::atomic<ObjectId>>());
  passthrough.let_go(alias);
  EXPECT_TRUE(passthrough.has_aliases(node));
  ASSERT_TRUE(opens(alias, Access::kWrite));
  EXPECT_FALSE(opens(node, Access::kWrite));
  EXPECT_TRUE(passthrough.is_outdated(node)) << "a reader looks its name up again, too";
  EXPECT_FALSE(passthrough.is_outdated(alias));
  EXPECT_TRUE(opens(node, Access::kRead)) << "it has no name";
  passthrough.release(node, false);
  EXPECT_EQ(passthrough.tell_node(node, true), alias);
  ASSERT_TRUE(opens(alias, Access::kWrite));
  passthrough.release(alias, false);
  EXPECT_FALSE(opens(node, Access::kWrite)) << "the other one is still open";
  passthrough.release(alias, false);

  EXPECT_FALSE(passthrough.is_outdated(node)) << "no stale open is counted";
  ASSERT_TRUE(opens(node, Access::kRead));
  EXPECT_EQ(passthrough.tell_node(node, false), node) << "the only one in use";
  EXPECT_FALSE(opens(alias, Access::kWrite));
  EXPECT_TRUE(passthrough.is_outdated(alias));
  passthrough.release(node, false);
  EXPECT_EQ(passthrough.tell_node(node, true), node);
  EXPECT_FALSE(opens(alias, Access::kWrite)) << "promised to a writer";
}

// Another node's file, which its node changes while it is open: `state` is set then. Also without passthrough.
TEST_F(PassthroughTest, AFileOfAnotherNodeThatIsHeldAsItWasIsToldByAnotherNodeid) {
  passthrough.set_epoch(7);
  const ObjectId file = ObjectId::make(3, 1, 7), as_it_was{0xff00000000000001};
  const auto first = std::make_shared<std::atomic<ObjectId>>(), second = std::make_shared<std::atomic<ObjectId>>();
  EXPECT_EQ(passthrough.tell_node(file, false), file);
  ASSERT_TRUE(passthrough.hold(file, first));
  EXPECT_EQ(passthrough.tell_node(file, false), file);
  EXPECT_FALSE(passthrough.is_outdated(file));
  *first = as_it_was;
  EXPECT_TRUE(passthrough.is_outdated(file));
  EXPECT_EQ(passthrough.object_of(file), as_it_was);
  EXPECT_EQ(passthrough.file_of(file), file);
  const ObjectId alias = passthrough.tell_node(file, false);
  EXPECT_NE(alias, file);
  EXPECT_EQ(passthrough.object_of(alias), file);
  EXPECT_EQ(passthrough.tell_node(file, false), alias);
  EXPECT_FALSE(passthrough.hold(file, second)) << "a nodeid shows one state";
  ASSERT_TRUE(passthrough.hold(file, first)) << "as by /proc/self/fd/3";
  ASSERT_TRUE(passthrough.hold(alias, second));
  *second = ObjectId{as_it_was.value + 1};
  const ObjectId last = passthrough.tell_node(file, false);
  EXPECT_EQ(std::set<ObjectId>({file, alias, last}).size(), 3u) << "each holder keeps its own";
  passthrough.let_go(file);
  EXPECT_TRUE(passthrough.is_outdated(file));
  passthrough.let_go(file);
  passthrough.let_go(alias);
  for (const ObjectId each : {file, alias, last}) {
    EXPECT_FALSE(passthrough.is_outdated(each));
    EXPECT_EQ(passthrough.object_of(each), file);
  }
}

// The store's answer waits while the change of the file's node is taken in, and then tells of the file as it is now.
TEST_F(PassthroughTest, WhatIsToldOfAHeldNodeidIsOfTheStateThatItShows) {
  const ObjectId file = ObjectId::make(3, 1, 7), as_it_was{0xff00000000000001};
  const auto state = std::make_shared<std::atomic<ObjectId>>();
  std::vector<ObjectId> asked;
  const auto ask = [&](ObjectId object) {
    asked.push_back(object);
    *state = as_it_was;
    return object;
  };
  ASSERT_TRUE(passthrough.hold(file, state));
  EXPECT_EQ(passthrough.ask_shown(file, ask), as_it_was);
  EXPECT_EQ(asked, std::vector({file, as_it_was}));
  asked.clear();
  const auto close = [&](ObjectId object) {
    asked.push_back(object);
    if (object == as_it_was) passthrough.let_go(file);
    return object;
  };
  EXPECT_EQ(passthrough.ask_shown(file, close), file) << "it is closed meanwhile";
  EXPECT_EQ(asked, std::vector({as_it_was, file}));
}

// The file was opened, and its node changed it before the open was noted: until then, the nodeid showed what the file is now.
TEST_F(PassthroughTest, ANodeidIsNotHeldAsItsFileWasBefore) {
  passthrough.set_epoch(7);
  const ObjectId file = ObjectId::make(3, 1, 7), as_it_was{0xff00000000000001};
  const auto before = std::make_shared<std::atomic<ObjectId>>(as_it_was), now = std::make_shared<std::atomic<ObjectId>>();
  EXPECT_FALSE(passthrough.hold(file, before));
  EXPECT_EQ(passthrough.object_of(file), file);
  const ObjectId alias = passthrough.tell_held_node(file, before);
  EXPECT_NE(alias, file);
  EXPECT_EQ(passthrough.object_of(alias), as_it_was);
  ASSERT_TRUE(passthrough.hold(file, now));
  EXPECT_NE(passthrough.tell_node(file, false), alias);
  passthrough.let_go(alias);
  EXPECT_EQ(passthrough.object_of(alias), file);
  passthrough.let_go(file);
  ASSERT_TRUE(passthrough.hold(file, before, /*is_last=*/true)) << "its node has removed it";
  EXPECT_FALSE(passthrough.hold(file, now, /*is_last=*/true));
}

}  // namespace passthrough_test
}  // namespace kvcachefs

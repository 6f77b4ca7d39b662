// Clients that write anew, with O_TRUNC, a name under which another node stored a file, while clients of both nodes change names.
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "store/base/units.h"
#include "store/testing/settling.h"
#include "store/testing/test_store.h"

namespace kvcachefs {
namespace store_peer_rewrites_test {


using testing::link;
using testing::TestStore;

constexpr OpenRequest kRewrite{.read = false, .write = true, .truncate = true};
constexpr Caller kWriter{.thread_id = 7}, kOther{.thread_id = 8};

struct StorePeerRewrites : ::testing::Test {
  void publish() { testing::publish(a, &b); }
  ObjectId look(const std::string& name, const Caller& caller = kWriter) {
    const auto found = b->lookup(kRootId, name, caller);
    EXPECT_TRUE(found) << name << ": " << found.error().message;
    return found ? found->id : ObjectId{};
  }
  Code try_open(ObjectId id, OpenRequest request = kRewrite) {
    auto opened = b->open(id, request, kWriter);
    if (!opened) return opened.error().code;
    b->release(*opened);
    return Code::kNoData;
  }
  // The first try of an open: the kernel knows the name.
  void refuse(const std::string& name) { ASSERT_EQ(try_open(look(name)), Code::kStale) << name; }
  // The second, with all of a client's write.
  void write_at_last(ObjectId id, int seed) {
    auto opened = b->open(id, kRewrite, kWriter);
    ASSERT_TRUE(opened) << opened.error().message;
    b.pwrite(*opened, 0, TestStore::payload(seed, 500));
    ASSERT_TRUE(b.close(*opened));
  }
  void repeat(const std::string& name, int seed) { write_at_last(look(name), seed); }
  void expect_on_both(const std::string& name, int seed) {
    publish();
    for (TestStore* node : {&a, &b}) EXPECT_EQ(node->read_file(name), TestStore::payload(seed, 500)) << name;
    EXPECT_EQ(a.contents(), b.contents());
  }
  void grow_at_a(const std::string& name, uint64_t size_bytes) {
    Handle* writer = a.open(name, {.write = true});
    a.pwrite(writer, size_bytes - 500, TestStore::payload(2, 500));
    ASSERT_TRUE(a.close(writer));
    publish();
  }
  void store_at_a(const std::string& name, int seed) { ASSERT_TRUE(a.write_file(name, TestStore::payload(seed, 500))); }
  void replace_at_a(const std::string& name, int seed) {
    store_at_a("new", seed);
    ASSERT_TRUE(a.rename("new", name));
  }

  TestStore a;
  TestStore b{testing::node_options("other"), a};
};

// The nodeid of an open file shows the state that is open; an open for writing anew means the file, not that state.
TEST_F(StorePeerRewrites, AStateThatOthersHoldIsNotEmptied) {
  store_at_a("x", 1);
  publish();
  auto held = b->open(look("x"), {.read = true}, kWriter);
  ASSERT_TRUE(held);
  Handle* writer = a.open("x", {.write = true});
  a.pwrite(writer, 0, TestStore::payload(2, 500));
  ASSERT_TRUE(a.close(writer));
  publish();
  const ObjectId as_it_was = b->peer_state(*held)->load();
  ASSERT_TRUE(as_it_was.valid());
  OpenRequest rewrite = kRewrite;
  rewrite.again = true;
  EXPECT_EQ(try_open(as_it_was, rewrite), Code::kStale);
  EXPECT_EQ(b.read(*held), TestStore::payload(1, 500));
  EXPECT_TRUE(b.close(*held));
}

// The kernel has the size that it was told, and would refuse pages beyond it to a client that maps all that it read.
TEST_F(StorePeerRewrites, AFileThatGotAnotherBodyAMomentAgoIsLookedUpBeforeItIsOpened) {
  const auto open_to_read = [&](const std::string& name) {
    const ObjectId known = look(name);
    publish();
    return try_open(known, {.read = true});
  };
  const auto grow_to = [&](uint64_t size_bytes) {
    Handle* writer = a.open("x", {.write = true});
    a.pwrite(writer, size_bytes - 500, TestStore::payload(2, 500));
    ASSERT_TRUE(a.close(writer));
  };
  store_at_a("x", 1);
  publish();
  EXPECT_EQ(open_to_read("x"), Code::kNoData) << "what is new has one size";
  grow_to(1000);
  EXPECT_EQ(open_to_read("x"), Code::kStale);
  const auto found = b->lookup(kRootId, "x", kWriter);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->size_bytes, 1000u);
  const auto reader = b->open(found->id, {.read = true}, kWriter);
  ASSERT_TRUE(reader) << reader.error().message;
  EXPECT_EQ(try_open(found->id, {.read = true}), Code::kNoData) << "the kernel has its size";
  EXPECT_TRUE(b.close(*reader));
  grow_to(1500);
  EXPECT_EQ(open_to_read("x"), Code::kStale);
  EXPECT_EQ(try_open(found->id, {.read = true}), Code::kNoData) << "it has no name to look up";
  EXPECT_EQ(try_open(found->id, {.read = true}), Code::kStale) << "the kernel has not its size";
  EXPECT_EQ(b.read_file("x").size(), 1500u);
}

// As of a node that moves a body out of a pack: its record has a new version, with the bytes of the former one.
TEST_F(StorePeerRewrites, AFileOfWhichTheBytesLieElsewhereNowIsOpenedAtOnce) {
  const std::string content = TestStore::payload(1, 300'000);
  ASSERT_TRUE(a.write_file("x", content));
  publish();
  const ObjectId known = look("x");
  Handle* held = b.open("x", {.read = true});
  Handle* writer = a.open("x", {.write = true});
  a.pwrite(writer, 0, content);
  ASSERT_TRUE(a.close(writer));
  publish();
  EXPECT_EQ(try_open(known, {.read = true}), Code::kNoData);
  EXPECT_FALSE(b->peer_state(held)->load().valid()) << "it is no former state";
  b->drop_caches();
  EXPECT_TRUE(b.read(held) == content);
  EXPECT_TRUE(b.close(held));
}

// The kernel repeats an open that was answered ESTALE once, and gives a second ESTALE to the program.
TEST_F(StorePeerRewrites, TheFileIsChangedAndRemovedBetweenTheLookupAndTheOpen) {
  store_at_a("x", 1);
  publish();
  refuse("x");
  const ObjectId found = look("x");
  grow_at_a("x", 1000);
  ASSERT_TRUE(a.unlink("x"));
  publish();
  write_at_last(found, 3);
  publish();
  EXPECT_FALSE(b.exists("x"));
}

TEST_F(StorePeerRewrites, TheFileIsFoundToBeDamagedBetweenTheLookupAndTheOpen) {
  ASSERT_TRUE(a.write_file("x", TestStore::payload(1, 300'000)));
  publish();
  grow_at_a("x", 300'500);
  ASSERT_EQ(try_open(look("x"), {.read = true}), Code::kStale);
  const ObjectId found = look("x");
  a.flip_in_extents(TestStore::payload(2, 500).substr(100, 64));
  ASSERT_EQ(b.try_read_file("x"), Code::kCorrupt);
  EXPECT_EQ(try_open(found, {.read = true}), Code::kNotFound);
}

TEST_F(StorePeerRewrites, AnOpenWithoutANameIsNotToldTwiceAlsoIfTheFormerStateIsNotShownAnyMore) {
  store_at_a("x", 1);
  publish();
  const ObjectId known = look("x");
  grow_at_a("x", 1000);
  EXPECT_TRUE(b->told_stale({.read = true}, kWriter, known)) << "others have the former state open";
  EXPECT_FALSE(b->told_stale({.read = true}, kWriter, known)) << "/proc/self/fd/3: nothing was looked up";
  EXPECT_EQ(try_open(known, {.read = true}), Code::kNoData) << "they have closed it";
  EXPECT_EQ(try_open(known, {.read = true}), Code::kStale) << "another call";
  const OpenRequest change{.read = true, .write = true};
  EXPECT_TRUE(b->told_stale(change, kOther, known));
  EXPECT_FALSE(b->told_stale(change, kOther, known));
  EXPECT_FALSE(b->told_stale(change, kOther)) << "it is passed through to others, too";
}

// Of processes in a PID namespace that is not visible here.
TEST_F(StorePeerRewrites, ThreadsThatCannotBeToldApartOpenTheStateThatIsShown) {
  store_at_a("x", 1);
  ASSERT_TRUE(b.write_file("own", TestStore::payload(2, 500)));
  publish();
  const ObjectId known = look("x"), own = look("own");
  for (int time = 0; time < 2; ++time) EXPECT_FALSE(b->told_stale({.read = true}, {}, known));
  EXPECT_TRUE(b->told_stale({.read = true}, {}, own)) << "a file of this node is seen as it is now";
}

TEST_F(StorePeerRewrites, TheRefusedFileWasRenamedMeanwhileAndAnotherHasItsName) {
  store_at_a("x", 1);
  publish();
  refuse("x");
  ASSERT_TRUE(a.rename("x", "y"));
  replace_at_a("x", 2);
  publish();
  repeat("x", 3);
  expect_on_both("x", 3);
  expect_on_both("y", 1);
}

TEST_F(StorePeerRewrites, TheRefusedFileHasAnotherNameStill) {
  store_at_a("x", 1);
  ASSERT_TRUE(link(a, "x", "linked"));
  publish();
  refuse("x");
  replace_at_a("x", 2);
  publish();
  repeat("x", 3);
  expect_on_both("x", 3);
  expect_on_both("linked", 1);
}

TEST_F(StorePeerRewrites, ALinkedFileIsReplacedUnderThisNameAlone) {
  store_at_a("x", 1);
  ASSERT_TRUE(link(a, "x", "linked"));
  publish();
  refuse("x");
  repeat("x", 3);
  expect_on_both("x", 3);
  expect_on_both("linked", 1);
}

// An own file, not journaled yet, that was renamed a moment ago: the kernel may mean the old name.
TEST_F(StorePeerRewrites, TheRefusedFileIsOneOfThisNode) {
  store_at_a("x", 1);
  publish();
  ASSERT_TRUE(b.write_file("tmp", TestStore::payload(2, 500)));
  ASSERT_TRUE(b.rename("tmp", "y"));
  refuse("y");
  repeat("x", 3);  // a symbolic link leads to another name than before
  expect_on_both("x", 3);
  expect_on_both("y", 2);
}

TEST_F(StorePeerRewrites, TheKernelMayLookTwice) {
  store_at_a("x", 1);
  publish();
  refuse("x");
  const ObjectId first = look("x");
  EXPECT_EQ(look("x"), first);
  const auto stat = b->stat(first);  // it may check the mode before it opens
  ASSERT_TRUE(stat) << stat.error().message;
  EXPECT_EQ(stat->id, first);
  EXPECT_EQ(stat->size_bytes, 500u);
  write_at_last(first, 3);
  EXPECT_EQ(look("x"), first);
  expect_on_both("x", 3);
}

TEST_F(StorePeerRewrites, WhatIsLookedUpAndNotRewrittenStays) {
  store_at_a("x", 1);
  publish();
  refuse("x");  // and the path leads nowhere when the kernel looks again
  const auto found = b->lookup(kRootId, "x", kWriter);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->size_bytes, 500u);
  EXPECT_EQ(try_open(found->id, {}), Code::kStale);
  EXPECT_EQ(try_open(look("x"), {}), Code::kNoData);
  expect_on_both("x", 1);
}

TEST_F(StorePeerRewrites, AnOpenThatWasNotRepeatedDoesNotSpoilTheNext) {
  store_at_a("x", 1);
  store_at_a("y", 1);
  publish();
  const ObjectId known = look("y");
  refuse("x");
  look("x");  // and it was a symbolic link too many
  EXPECT_EQ(try_open(known), Code::kStale) << "the first try of this open";
  repeat("y", 3);
  expect_on_both("y", 3);
  expect_on_both("x", 1);
}

TEST_F(StorePeerRewrites, WithoutANameTheFileStays) {
  store_at_a("x", 1);
  publish();
  const ObjectId known = look("x");
  EXPECT_EQ(try_open(known), Code::kStale);
  EXPECT_EQ(try_open(known), Code::kReadOnly) << "/proc/self/fd/3: nothing was looked up";
  expect_on_both("x", 1);
}

// As if it had been removed while it was open; a file that another client made since is written anew.
TEST_F(StorePeerRewrites, TheNameIsGoneOrAnothersBetweenTheLookupAndTheOpen) {
  for (const bool is_replaced : {false, true}) {
    store_at_a("x", 1);
    publish();
    refuse("x");
    const ObjectId found = look("x");
    ASSERT_TRUE(b.unlink("x"));
    if (is_replaced) {
      ASSERT_TRUE(b.write_file("x", TestStore::payload(2, 500), kOther.thread_id));
    }
    auto opened = b->open(found, kRewrite, kWriter);
    ASSERT_TRUE(opened) << opened.error().message;
    b.pwrite(*opened, 0, TestStore::payload(3, 500));
    b.settle();
    ASSERT_TRUE(b.close(*opened));
    publish();
    EXPECT_EQ(b.exists("x"), is_replaced);
    if (is_replaced) expect_on_both("x", 3);
    EXPECT_EQ(b->status().objects_total, is_replaced ? 1u : 0u);
    EXPECT_EQ(b->status().live_bytes, is_replaced ? 4 * kKiB : 0);
  }
}

// Both were refused before either had looked again.
TEST_F(StorePeerRewrites, OfTwoThreadsAtOnceEachRenamesItsOwnFile) {
  store_at_a("x.tmp", 1);
  publish();
  for (const Caller& caller : {kWriter, kOther}) {
    const auto opened = b->open(look("x.tmp", caller), kRewrite, caller);
    ASSERT_FALSE(opened);
    ASSERT_EQ(opened.error().code, Code::kStale);
  }
  const ObjectId first = look("x.tmp", kWriter), second = look("x.tmp", kOther);
  auto one = b->open(first, kRewrite, kWriter);
  ASSERT_TRUE(one) << one.error().message;
  auto other = b->open(second, kRewrite, kOther);
  ASSERT_TRUE(other) << other.error().message;
  b.pwrite(*one, 0, TestStore::payload(2, 500));
  b.pwrite(*other, 0, TestStore::payload(3, 500));
  ASSERT_TRUE(b.close(*other));
  ASSERT_TRUE(b.rename("x.tmp", "other", kOther.thread_id));
  ASSERT_TRUE(b.close(*one));
  ASSERT_TRUE(b.rename("x.tmp", "one", kWriter.thread_id));
  expect_on_both("one", 2);
  expect_on_both("other", 3);
  EXPECT_FALSE(b.exists("x.tmp"));
}

// Each closes its file; then they hear of each other, and rename. Whether the first one's journal has its file by then, and whether the second has read that.
struct StorePeerRenames : StorePeerRewrites, ::testing::WithParamInterface<const char*> {
  const std::string how = GetParam();
  const uint32_t first = static_cast<uint32_t>(getpid()), second = 1;
  void write_at_both() {
    ASSERT_TRUE(a.write_file("x.tmp", TestStore::payload(1, 500'000), first));
    if (how != "born later") publish();
    if (how == "replaced") {
      auto opened = b.open_for_rewrite("x.tmp", second);
      ASSERT_NE(opened, nullptr);
      b.pwrite(opened, 0, TestStore::payload(2, 500'000));
      ASSERT_TRUE(b.close(opened));
    } else {
      if (how == "removed before") {
        ASSERT_TRUE(b.unlink("x.tmp"));
      }
      ASSERT_TRUE(b.write_file("x.tmp", TestStore::payload(2, 500'000), second));
    }
    publish();
    EXPECT_EQ(a.read_file("x.tmp"), TestStore::payload(2, 500'000)) << "seen at once";
  }
  void expect_large(const std::string& name, int seed) {
    for (TestStore* node : {&a, &b}) EXPECT_TRUE(node->read_file(name) == TestStore::payload(seed, 500'000)) << name;
    EXPECT_EQ(a.contents(), b.contents());
  }
};

TEST_P(StorePeerRenames, EachNodeRenamesTheFileThatItsClientWrote) {
  write_at_both();
  ASSERT_TRUE(a.rename("x.tmp", "first", first));
  ASSERT_TRUE(b.rename("x.tmp", "second", second));
  for (int read = 0; read < 2; ++read) {
    publish();
    expect_large("first", 1);
    expect_large("second", 2);
    for (TestStore* node : {&a, &b}) EXPECT_FALSE(node->exists("x.tmp"));
  }
  a.remount();
  publish();
  expect_large("first", 1);
}

TEST_P(StorePeerRenames, ToOneNameOneOfThemWinsOnBothNodes) {
  write_at_both();
  ASSERT_TRUE(b.rename("x.tmp", "x", second));
  publish();
  ASSERT_TRUE(a.rename("x.tmp", "x", first));
  publish();
  expect_large("x", 1);
  for (TestStore* node : {&a, &b}) EXPECT_FALSE(node->exists("x.tmp"));
}

TEST_P(StorePeerRenames, OnlyItsWriterSeesItWhereNothingElseHasTheName) {
  write_at_both();
  ASSERT_TRUE(b.rename("x.tmp", "x", second));
  publish();
  if (how == "born later") return;  // the first one's is not hidden any more
  EXPECT_FALSE(a->lookup(kRootId, "x.tmp", {.thread_id = second}));
  const auto seen = a->lookup(kRootId, "x.tmp", {.thread_id = first});
  ASSERT_TRUE(seen) << seen.error().message;
  EXPECT_EQ(seen->size_bytes, 500'000U);
  EXPECT_TRUE(seen->brief);
  const auto opened = a->open(seen->id, kRewrite, {.thread_id = first});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kStale);
  EXPECT_FALSE(a->lookup(kRootId, "x.tmp", {.thread_id = first})) << "the kernel creates it";
  ASSERT_TRUE(a.write_file("x.tmp", TestStore::payload(3, 500'000), first));
  ASSERT_TRUE(a.rename("x.tmp", "y", first));
  publish();
  expect_large("y", 3);
  expect_large("x", 2);
}

TEST_P(StorePeerRenames, AFileThatIsNotRenamedHoldsNoSpaceAfterTheMount) {
  write_at_both();
  a.remount();
  publish();
  ASSERT_TRUE(b.unlink("x.tmp"));
  publish();
  for (TestStore* node : {&a, &b}) EXPECT_EQ((*node)->status().live_bytes, 0U);
  EXPECT_EQ(a->status().objects_total, 0U);
}

INSTANTIATE_TEST_SUITE_P(All, StorePeerRenames, ::testing::Values("born later", "replaced", "removed before"),
                         [](const auto& each) { return std::string(each.param).substr(0, 4); });

TEST_F(StorePeerRewrites, OfTwoThreadsThatWriteANameInPlaceTheLastOneWins) {
  store_at_a("x", 1);
  publish();
  for (const Caller& caller : {kWriter, kOther}) ASSERT_FALSE(b->open(look("x", caller), kRewrite, caller));
  const ObjectId first = look("x", kOther), second = look("x", kWriter);
  auto one = b->open(first, kRewrite, kOther);
  ASSERT_TRUE(one) << one.error().message;
  b.pwrite(*one, 0, TestStore::payload(2, 500));
  ASSERT_TRUE(b.close(*one));
  write_at_last(second, 3);
  expect_on_both("x", 3);
}

TEST_F(StorePeerRewrites, AnotherFileOfTheOtherNodeIsThereBetweenTheLookupAndTheOpen) {
  store_at_a("x", 1);
  publish();
  refuse("x");
  const ObjectId found = look("x");
  replace_at_a("x", 2);
  publish();
  write_at_last(found, 3);
  expect_on_both("x", 3);
}

// The kernel asks to create a name that it does not know; then the directory turns out to be gone, and is there anew.
TEST_F(StorePeerRewrites, ACreateThatIsRepeatedMayOpen) {
  store_at_a("x", 1);
  publish();
  ASSERT_TRUE(b->may_look_again(kWriter, /*by_name=*/true, kRewrite));
  repeat("x", 3);
  expect_on_both("x", 3);
}

}  // namespace store_peer_rewrites_test
}  // namespace kvcachefs

// Two nodes of one volume, driven from one thread: whatever they do to the same names, in the end both see one tree.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "store/base/units.h"
#include "store/peers/part_size.h"
#include "store/testing/settling.h"
#include "store/testing/test_store.h"

namespace kvcachefs {
namespace store_peers_test {

using testing::await;
using testing::link;
using testing::TestStore;

class StorePeers : public ::testing::Test {
 protected:
  void publish() { testing::publish(a, &b); }
  void expect_one_tree() { EXPECT_EQ(a.contents(), b.contents()); }
  // What the directory has as soon as a refresh is answered, when the node's journal does not tell its own answers yet.
  static std::set<std::string> names_upon_refresh(TestStore& node, const std::string& directory) {
    bool answered = false;
    std::set<std::string> found;
    node->refresh([&](const Status& status) {
      answered = true;
      EXPECT_TRUE(status) << status.error().message;
      const auto at = node->lookup(kRootId, directory, {});
      const auto items = at ? node->list(at->id, 0, 100) : fail(Code::kNotFound, directory);
      EXPECT_TRUE(items) << items.error().message;
      if (!items) return;
      for (const DirectoryItem& item : *items) {
        EXPECT_TRUE(node->lookup(at->id, item.name, {})) << item.name;
        found.insert(item.name);
      }
    });
    for (int i = 0; i < 10'000 && !answered; ++i) node->pump();
    EXPECT_TRUE(answered);
    return found;
  }

  TestStore a;
  TestStore b{testing::node_options("other"), a};
};

// A `chmod -R` over millions of a peer's files: each is refused, and none of them stays in RAM for it.
TEST_F(StorePeers, WhatIsRefusedLeavesNothingInRam) {
  ASSERT_TRUE(a.write_file("f", TestStore::payload(1, 5000)));
  ASSERT_TRUE(a.write_file("linked", TestStore::payload(2, 5000)));
  ASSERT_TRUE(link(a, "linked", "twice"));
  b.mkdir("d");
  publish();
  b.settle();
  b->drop_caches();
  const ObjectId id = testing::find(b, "f").id;
  const auto in_ram = [&] { return b->status().objects_in_ram; };
  const uint64_t before = in_ram();
  using Wanted = SetAttributes;
  const auto change = [&](ObjectId which, auto field, auto value) {
    Wanted wanted;
    wanted.*field = value;
    auto done = await<Stat>(b, [&](auto reply) { b->set_attributes(which, nullptr, wanted, {.thread_id = 1}, std::move(reply)); });
    return done ? Code::kNoData : done.error().code;
  };
  EXPECT_EQ(change(id, &Wanted::mode, 0600), Code::kReadOnly);
  EXPECT_EQ(in_ram(), before) << "chmod";
  EXPECT_EQ(change(id, &Wanted::uid, 1), Code::kReadOnly);
  EXPECT_EQ(in_ram(), before) << "chown";
  EXPECT_EQ(change(id, &Wanted::size_bytes, 7), Code::kReadOnly);
  EXPECT_EQ(in_ram(), before) << "truncate";
  EXPECT_EQ(change(id, &Wanted::size_bytes, 5000), Code::kNoData);
  EXPECT_EQ(change(id, &Wanted::mtime_ns, 7), Code::kNoData);
  EXPECT_EQ(in_ram(), before) << "utimes, which is not refused";
  EXPECT_FALSE(b->set_xattr(id, "user.a", "1", XattrMode::kAny));
  EXPECT_FALSE(b->set_pinned(id, true));
  EXPECT_FALSE(link(b, "f", "other"));
  EXPECT_FALSE(b->open(id, {.write = true, .truncate = true}, {}));
  EXPECT_FALSE(b.rename("f", "g"));
  EXPECT_EQ(in_ram(), before) << "others";
  EXPECT_EQ(change(testing::find(b, "d").id, &Wanted::size_bytes, 7), Code::kIsDirectory);
  EXPECT_EQ(in_ram(), before) << "an own directory";
  ASSERT_TRUE(b.unlink("twice"));
  ASSERT_TRUE(b.write_file("new", TestStore::payload(3, 100)));
  publish();
  b.settle();
  b->drop_caches();
  EXPECT_LE(in_ram(), before) << "one that has another name";
}

TEST_F(StorePeers, OneReadsWhatTheOtherStored) {
  a.mkdir("d");
  ASSERT_TRUE(a.write_file("d/small", TestStore::payload(1, 100)));
  ASSERT_TRUE(a.write_file("d/large", TestStore::payload(2, 3 * kMiB)));
  publish();
  EXPECT_EQ(b.read_file("d/small"), TestStore::payload(1, 100));
  EXPECT_EQ(b.read_file("d/large"), TestStore::payload(2, 3 * kMiB));
  ASSERT_TRUE(b.write_file("d/back", TestStore::payload(3, 5000)));
  publish();
  EXPECT_EQ(a.read_file("d/back"), TestStore::payload(3, 5000));
  b.remount();
  EXPECT_EQ(b.read_file("d/back"), TestStore::payload(3, 5000));
  publish();
  EXPECT_EQ(b.read_file("d/large"), TestStore::payload(2, 3 * kMiB));
}

TEST_F(StorePeers, WhatIsReplacedOrRemovedIsGoneForBothAndItsSpaceComesBack) {
  ASSERT_TRUE(a.write_file("x", TestStore::payload(1, 2 * kMiB)));
  ASSERT_TRUE(a.write_file("y", TestStore::payload(2, 2 * kMiB)));
  publish();
  const uint64_t before = a->status().live_bytes;
  ASSERT_TRUE(b.write_file("tmp", TestStore::payload(3, 1000)));
  ASSERT_TRUE(b.rename("tmp", "x"));
  ASSERT_TRUE(b.unlink("y"));
  EXPECT_FALSE(b.exists("y"));
  publish();
  EXPECT_EQ(a.read_file("x"), TestStore::payload(3, 1000));
  EXPECT_FALSE(a.exists("y"));
  EXPECT_EQ(a->status().live_bytes, before - 4 * kMiB);
  expect_one_tree();
}

// Two stored one name before they had heard of each other: one of the files is hidden. Whatever a client of its node does to the name, that
// file goes with what was seen, also while it is in RAM.
TEST_F(StorePeers, WhatIsHiddenByAnotherNodesFileGoesWithTheName) {
  const auto store = [](TestStore& node, int seed) {
    ASSERT_TRUE(node.write_file("tmp", TestStore::payload(seed, 2 * kMiB)));
    ASSERT_TRUE(node.rename("tmp", "x"));
  };
  for (const char* how : {"replaced", "rewritten", "removed"}) {
    store(a, 1);
    a.drain();
    EXPECT_EQ(a.read_file("x"), TestStore::payload(1, 2 * kMiB));
    store(b, 2);  // later
    b.drain();
    publish();
    EXPECT_EQ(a.read_file("x"), TestStore::payload(2, 2 * kMiB)) << how;
    const std::string told = how;
    if (told == "replaced") store(a, 3);
    if (told == "rewritten") {
      Handle* writer = a.open_for_rewrite("x", 7);
      ASSERT_NE(writer, nullptr);
      a.pwrite(writer, 0, TestStore::payload(3, 2 * kMiB));
      ASSERT_TRUE(a.close(writer));
    }
    if (told == "removed") {
      ASSERT_TRUE(a.unlink("x"));
    }
    publish();
    a->drop_caches();
    publish();
    const bool there = told != "removed";
    EXPECT_EQ(a.exists("x"), there) << how;
    EXPECT_EQ(a->status().live_bytes, there ? 2 * kMiB : 0) << how;
    EXPECT_EQ(a->status().objects_total, there ? 1u : 0u) << how;
    EXPECT_EQ(b->status().live_bytes, 0u) << how;
    if (there) {
      ASSERT_TRUE(a.unlink("x"));
    }
    publish();
    EXPECT_EQ(a->status().objects_total, 0u) << how;
    expect_one_tree();
  }
}

TEST_F(StorePeers, ARewriteOfWhatAnotherNodesFileHidBetweenTheTwoTriesGivesTheWriterAFileOfItsOwn) {
  const OpenRequest rewrite{.read = false, .write = true, .truncate = true};
  ASSERT_TRUE(a.write_file("tmp", TestStore::payload(1, 1000)));
  ASSERT_TRUE(a.rename("tmp", "x"));
  const auto known = a->lookup(kRootId, "x", {.thread_id = 7});
  ASSERT_TRUE(known);
  const auto refused = a->open(known->id, rewrite, {.thread_id = 7});
  ASSERT_FALSE(refused);
  ASSERT_EQ(refused.error().code, Code::kStale) << "it was renamed a moment ago";
  ASSERT_TRUE(b.write_file("tmp2", TestStore::payload(2, 1000)));
  ASSERT_TRUE(b.rename("tmp2", "x"));
  publish();
  const auto again = a->lookup(kRootId, "x", {.thread_id = 7});
  ASSERT_TRUE(again);
  auto handle = a->open(again->id, rewrite, {.thread_id = 7});
  ASSERT_TRUE(handle) << handle.error().message;
  a.pwrite(*handle, 0, TestStore::payload(3, 500));
  ASSERT_TRUE(a.close(*handle));
  publish();
  EXPECT_EQ(b.read_file("x"), TestStore::payload(3, 500));
  expect_one_tree();
}

TEST_F(StorePeers, ARewriteGivesTheWriterAFileOfItsOwn) {
  ASSERT_TRUE(a.write_file("x", TestStore::payload(1, 100'000)));
  publish();
  Handle* handle = b.open_for_rewrite("x", 7);
  ASSERT_NE(handle, nullptr);
  b.pwrite(handle, 0, TestStore::payload(2, 50'000));
  ASSERT_TRUE(b.close(handle));
  publish();
  EXPECT_EQ(a.read_file("x"), TestStore::payload(2, 50'000));
  expect_one_tree();
}

TEST_F(StorePeers, ARewriteKeepsModeAndExtendedAttributes) {
  ASSERT_TRUE(a.write_file("x", TestStore::payload(1, 1000)));
  const ObjectId id = testing::find(a, "x").id;
  ASSERT_TRUE(a->set_xattr(id, "user.note", "kept", XattrMode::kAny));
  ASSERT_TRUE(a->set_pinned(id, true));
  SetAttributes wanted;
  wanted.mode = 0604;
  ASSERT_TRUE(await<Stat>(a, [&](auto reply) { a->set_attributes(id, nullptr, wanted, {.thread_id = 1}, std::move(reply)); }));
  publish();
  Handle* const handle = b.open_for_rewrite("x", 7);
  ASSERT_NE(handle, nullptr);
  b.pwrite(handle, 0, TestStore::payload(2, 500));
  ASSERT_TRUE(b.close(handle));
  publish();
  for (TestStore* node : {&a, &b}) {
    EXPECT_EQ(node->read_file("x"), TestStore::payload(2, 500));
    const Stat now = testing::find(*node, "x");
    EXPECT_EQ(now.mode & 0777, 0604U);
    EXPECT_EQ((*node)->get_xattr(now.id, "user.note").value_or(""), "kept");
    EXPECT_EQ((*node)->list_xattrs(now.id).value(), std::vector<std::string>{"user.note"});
  }
}

TEST_F(StorePeers, WhoHasItOpenReadsOnWhatWasReplacedInPlace) {
  ASSERT_TRUE(a.write_file("x", TestStore::payload(1, 1 * kMiB)));
  publish();
  Handle* reader = b.open("x", {.read = true});
  ASSERT_NE(reader, nullptr);
  EXPECT_EQ(b.read_file("x"), TestStore::payload(1, 1 * kMiB));
  Handle* writer = a.open_for_rewrite("x", 7);
  a.pwrite(writer, 0, TestStore::payload(2, 10'000));
  ASSERT_TRUE(a.close(writer));
  publish();
  EXPECT_TRUE(b.close(reader));
  EXPECT_EQ(b.read_file("x"), TestStore::payload(2, 10'000));
}

// Each open keeps the state that it opened; the name means the last one. Its node appends, cuts, and rewrites all of it.
TEST_F(StorePeers, WhatWasChangedInPlaceIsFoundByWhoOpensItNextThoughOthersHaveItOpen) {
  const auto expect = [&](Handle* handle, const std::string& content, int64_t mtime_ns) {
    EXPECT_TRUE(b.read(handle) == content) << "not what was opened";
    const PeerState state = b->peer_state(handle);
    ASSERT_TRUE(state);
    const auto stat = b->stat(state->load().valid() ? state->load() : b->object_of(handle));
    ASSERT_TRUE(stat) << stat.error().message;
    EXPECT_EQ(stat->id, b->object_of(handle));
    EXPECT_EQ(stat->size_bytes, content.size());
    EXPECT_EQ(stat->mtime_ns, mtime_ns);
  };
  struct Reader {
    Handle* handle;
    std::string content;
    int64_t mtime_ns;
  };
  std::vector<Reader> readers;
  std::string content = TestStore::payload(1, 300'000);
  ASSERT_TRUE(a.write_file("x", content));
  const ObjectId id = testing::find(a, "x").id;
  for (int step = 0; step < 4; ++step) {
    if (step > 0) {
      Handle* const writer = step < 3 ? a.open("x", {.read = true, .write = true}) : a.open_for_rewrite("x", 7);
      ASSERT_NE(writer, nullptr);
      if (step == 1) {
        a.pwrite(writer, content.size(), "more");
        content += "more";
      } else if (step == 2) {
        SetAttributes cut;
        cut.size_bytes = 70'000;
        ASSERT_TRUE(await<Stat>(a, [&](auto reply) { a->set_attributes(id, writer, cut, {.thread_id = 7}, std::move(reply)); }));
        content.resize(70'000);
      } else {
        content = TestStore::payload(2, 300'000);
        a.pwrite(writer, 0, content);
      }
      ASSERT_TRUE(a.close(writer));
    }
    publish();
    const Stat now = testing::find(b, "x");
    EXPECT_EQ(now.size_bytes, content.size());
    EXPECT_EQ(now.mtime_ns, testing::find(a, "x").mtime_ns);
    Handle* const reader = b.open("x", {.read = true});
    ASSERT_NE(reader, nullptr);
    readers.push_back({reader, content, now.mtime_ns});
    for (const Reader& each : readers) expect(each.handle, each.content, each.mtime_ns);
  }
  for (const Reader& each : readers) EXPECT_TRUE(b.close(each.handle));
  EXPECT_TRUE(b.read_file("x") == content);
  EXPECT_EQ(b->status().errors_checksum, 0u);
}

// A copy by size and time, taken of such a file on the other node, or after a crash, would pass for one of the new bytes.
TEST_F(StorePeers, TheTimesOfAChangeInPlaceComeWithItsBytes) {
  const auto expect = [](TestStore& node, int seed, int64_t mtime_ns) {
    EXPECT_TRUE(node.read_file("x") == TestStore::payload(seed, 300'000));
    const Stat stat = testing::find(node, "x");
    EXPECT_EQ(stat.mtime_ns, mtime_ns);
    EXPECT_EQ(node->get_xattr(stat.id, "user.note").value_or(""), "told");
  };
  ASSERT_TRUE(a.write_file("x", TestStore::payload(1, 300'000)));
  const Stat before = testing::find(a, "x");
  const auto change = [&](int seed, int64_t mtime_ns) {
    Handle* const writer = a.open("x", {.read = true, .write = true});
    a.pwrite(writer, 0, TestStore::payload(seed, 300'000));
    EXPECT_TRUE(a->set_xattr(before.id, "user.note", "told", XattrMode::kAny));
    SetAttributes times;
    times.mtime_ns = mtime_ns;
    EXPECT_TRUE(await<Stat>(a, [&](auto reply) { a->set_attributes(before.id, writer, times, {.thread_id = 1}, std::move(reply)); }));
    return writer;
  };
  publish();
  Handle* writer = change(2, 5);
  publish();
  expect(a, 2, 5);
  expect(b, 1, before.mtime_ns);
  a->release(writer);  // the test's memory; nothing follows from it before the crash
  a.crash();
  publish();
  expect(a, 1, before.mtime_ns);
  writer = change(3, 6);
  EXPECT_TRUE(sync_file(a, writer));
  a->release(writer);
  a.crash();
  publish();
  expect(a, 3, 6);
  expect(b, 3, 6);
}

// A temporary name that the other node removed stays with the file that is open for writing, and only as long as that is so.
class StorePeersTakenFile : public StorePeers {
 protected:
  // Half of it is in the journal of a.
  void take() {
    a.mkdir("d");
    handle_ = a.create("d/x.tmp");
    a.pwrite(handle_, 0, TestStore::payload(1, 5000));
    EXPECT_TRUE(sync_file(a, handle_));
    publish();
    ASSERT_TRUE(b.unlink("d/x.tmp"));
    ASSERT_TRUE(b.rmdir("d"));
    publish();
    EXPECT_TRUE(a.exists("d/x.tmp"));
    EXPECT_FALSE(b.exists("d/x.tmp"));
  }
  Handle* handle_ = nullptr;
};

TEST_F(StorePeersTakenFile, DoesNotComeBackWhenItsNodeDies) {
  take();
  a->release(handle_);  // the test's memory; nothing follows from it before the crash
  a.crash();
  publish();
  EXPECT_FALSE(a.exists("d/x.tmp"));
  EXPECT_FALSE(b.exists("d/x.tmp"));
  ASSERT_TRUE(a.write_file("d/y", "y"));
  publish();
  expect_one_tree();
}

TEST_F(StorePeersTakenFile, IsRenamedWhole) {
  take();
  a.pwrite(handle_, 5000, TestStore::payload(2, 5000));
  EXPECT_TRUE(sync_file(a, handle_));
  publish();
  ASSERT_TRUE(a.rename("d/x.tmp", "d/x"));
  EXPECT_TRUE(a.close(handle_));
  publish();
  EXPECT_FALSE(a.exists("d/x.tmp"));
  for (TestStore* node : {&a, &b}) EXPECT_EQ(node->read_file("d/x"), TestStore::payload(1, 5000) + TestStore::payload(2, 5000));
  a.crash();
  publish();
  EXPECT_EQ(a.read_file("d/x"), TestStore::payload(1, 5000) + TestStore::payload(2, 5000));
  expect_one_tree();
}

TEST_F(StorePeersTakenFile, TakesItsDirectoryAlong) {
  take();
  EXPECT_TRUE(a.close(handle_));
  ASSERT_TRUE(a.unlink("d/x.tmp"));
  publish();
  publish();
  EXPECT_FALSE(a.exists("d"));
  EXPECT_FALSE(b.exists("d"));
  a.remount();
  publish();
  EXPECT_FALSE(a.exists("d"));
}

TEST_F(StorePeersTakenFile, GoesAtAnUnmount) {
  take();
  EXPECT_TRUE(a.close(handle_));
  a.remount();
  publish();
  EXPECT_FALSE(a.exists("d/x.tmp"));
  EXPECT_FALSE(b.exists("d/x.tmp"));
}

// A program that gets EXDEV copies the file: it would take that of the other writer for its own.
TEST_F(StorePeers, WhatTookTheNameOfAFileIsNotLinkedByTheWriterOfThatFile) {
  ASSERT_TRUE(a.write_file("x.tmp", TestStore::payload(1, 5000), 1));
  publish();
  ASSERT_TRUE(b.unlink("x.tmp"));
  ASSERT_TRUE(b.write_file("x.tmp", TestStore::payload(2, 5000)));
  publish();
  ASSERT_EQ(a.read_file("x.tmp"), TestStore::payload(2, 5000));
  const auto link_by = [&](uint32_t thread) {
    const auto linked = await<Stat>(a, [&](auto done) { a->link(testing::find(a, "x.tmp").id, kRootId, "x", {.thread_id = thread}, std::move(done)); });
    return linked ? Code::kNoData : linked.error().code;
  };
  EXPECT_EQ(link_by(1), Code::kAbsentForNow);
  EXPECT_EQ(link_by(static_cast<uint32_t>(getpid())), Code::kOtherNode);
  ASSERT_TRUE(a.rename("x.tmp", "x", 1));
  EXPECT_EQ(a.read_file("x"), TestStore::payload(1, 5000));
  EXPECT_EQ(a.read_file("x.tmp"), TestStore::payload(2, 5000));
}

// Files of the volume that were removed and take room all the same, for this process has them open.
size_t removed_and_open(const std::string& root) {
  size_t count = 0;
  std::error_code ignored;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    const std::string target = std::filesystem::read_symlink(each.path(), ignored).string();
    count += target.starts_with(root) && target.ends_with(" (deleted)");
  }
  return count;
}

TEST_F(StorePeers, WhatAnotherNodeRemovedIsNotKeptOpen) {
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(a.write_file("tmp", TestStore::payload(i, 33 * kMiB)));
    ASSERT_TRUE(a.rename("tmp", "x"));
    publish();
    EXPECT_TRUE(b.read_file("x") == TestStore::payload(i, 33 * kMiB)) << i;
    b->drop_caches();
  }
  ASSERT_TRUE(a.unlink("x"));
  for (int i = 0; i < 3000 && (a->status().reclaimable_bytes > 0 || removed_and_open(a.root()) > 0); ++i) {
    publish();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(a->status().reclaimable_bytes, 0u);
  EXPECT_EQ(removed_and_open(a.root()), 0u);
}

// A file that was never renamed and is open for writing on its node, written since the other node read it or not.
enum class Open { kAnew, kSynced, kWritten, kMadeAndSynced };
class StorePeersOpenToWrite : public StorePeers, public ::testing::WithParamInterface<Open> {
 protected:
  Handle* make(const std::string& path, int seed) {
    Handle* handle = nullptr;
    if (GetParam() == Open::kMadeAndSynced) {
      handle = a.create(path, 7);
      a.pwrite(handle, 0, TestStore::payload(seed, 1000));
    } else {
      EXPECT_TRUE(a.write_file(path, TestStore::payload(seed, 1000), 7));
      handle = a.open(path, {.read = true, .write = true}, 7);
    }
    if (GetParam() == Open::kSynced) a.pwrite(handle, 0, TestStore::payload(seed, 1000));
    if (GetParam() != Open::kAnew) sync(handle);
    publish();
    EXPECT_EQ(b.read_file(path), TestStore::payload(seed, 1000));
    if (GetParam() == Open::kWritten) a.pwrite(handle, 0, TestStore::payload(seed, 10));
    return handle;
  }
  void sync(Handle* handle) {
    EXPECT_TRUE(testing::sync_file(a, handle));
  }
  // Now, after the close and after new mounts.
  void expect_for_good(Handle* handle, int seed, const std::map<std::string, std::string>& wanted) {
    publish();
    EXPECT_EQ(a.contents(), wanted);
    EXPECT_EQ(b.contents(), wanted);
    a.pwrite(handle, 1000, TestStore::payload(9, 500));
    sync(handle);
    EXPECT_EQ(a.read(handle), TestStore::payload(seed, 1000) + TestStore::payload(9, 500)) << "without a name";
    EXPECT_TRUE(a.close(handle));
    publish();
    EXPECT_EQ(a.contents(), wanted);
    b.unmount();
    a.remount();
    b.mount();
    publish();
    EXPECT_EQ(a.contents(), wanted);
    EXPECT_EQ(b.contents(), wanted);
  }
};

INSTANTIATE_TEST_SUITE_P(All, StorePeersOpenToWrite, ::testing::Values(Open::kAnew, Open::kSynced, Open::kWritten, Open::kMadeAndSynced));

TEST_P(StorePeersOpenToWrite, IsRemoved) {
  Handle* const handle = make("x", 1);
  ASSERT_TRUE(b.unlink("x"));
  expect_for_good(handle, 1, {});
}

TEST_P(StorePeersOpenToWrite, IsRemovedWithItsDirectory) {
  a.mkdir("d");
  Handle* const handle = make("d/x", 1);
  ASSERT_TRUE(b.unlink("d/x"));
  ASSERT_TRUE(b.rmdir("d"));
  expect_for_good(handle, 1, {});
}

// `mv`: another node's file is copied, then removed.
TEST_P(StorePeersOpenToWrite, IsMoved) {
  Handle* const handle = make("x", 1);
  ASSERT_TRUE(b.write_file("y", b.read_file("x")));
  ASSERT_TRUE(b.unlink("x"));
  publish();
  expect_for_good(handle, 1, {{"y", b.read_file("y")}});
}

TEST_P(StorePeersOpenToWrite, IsReplaced) {
  Handle* const handle = make("x", 1);
  ASSERT_TRUE(b.write_file("x.tmp", TestStore::payload(2, 700)));
  ASSERT_TRUE(b.rename("x.tmp", "x"));
  expect_for_good(handle, 1, {{"x", TestStore::payload(2, 700)}});
}

TEST_P(StorePeersOpenToWrite, IsReplacedByWhatIsRemovedThen) {
  Handle* const handle = make("x", 1);
  ASSERT_TRUE(b.write_file("x.tmp", TestStore::payload(2, 700)));
  ASSERT_TRUE(b.rename("x.tmp", "x"));
  publish();
  ASSERT_TRUE(b.unlink("x"));
  expect_for_good(handle, 1, {});
}

// Of what is open on another node nothing is given back; of "y", which is removed beside it, all is.
class StorePeersOpenFile : public StorePeers {
 protected:
  void SetUp() override {
    ASSERT_TRUE(a.write_file("x", TestStore::payload(1, 3 * kMiB)));
    ASSERT_TRUE(a.write_file("y", TestStore::payload(2, 3 * kMiB)));
    publish();
    reader_ = b.open("x", {.read = true});
    ASSERT_NE(reader_, nullptr);
  }
  // ACKS are written and read once a second or so.
  void until_dead_bytes(uint64_t bytes) {
    for (int i = 0; i < 3000 && a->status().reclaimable_bytes != bytes; ++i) {
      b.settle();
      a.settle();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_EQ(a->status().reclaimable_bytes, bytes);
  }
  // "x" as it was opened is given up, "y" is not yet.
  void expect_x_outlives_y() {
    ASSERT_TRUE(a.unlink("y"));
    a.settle();
    EXPECT_EQ(a->status().reclaimable_bytes, 6 * kMiB) << "nobody has told yet that it knows";
    until_dead_bytes(3 * kMiB);
    EXPECT_TRUE(b.read(reader_) == TestStore::payload(1, 3 * kMiB)) << "not what was opened";
    ASSERT_TRUE(b.close(reader_));
    until_dead_bytes(0);
    EXPECT_EQ(a->status().held_for_peers_bytes, 0u);
  }
  Handle* reader_ = nullptr;
};

TEST_F(StorePeersOpenFile, IsReadOnWhenItWasRemoved) {
  ASSERT_TRUE(a.unlink("x"));
  expect_x_outlives_y();
  EXPECT_FALSE(b.exists("x"));
}

TEST_F(StorePeersOpenFile, IsReadOnWhenAnotherWasRenamedOverIt) {
  ASSERT_TRUE(a.write_file("tmp", TestStore::payload(3, 1 * kMiB)));
  a.drain();
  ASSERT_TRUE(a.rename("tmp", "x"));
  expect_x_outlives_y();
  EXPECT_EQ(b.read_file("x"), TestStore::payload(3, 1 * kMiB));
}

// A body that is the same as the one it replaces takes over its place.
TEST_F(StorePeersOpenFile, IsReadOnWhenTheSameBytesWereStoredAgainAndRemoved) {
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(a.write_file("tmp", TestStore::payload(1, 3 * kMiB)));
    ASSERT_TRUE(a.rename("tmp", "x"));
    publish();
    EXPECT_EQ(a->status().live_bytes, 6 * kMiB) << "it is stored once";
  }
  ASSERT_TRUE(a.unlink("x"));
  expect_x_outlives_y();
}

// Nor does what is open keep back more than itself over the lives of its node, whose index had it that both were removed.
class StorePeersOpenFileOfALife : public StorePeersOpenFile, public ::testing::WithParamInterface<const char*> {
 protected:
  void begin_anew() {
    const std::string how = GetParam();
    for (int life = 0; life < (how == "KilledTwice" ? 2 : 1); ++life) {
      if (how == "Ended") a.remount();
      else a.crash();
      a.drain();
    }
  }
  void until_allocated(uint64_t bytes) {
    for (int i = 0; i < 3000 && a.allocated_bytes() > bytes + kSlackBytes; ++i) {
      b.settle();
      a.settle();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_LE(a.allocated_bytes(), bytes + kSlackBytes);
  }
  static constexpr uint64_t kSlackBytes = 64 * kKiB;  // ext4 counts the blocks of a file's extent tree
};

TEST_P(StorePeersOpenFileOfALife, HoldsNothingElse) {
  ASSERT_TRUE(a.write_file("kept", TestStore::payload(3, kMiB)));
  a.drain();
  ASSERT_TRUE(a.unlink("x"));
  ASSERT_TRUE(a.unlink("y"));
  const uint64_t commits = a->status().index_commits;
  for (int i = 0; i < 3000 && a->status().index_commits == commits; ++i) {
    a.settle();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ASSERT_GT(a->status().index_commits, commits);
  ASSERT_GE(a.allocated_bytes(), 7 * kMiB) << "nobody has told yet that it knows";
  begin_anew();
  until_allocated(4 * kMiB);
  EXPECT_GE(a.allocated_bytes() + kSlackBytes, 4 * kMiB);
  b->drop_caches();
  EXPECT_TRUE(b.read(reader_) == TestStore::payload(1, 3 * kMiB)) << "not what was opened";
  begin_anew();  // after it is known that the other has it open, too
  EXPECT_GE(a.allocated_bytes() + kSlackBytes, 4 * kMiB);
  ASSERT_TRUE(b.close(reader_));
  until_allocated(kMiB);
  EXPECT_TRUE(b.read_file("kept") == TestStore::payload(3, kMiB));
}

INSTANTIATE_TEST_SUITE_P(, StorePeersOpenFileOfALife, ::testing::Values("Killed", "KilledTwice", "Ended"),
                         [](const auto& each) { return std::string(each.param); });

TEST_F(StorePeers, ANodeThatDiedIsReadAsFarAsItCame) {
  a.mkdir("d");
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(a.write_file(fmt::format("d/{}", i), TestStore::payload(i, 10'000)));
  a.drain();
  a.die();
  b.refresh();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(b.read_file(fmt::format("d/{}", i)), TestStore::payload(i, 10'000));
  ASSERT_TRUE(b.unlink("d/3"));
  b.drain();
  a.mount();
  publish();
  EXPECT_FALSE(a.exists("d/3"));
  expect_one_tree();
}

// A frame of the journal rots that the other has read, while the node is down.
class StorePeersRot : public StorePeers, public ::testing::WithParamInterface<std::pair<double, bool>> {};

TEST_P(StorePeersRot, IsMissedByAllAlike) {
  const auto& [at, drop_index] = GetParam();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(a.write_file(fmt::format("{}", i), TestStore::payload(i, 10'000)));
    a.drain();
  }
  publish();
  ASSERT_EQ(b.contents().size(), 20u);
  a.die();
  const std::string node = a.root() + "/nodes/test";
  const std::string journal = node + "/1/journal/0.log";
  {
    std::fstream file(journal, std::ios::in | std::ios::out | std::ios::binary);
    ASSERT_TRUE(file);
    file.seekp(static_cast<std::streamoff>(at * static_cast<double>(std::filesystem::file_size(journal))));
    file << std::string(300, 'x');
  }
  if (drop_index) std::filesystem::remove_all(node + "/index");
  a.mount();
  const size_t left = a.contents().size();
  EXPECT_LT(left, 20u);
  static_cast<void>(await<void>(b, [this](auto done) { b->refresh(std::move(done)); }));  // it may have to wait for a checkpoint
  a.settle();
  publish();
  EXPECT_EQ(b.contents().size(), left);
  expect_one_tree();
  ASSERT_TRUE(a.write_file("new", TestStore::payload(99, 10'000)));
  publish();
  expect_one_tree();
  b.remount();
  publish();
  expect_one_tree();
}

INSTANTIATE_TEST_SUITE_P(Of, StorePeersRot, ::testing::Values(std::pair(0.5, true), std::pair(0.9, true), std::pair(0.9, false)));

TEST_F(StorePeers, WhatItsNodePutInQuarantineIsAbsentOnAllAndCanBeStoredAnew) {
  const std::string damaged = TestStore::payload(1, 50'000);
  ASSERT_TRUE(a.write_file("x", damaged));
  ASSERT_TRUE(a.write_file("y", TestStore::payload(2, 50'000)));
  publish();
  a.remount();
  b.remount();
  a.flip_in_extents(damaged.substr(1000, 64));
  EXPECT_EQ(a.try_read_file("x"), Code::kCorrupt);
  publish();
  const auto expect_absent = [&] {
    for (TestStore* node : {&a, &b}) {
      EXPECT_FALSE(node->exists("x"));
      EXPECT_EQ(node->contents().size(), 1u);
    }
  };
  expect_absent();
  b.remount();
  publish();
  expect_absent();
  a.remount();
  publish();
  expect_absent();
  ASSERT_TRUE(b.write_file("x.tmp", damaged));
  ASSERT_TRUE(b.rename("x.tmp", "x"));
  publish();
  EXPECT_EQ(a.read_file("x"), damaged);
  ASSERT_TRUE(b.unlink("x"));
  publish();
  expect_absent();
}

// Otherwise it stayed present on its node, and for nodes that come, until a client of that node read it.
TEST(StorePeersDamage, WhatAnotherNodeFoundDamagedItsNodeReadsItself) {
  ManualClock clock(1'800'000'000'000'000'000);
  TestStore a({}, clock);
  TestStore b(testing::node_options("other"), a);
  const auto pass = [&](int seconds) {
    for (int i = 0; i < seconds; ++i) {
      clock.advance_ns(1'000'000'000);
      testing::publish(a, &b);
    }
  };
  const std::string damaged = TestStore::payload(1, 50'000);
  ASSERT_TRUE(a.write_file("x", damaged));
  ASSERT_TRUE(a.write_file("y", TestStore::payload(2, 50'000)));
  pass(3);
  a.settle();
  a->drop_caches();
  a.flip_in_extents(damaged.substr(1000, 64));
  EXPECT_EQ(b.try_read_file("x"), Code::kCorrupt);
  EXPECT_FALSE(b.exists("x"));
  EXPECT_TRUE(a.exists("x"));
  pass(5);
  EXPECT_FALSE(a.exists("x"));
  EXPECT_EQ(a->status().objects_quarantined, 1u);
  EXPECT_EQ(a->status().scrub_damaged, 1u);
  EXPECT_EQ(a.read_file("y"), TestStore::payload(2, 50'000));
  EXPECT_EQ(b.read_file("y"), TestStore::payload(2, 50'000));
  pass(1);
  EXPECT_FALSE(b.exists("x"));
  EXPECT_EQ(b->status().scrub_damaged, 0u);
}

// A reader that comes behind the space's next use, for the node of which nobody waits any more.
TEST(StorePeersDamage, WhatItsNodeGaveUpIsNoDamageThoughThatWasNotReadYet) {
  ManualClock clock(1'800'000'000'000'000'000);
  TestStore a({}, clock);
  TestStore b(testing::node_options("other"), a);
  const std::string content = TestStore::payload(1, 50'000);
  ASSERT_TRUE(a.write_file("x", content));
  testing::publish(a, &b);
  Handle* const handle = b.open("x", {.read = true});
  ASSERT_NE(handle, nullptr);
  ASSERT_TRUE(a.unlink("x"));
  a.drain();
  a.flip_in_extents(content.substr(1000, 64));
  EXPECT_TRUE(b.exists("x")) << "it has not read that it went";
  const auto read = await<ReadReply>(b, [&](auto done) { b->read(handle, 0, content.size(), std::move(done)); });
  EXPECT_EQ(read ? Code::kNoData : read.error().code, Code::kIo);
  EXPECT_EQ(b->status().errors_checksum, 0u);
  EXPECT_FALSE(b.exists("x"));
  b->release(handle);
}

// The kernel knows names for a second.
TEST_F(StorePeers, WhatReadsAsAbsentIsNotOpenedByWhoLookedItUpBefore) {
  const std::string damaged = TestStore::payload(1, 50'000);
  ASSERT_TRUE(a.write_file("x", damaged));
  publish();
  a.remount();
  a.flip_in_extents(damaged.substr(1000, 64));
  for (TestStore* node : {&a, &b}) {
    const ObjectId id = testing::find(*node, "x").id;
    EXPECT_EQ(node->try_read_file("x"), Code::kCorrupt);
    for (const Code code : {Code::kStale, Code::kNotFound}) {
      const auto opened = (*node)->open(id, {.read = true}, {.thread_id = 7});
      EXPECT_EQ(opened ? Code::kNoData : opened.error().code, code);
    }
  }
}

// Nothing is left of the node but what the other has read.
TEST_F(StorePeers, ANodeThatBeginsAnewIsReadAnew) {
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(a.write_file(fmt::format("old-{}", i), TestStore::payload(i, 10'000)));
  publish();
  ASSERT_EQ(b.contents().size(), 20u);
  a.die();
  std::filesystem::remove_all(a.root() + "/nodes/test");
  a.mount();
  publish();
  expect_one_tree();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(a.write_file(fmt::format("new-{}", i), TestStore::payload(i, 10'000)));
  publish();
  EXPECT_EQ(b.contents().size(), 20u);
  expect_one_tree();
}

// What a life gave up and had not given back when it ended.
class StorePeersGivenUp : public StorePeers, public ::testing::WithParamInterface<bool> {};

TEST_P(StorePeersGivenUp, StaysForWhoHasNotReadThatYet) {
  const bool killed = GetParam();
  constexpr uint64_t kSoloBytes = 33 * kMiB;
  ASSERT_TRUE(a.write_file("solo", TestStore::payload(1, kSoloBytes)));
  for (const char* name : {"packed", "kept small"}) ASSERT_TRUE(a.write_file(name, TestStore::payload(2, 100 * kKiB)));
  publish();
  const uint64_t all_bytes = a.allocated_bytes();
  ASSERT_TRUE(b.exists("solo"));
  ASSERT_TRUE(a.unlink("solo"));
  ASSERT_TRUE(a.unlink("packed"));
  a.settle();  // the index knows it
  ASSERT_EQ(a.allocated_bytes(), all_bytes) << "held for the other node";
  for (int life = 0; life < (killed ? 2 : 1); ++life) {  // of two that are killed the second has the first one's in its index
    if (killed) a.crash();
    else a.remount();
    a.drain();
  }
  ASSERT_EQ(a.allocated_bytes(), all_bytes);
  ASSERT_TRUE(b.exists("solo"));
  for (const char* name : {"solo", "packed"}) {
    if (b.exists(name)) {
      EXPECT_EQ(b.try_read_file(name), Code::kNoData) << "it hears that it is gone, or reads it";
    }
  }
  const uint64_t left_bytes = all_bytes - kSoloBytes - 100 * kKiB;
  for (int i = 0; i < 3000 && a.allocated_bytes() > left_bytes; ++i) {
    b.settle();
    a.settle();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_LE(a.allocated_bytes(), left_bytes);
  // ext4 counts the blocks of a fragmented file's extent tree, which go with the file (seen: one, on a busy disk).
  EXPECT_GE(a.allocated_bytes() + 64 * kKiB, left_bytes);
  EXPECT_FALSE(b.exists("solo"));
  EXPECT_TRUE(b.read_file("kept small") == TestStore::payload(2, 100 * kKiB));
}

INSTANTIATE_TEST_SUITE_P(, StorePeersGivenUp, ::testing::Bool(),
                         [](const auto& each) { return std::string(each.param ? "ByALifeThatWasKilled" : "ByALifeThatEndedInOrder"); });

// Journals that a checkpoint covers are removed: a node that had not read them takes the checkpoint.
TEST_F(StorePeers, WhoComesLateTakesTheCheckpoint) {
  b.unmount();
  for (int life = 0; life < 12; ++life) {
    ASSERT_TRUE(a.write_file(fmt::format("{}", life), TestStore::payload(life, 10'000)));
    EXPECT_TRUE(life == 0 || a.unlink(fmt::format("{}", life - 1)));
    a.remount();
  }
  b.mount();
  publish();
  EXPECT_EQ(b.read_file("11"), TestStore::payload(11, 10'000));
  expect_one_tree();
}

// No client has looked the directory up when what the other said of its names is answered.
TEST_F(StorePeers, WhatReplacedItIsSeenByItsNodeRightBehindAStart) {
  a.mkdir("d");
  for (const char* name : {"d/x", "d/y"}) ASSERT_TRUE(a.write_file(name, TestStore::payload(1, 10'000)));
  publish();
  a.unmount();
  Handle* handle = b.open_for_rewrite("d/x", 7);
  ASSERT_NE(handle, nullptr);
  b.pwrite(handle, 0, TestStore::payload(2, 20'000));
  ASSERT_TRUE(b.close(handle));
  b.drain();
  a.mount();
  EXPECT_EQ(names_upon_refresh(a, "d"), (std::set<std::string>{"x", "y"}));
  EXPECT_TRUE(a.read_file("d/x") == TestStore::payload(2, 20'000));
  publish();
  EXPECT_TRUE(a.read_file("d/x") == TestStore::payload(2, 20'000));
  expect_one_tree();
}

// Calls of both, in any order, on few names; now and then both come to the same, or one dies.
TEST_F(StorePeers, WhateverBothDoTheyComeToOneTree) {
  const int steps = std::getenv("KVCACHEFS_LONG") != nullptr ? 20'000 : 1'500;
  const char* asked = std::getenv("KVCACHEFS_SEED");
  const unsigned seed = asked != nullptr ? static_cast<unsigned>(std::atoi(asked)) : 20261126;
  SCOPED_TRACE(fmt::format("KVCACHEFS_SEED={}", seed));
  std::mt19937 random(seed);
  const auto any = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
  const std::vector<std::string> directories = {"", "p/", "p/q/", "r/"};
  std::map<std::string, std::set<std::string>> ever;  // what was stored under a name
  int stored = 0;
  for (int step = 0; step < steps && !::testing::Test::HasFailure(); ++step) {
    TestStore& store = any(2) == 0 ? a : b;
    const std::string directory = directories[static_cast<size_t>(any(4))];
    const std::string path = directory + std::to_string(any(6));
    const bool inside = directory.empty() || store.exists(directory.substr(0, directory.size() - 1));
    switch (any(12)) {
      case 0: case 1: case 2: case 3: {
        if (!inside) break;
        const std::string content = TestStore::payload(++stored, static_cast<size_t>(any(2) == 0 ? 200 : 20'000 + any(400'000)));
        ever[path].insert(content);
        EXPECT_TRUE(!store.write_file(path + ".tmp", content) || store.rename(path + ".tmp", path));
        break;
      }
      case 4: case 5: {
        if (inside) store.unlink(path);
        break;
      }
      case 6: {
        if (!directory.empty() && !inside && (directory != "p/q/" || store.exists("p"))) store.mkdir(directory.substr(0, directory.size() - 1));
        break;
      }
      case 7: {  // all of a directory
        if (directory.empty() || !inside) break;
        const std::string removed = directory.substr(0, directory.size() - 1);
        for (int i = 0; i < 6; ++i) store.unlink(directory + std::to_string(i));
        store.rmdir(removed);
        break;
      }
      case 8: {
        if (!inside || !store.exists(path)) break;
        if (Handle* handle = store.open_for_rewrite(path, 7)) {
          const std::string content = TestStore::payload(++stored, static_cast<size_t>(100 + any(50'000)));
          ever[path].insert(content);
          store.pwrite(handle, 0, content);
          EXPECT_TRUE(store.close(handle));
        }
        break;
      }
      case 9: {
        if (!inside || !store.exists(path)) break;
        const std::string content = store.read_file(path);
        EXPECT_TRUE(ever[path].contains(content)) << path << " reads what was never stored under it: " << content.size() << " bytes";
        break;
      }
      case 10: {
        store.drain();
        store.refresh();
        break;
      }
      default: {
        if (any(4) != 0) break;
        publish();
        expect_one_tree();
        if (any(3) == 0) store.remount();
        else if (any(2) == 0) store.crash();
      }
    }
  }
  publish();
  expect_one_tree();
}

// One RESERVE stays on the volume, that of the last node: a node that starts when others have filled the file system can take it.
TEST_F(StorePeers, AnUnmountGivesBackWhatIsKeptForTheJournalButForTheLast) {
  const std::string of_a = a.root() + "/nodes/test/RESERVE", of_b = a.root() + "/nodes/other/RESERVE";
  const uint64_t bytes = testing::file_bytes(of_a);
  EXPECT_GT(bytes, 0u);
  EXPECT_EQ(testing::file_bytes(of_b), bytes);
  b.unmount();
  EXPECT_EQ(testing::file_bytes(of_b), 0u);
  a.unmount();
  EXPECT_EQ(testing::file_bytes(of_a), bytes);
  b.mount();
  EXPECT_EQ(testing::file_bytes(of_b), bytes);
  a.mount();
  a.unmount();
  EXPECT_EQ(testing::file_bytes(of_a), 0u);
  a.mount();
}

// Of small peers, which are read again in no time.
TEST(StorePeersIndexes, TheyTakeASmallPartOfTheCapacityWhileTheNodeIsDown) {
  StoreOptions options;
  options.capacity_bytes = 48 * kMiB;
  TestStore a(options);
  std::vector<std::unique_ptr<TestStore>> others;
  for (const char* name : {"b", "c", "d", "e", "f", "g", "h"}) {
    others.push_back(std::make_unique<TestStore>(testing::node_options(name), a));
    ASSERT_TRUE(others.back()->write_file(name, TestStore::payload(1, 1000)));
    others.back()->drain();
  }
  a.refresh();
  const std::string indexes = a.root() + "/nodes/test/index-peers";
  const auto count = [&] { return std::distance(std::filesystem::directory_iterator(indexes), {}); };
  EXPECT_EQ(count(), 8) << "and their numbers";
  a.unmount();
  EXPECT_GE(count(), 2);
  uint64_t kept_bytes = 0;
  for (const auto& index : std::filesystem::directory_iterator(indexes))
    if (index.is_directory()) kept_bytes += allocated_below(index.path());
  EXPECT_LE(kept_bytes, options.capacity_bytes / 256);
  a.mount();
  a.refresh();
  EXPECT_EQ(count(), 8);
  EXPECT_EQ(a.contents().size(), 7u);
}

// A node evicts what it stored, and would not see what only others use of that.
TEST(StorePeersTouch, WhatAnotherNodeReadsIsNotUnused) {
  constexpr size_t kChunk = 512 * kKiB;
  constexpr int kStored = 60, kRead = 6;
  ManualClock clock(1'800'000'000'000'000'000);
  const std::jthread passes([&clock](const std::stop_token& stop) {  // up to 4 times as fast as the machine's: calls wait for claims
    for (; !stop.stop_requested(); std::this_thread::sleep_for(std::chrono::milliseconds(5))) clock.advance_ns(20'000'000);
  });
  const auto pass = [&clock](int seconds) { clock.advance_ns(seconds * 1'000'000'000LL); };
  StoreOptions options;
  options.capacity_bytes = 48 * kMiB;
  options.keep_free_bytes = 1;
  options.lease_ms = 0;
  options.policy = "lru";
  TestStore a(options, clock);
  TestStore b(testing::node_options("other"), a);
  b.unmount();  // while the other stores: driven by hand it would give nothing back of what it claims
  pass(2);
  a.refresh();
  const auto put = [&](int number) {
    const std::string name = fmt::format("{:032x}.bin", static_cast<uint64_t>(number + 1) * 0x9E3779B97F4A7C15);
    const auto thread = static_cast<uint32_t>(number + 1);  // what one thread writes would be taken for a chain
    EXPECT_TRUE(a.write_file("tmp", TestStore::payload(number, kChunk), thread) && a.rename("tmp", name, thread)) << number;
    pass(1);
    return name;
  };
  std::vector<std::string> names;
  for (int number = 0; number < kStored; ++number) names.push_back(put(number));
  a.drain();
  b.mount();
  b.refresh();
  for (int number = 0; number < kRead; ++number) EXPECT_TRUE(b.read_file(names[static_cast<size_t>(number)]) == TestStore::payload(number, kChunk));
  pass(6);
  b.settle();
  b.drain();
  a.refresh();
  const uint64_t batches = b->status().journal_batches;
  pass(60);
  b.settle();
  b.drain();
  EXPECT_EQ(b->status().journal_batches, batches) << "nobody uses anything, and it is told once";
  b.unmount();
  pass(2);
  a.refresh();
  for (int number = kStored; number < kStored + 70; ++number) put(number);
  a.drain();
  ASSERT_GT(a->status().eviction_objects, static_cast<uint64_t>(2 * kRead));
  for (int number = 0; number < kRead; ++number) EXPECT_TRUE(a.exists(names[static_cast<size_t>(number)])) << number;
  int unused = 0;
  for (int number = kRead; number < 2 * kRead; ++number) unused += a.exists(names[static_cast<size_t>(number)]) ? 1 : 0;
  EXPECT_LE(unused, 2);
  b.mount();  // what was said of it is no statement that somebody has to answer
  a.refresh();
  b.refresh();
  EXPECT_TRUE(b.read_file(names[0]) == TestStore::payload(0, kChunk));
  EXPECT_EQ(a.contents(), b.contents());
}

}  // namespace store_peers_test
}  // namespace kvcachefs

// What is journaled before an answer, and how links are counted meanwhile: one thread (pump), small cases.
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "store/base/limits.h"
#include "store/base/units.h"
#include "store/testing/settling.h"

namespace kvcachefs {
namespace store_settling_test {

using testing::TestStore;

// --- journaled before the answer ---

TEST(StoreSettling, ADrainCoversABodyThatCouldNotTakeOverThePlaceOfAnother) {
  TestStore store;
  ASSERT_TRUE(store.write_file("a", store.payload(1, 100'000)));
  ASSERT_TRUE(link(store, "a", "b"));  // so its place cannot be taken over
  ASSERT_TRUE(drain(store));
  ASSERT_TRUE(store.write_file("t", store.payload(1, 100'000)));
  ASSERT_TRUE(store.rename("t", "a"));
  const ObjectId replacement = find(store, "a").id;
  ASSERT_TRUE(drain(store));
  store.crash();
  EXPECT_EQ(find(store, "a").id, replacement);
  EXPECT_EQ(find(store, "a").nlink, 1u);
  EXPECT_EQ(find(store, "b").nlink, 1u);
}

TEST(StoreSettling, AnFsyncCoversABodyThatCouldNotTakeOverThePlaceOfAnother) {
  TestStore store;
  ASSERT_TRUE(store.write_file("a", store.payload(1, 100'000)));
  ASSERT_TRUE(link(store, "a", "b"));
  ASSERT_TRUE(drain(store));
  ASSERT_TRUE(store.write_file("t", store.payload(1, 100'000)));
  ASSERT_TRUE(store.rename("t", "a"));
  const ObjectId replacement = find(store, "a").id;
  Handle* handle = store.open("a", {});
  ASSERT_TRUE(sync_file(store, handle));
  store->release(handle);
  store.crash();
  EXPECT_EQ(find(store, "a").id, replacement);
}

// What has the name after a crash is what was synced, or what took its place: not what had been journaled before.
TEST(StoreSettling, AnFsyncOfAFileWhoseNameAnotherTookCoversTheRename) {
  struct Step {
    char what;  // makes a file `to` that stays open, renames, exchanges, links, unlinks `to`
    const char* from;
    const char* to;
  };
  const std::pair<const char*, std::vector<Step>> ways[] = {
      {"by a rename", {{'m', "", "b"}, {'r', "b", "a"}}},
      {"twice", {{'m', "", "b"}, {'r', "b", "a"}, {'m', "", "c"}, {'r', "c", "a"}}},
      {"by an exchange", {{'m', "", "b"}, {'x', "a", "b"}, {'u', "", "b"}}},
      {"before another name", {{'l', "a", "l"}, {'m', "", "b"}, {'r', "b", "a"}, {'u', "", "l"}}},
      {"after one that has another name", {{'m', "", "b"}, {'l', "b", "l"}, {'r', "b", "a"}, {'m', "", "c"}, {'r', "c", "a"}}},
  };
  for (const auto& [how, steps] : ways) {
    SCOPED_TRACE(how);
    TestStore store;
    Handle* synced = store.create("a");
    store.pwrite(synced, 0, store.payload(1, 5000));
    ASSERT_TRUE(sync_file(store, synced));
    store.pwrite(synced, 0, store.payload(2, 5000));
    std::vector<Handle*> writers;
    int made = 10;
    for (const Step& step : steps) {
      if (step.what == 'm') {
        writers.push_back(store.create(step.to));
        store.pwrite(writers.back(), 0, store.payload(++made, 100));
      } else if (step.what == 'r') {
        ASSERT_TRUE(store.rename(step.from, step.to));
      } else if (step.what == 'x') {
        ASSERT_TRUE(exchange(store, step.from, step.to));
      } else if (step.what == 'l') {
        ASSERT_TRUE(link(store, step.from, step.to));
      } else {
        ASSERT_TRUE(store.unlink(step.to));
      }
    }
    ASSERT_TRUE(sync_file(store, synced));
    for (Handle* writer : writers) store->release(writer);
    store->release(synced);
    store.crash();
    EXPECT_TRUE(store.read_file("a") == store.payload(made, 100));
  }
}

// The journal still binds the name to what had the place, though clients see it nowhere any more.
TEST(StoreSettling, APlaceIsTakenOverOnlyFromWhatLosesItsLastJournaledName) {
  TestStore store;
  const std::string body = store.payload(1, 300'000);
  ASSERT_TRUE(store.write_file("a", body));
  ASSERT_TRUE(drain(store));
  ASSERT_TRUE(store.write_file("t", body));
  ASSERT_TRUE(store.rename("t", "a"));
  Handle* unfinished = store.create("z");
  store.pwrite(unfinished, 0, store.payload(2, 1000));
  ASSERT_TRUE(exchange(store, "a", "z"));
  drain_and_work(store);
  store.close(unfinished);
  drain_and_work(store);
  for (int i = 0; i < 3; ++i) drain_and_work(store);
  store->drop_caches();
  EXPECT_EQ(store.read_file("z"), body);
  store.remount();
  EXPECT_EQ(store.read_file("z"), body);
  EXPECT_EQ(store.read_file("a"), store.payload(2, 1000));
}

TEST(StoreSettling, AnExchangeWithAFileThatIsNotSealedIsDurableForBoth) {
  StoreOptions options;
  options.durability = Durability::kClose;
  TestStore store(options);
  ASSERT_TRUE(store.write_file("a", store.payload(1, 10'000)));
  Handle* handle = store.create("z");
  store.pwrite(handle, 0, store.payload(2, 10'000));
  ASSERT_TRUE(exchange(store, "a", "z"));
  store->release(handle);
  store.crash();
  EXPECT_EQ(store.read_file("z"), store.payload(1, 10'000));
  EXPECT_EQ(store.read_file("a"), store.payload(2, 10'000));
}

// A file is being written until its writer closes it or calls fsync. Another program that writes it then, and closes it, waits for no one.
TEST(StoreSettling, AWriterThatSyncedAndIsSilentHoldsBackNoLaterVersionOfTheFile) {
  TestStore store;
  Handle* silent = store.create("a");
  store.pwrite(silent, 0, store.payload(1, 10'000));
  ASSERT_TRUE(sync_file(store, silent));
  Handle* second = store.open("a", {.write = true, .truncate = true});
  store.pwrite(second, 0, store.payload(2, 20'000));
  store.close(second);
  ASSERT_TRUE(drain(store));
  store->release(silent);
  store.crash();
  EXPECT_EQ(store.read_file("a"), store.payload(2, 20'000));
}

TEST(StoreSettling, AWriterThatGoesOnAfterAnFsyncIsWriting) {
  TestStore store;
  Handle* writer = store.create("a");
  store.pwrite(writer, 0, store.payload(1, 10'000));
  ASSERT_TRUE(sync_file(store, writer));
  store.pwrite(writer, 10'000, store.payload(2, 10'000));
  ASSERT_TRUE(drain(store));
  store->release(writer);
  store.crash();
  EXPECT_EQ(store.read_file("a"), store.payload(1, 10'000));
}

TEST(StoreSettling, AnFsyncCoversTheDirectoriesAbove) {
  TestStore store;
  store.mkdir("d");
  store.mkdir("d/e");
  Handle* handle = store.create("d/e/f");
  store.pwrite(handle, 0, store.payload(1, 5'000));
  ASSERT_TRUE(sync_file(store, handle));
  store->release(handle);
  store.crash();
  EXPECT_EQ(store.read_file("d/e/f"), store.payload(1, 5'000));
}

TEST(StoreSettling, ADrainCoversMoreNamesThanABatchTakes) {
  constexpr size_t kNames = 150'000;
  TestStore store;
  ASSERT_TRUE(store.write_file("0", "x"));
  const ObjectId file = find(store, "0").id;
  for (size_t i = 1; i < kNames; ++i) {
    bool linked = false;
    store->link(file, kRootId, std::to_string(i) + std::string(50, '.'), {}, [&](Result<Stat> stat) { linked = stat.has_value(); });
    ASSERT_TRUE(linked) << i;
  }
  ASSERT_TRUE(drain(store));
  store.crash();
  EXPECT_EQ(count_names(store), kNames);
  EXPECT_EQ(find(store, "0").nlink, kNames);
}

TEST(StoreSettling, ADrainCoversAttributesBeyondOneFrameOfTheJournal) {
  constexpr size_t kFiles = 180;  // of 240 KB: more than 32 MiB
  TestStore store;
  const std::string value(60'000, 'v');
  for (size_t i = 0; i < kFiles; ++i) {
    const std::string name = std::to_string(i);
    if (i % 2 == 0) store.mkdir(name);
    else ASSERT_TRUE(store.write_file(name, store.payload(static_cast<int>(i), 100)));
    for (const char* xattr : {"user.a", "user.b", "user.c", "user.d"})
      ASSERT_TRUE(store->set_xattr(find(store, name).id, xattr, value, Store::XattrMode::kAny));
  }
  const Status drained = drain(store);
  ASSERT_TRUE(drained) << drained.error().message;
  store.crash();
  for (size_t i = 0; i < kFiles; ++i) {
    auto seen = store->get_xattr(find(store, std::to_string(i)).id, "user.d");
    ASSERT_TRUE(seen) << i;
    EXPECT_TRUE(*seen == value) << i;
  }
}

TEST(StoreSettling, AttributesOfFilesThatAreOpenAreBoundedUntilTheyAreJournaled) {
  TestStore store;
  const std::string value(60'000, 'v');
  std::vector<Handle*> handles;
  Status set;
  uint64_t bytes = 0;
  for (; set && bytes < 100 * kMiB; bytes += set ? value.size() : 0) {
    if (bytes % (4 * value.size()) == 0) handles.push_back(store.create(std::to_string(handles.size())));
    set = store->set_xattr(find(store, std::to_string(handles.size() - 1)).id, "user." + std::to_string(bytes / value.size() % 4), value, Store::XattrMode::kAny);
    store->pump();
  }
  ASSERT_FALSE(set);
  EXPECT_EQ(set.error().code, Code::kNoSpace);
  EXPECT_LE(bytes, 64 * kMiB);
  EXPECT_GE(bytes, 63 * kMiB);
  for (Handle* handle : handles) store.close(handle);
  drain_and_work(store);
  EXPECT_TRUE(store->set_xattr(find(store, "0").id, "user.x", "1", Store::XattrMode::kAny));
  EXPECT_TRUE(store->get_xattr(find(store, "7").id, "user.3") == value);
}

// What is trimmed of a record that was read is what no call would have taken.
TEST(StoreSettling, AllAttributesThatWereTakenAreThereAfterAReplay) {
  TestStore store;
  ASSERT_TRUE(store.write_file("a", "1"));
  const ObjectId id = find(store, "a").id;
  const std::string names[] = {"user.a", "user.b", "user.c", "user.d"};
  const auto set = [&](int each, size_t bytes) { return store->set_xattr(id, names[each], std::string(bytes, 'v'), Store::XattrMode::kAny); };
  for (int each = 0; each < 3; ++each) ASSERT_TRUE(set(each, kMaxXattrBytes));
  EXPECT_FALSE(set(3, kMaxXattrBytes - 4 * 6 + 1)) << "names count";
  ASSERT_TRUE(set(3, kMaxXattrBytes - 4 * 6));
  ASSERT_TRUE(drain(store));
  store.crash();
  EXPECT_EQ(store->list_xattrs(id)->size(), 4u);
  EXPECT_TRUE(store->set_xattr(id, names[3], "2", Store::XattrMode::kAny));
  EXPECT_TRUE(set(3, kMaxXattrBytes - 4 * 6));
}

TEST(StoreSettling, ADrainCoversSmallBodiesBeyondOneFrameOfTheJournal) {
  StoreOptions options;
  options.inline_below_bytes = 64 * kKiB;
  TestStore store(options);
  constexpr int kFiles = 800;  // of 60 KB, in the journal
  for (int i = 0; i < kFiles; ++i) ASSERT_TRUE(store.write_file(std::to_string(i), store.payload(i, 60'000)));
  const Status drained = drain(store);
  ASSERT_TRUE(drained) << drained.error().message;
  store.crash();
  for (int i = 0; i < kFiles; ++i) ASSERT_TRUE(store.read_file(std::to_string(i)) == store.payload(i, 60'000)) << i;
}

TEST(StoreSettling, CommitsDoNotLookAtNamesWhoseBodiesAreNotFinished) {
  constexpr int kFiles = 30;
  TestStore store;
  ASSERT_TRUE(store.write_file("old", "x"));
  store.drain();
  std::vector<Handle*> open;
  for (int i = 0; i < kFiles; ++i) {
    open.push_back(store.create(std::to_string(i)));
    store.pwrite(open.back(), 0, store.payload(i, 1000));
  }
  auto comes_to_rest = [&] {
    int rounds = 0;
    while (rounds < 200 && store->pump()) ++rounds;
    return rounds < 200;
  };
  EXPECT_TRUE(comes_to_rest()) << "as long as a name waits, each turn commits what there is";
  ASSERT_TRUE(store.rename("1", "one"));
  ASSERT_TRUE(store.rename("2", "old"));
  ASSERT_TRUE(store.unlink("3"));
  ASSERT_TRUE(link(store, "4", "four"));
  ASSERT_TRUE(exchange(store, "5", "6"));
  EXPECT_TRUE(comes_to_rest());
  for (Handle* handle : open) EXPECT_TRUE(store.close(handle));
  ASSERT_TRUE(drain(store));
  store.crash();
  EXPECT_EQ(count_names(store), static_cast<size_t>(kFiles));
  for (int i = 7; i < kFiles; ++i) EXPECT_TRUE(store.read_file(std::to_string(i)) == store.payload(i, 1000)) << i;
  const std::pair<const char*, int> moved[] = {{"0", 0}, {"one", 1}, {"old", 2}, {"4", 4}, {"four", 4}, {"5", 6}, {"6", 5}};
  for (const auto& [name, content] : moved) EXPECT_TRUE(store.read_file(name) == store.payload(content, 1000)) << name;
  EXPECT_EQ(find(store, "four").nlink, 2u);
}

// --- link counts ---

TEST(StoreSettling, LinksAreCountedAsClientsSeeThemWhileANameWaitsForItsBody) {
  TestStore store;
  ASSERT_TRUE(store.write_file("a", store.payload(1, 1000)));
  ASSERT_TRUE(link(store, "a", "b"));
  drain_and_work(store);
  store->drop_caches();
  Handle* unfinished = store.create("t");
  store.pwrite(unfinished, 0, "not finished");
  ASSERT_TRUE(store.rename("t", "a"));  // journaled only when it is sealed
  ASSERT_TRUE(link(store, "b", "c"));   // journaled at once
  drain_and_work(store);
  store->drop_caches();
  EXPECT_EQ(find(store, "b").nlink, 2u);
  EXPECT_EQ(store->stat(find(store, "b").id)->nlink, 2u);
  store.close(unfinished);
  drain_and_work(store);
  EXPECT_EQ(find(store, "b").nlink, 2u);
  ASSERT_TRUE(store.unlink("b"));
  ASSERT_TRUE(store.unlink("c"));
  ASSERT_TRUE(store.unlink("a"));
  drain_and_work(store);
  EXPECT_EQ(store->status().objects_total, 0u);
  EXPECT_EQ(store->status().objects_in_ram, 0u);
}

TEST(StoreSettling, WhatWasUnlinkedIsNotFoundByItsNumber) {
  TestStore store;
  ASSERT_TRUE(store.write_file("a", store.payload(1, 1000)));
  store.drain();
  store->drop_caches();
  const ObjectId id = find(store, "a").id;
  ASSERT_TRUE(store.unlink("a"));
  EXPECT_FALSE(store->open(id, {.read = true, .write = true}, {.thread_id = 1}));
  store.drain();
  EXPECT_FALSE(store->open(id, {.read = true, .write = true}, {.thread_id = 1}));
}

}  // namespace store_settling_test
}  // namespace kvcachefs

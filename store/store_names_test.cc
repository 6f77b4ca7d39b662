// Names and their versions: what goes with a directory, who is told to look again, what is swept.
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "store/store.h"
#include "store/testing/settling.h"
#include "store/testing/test_store.h"
#include "store/tree/writer_processes.h"

namespace kvcachefs {
namespace store_names_test {

using testing::TestStore;

constexpr Caller kFirst{.thread_id = 1}, kSecond{.thread_id = 2};
constexpr OpenRequest kRewrite{.read = false, .write = true, .truncate = true};

Result<void> await(TestStore& store, std::optional<Status>& answer) {
  for (int i = 0; i < 1000 && !answer; ++i) store->pump();
  return answer ? *answer : fail(Code::kCanceled, "a request was never answered");
}

Status remove_directory(TestStore& store, const std::string& name) {
  std::optional<Status> answer;
  store->remove_directory(kRootId, name, [&](Status status) { answer = std::move(status); });
  return await(store, answer);
}

Status rename(TestStore& store, const std::string& from, const std::string& to, RenameMode mode) {
  std::optional<Status> answer;
  store->rename(kRootId, from, kRootId, to, mode, kFirst, [&](Status status) { answer = std::move(status); });
  return await(store, answer);
}

template <class Answer>
Code code_of(const Answer& status) { return status ? Code::kNoData : status.error().code; }

// A file that reads as absent, its bytes being wrong.
void put_in_quarantine(TestStore& store, const std::string& path) {
  const std::string body = store.payload(7, 100'000);
  ASSERT_TRUE(store.write_file(path, body));
  store.drain();
  store->drop_caches();
  store.flip_in_extents(body.substr(5000, 64));
  ASSERT_EQ(store.try_read_file(path), Code::kCorrupt);
  store.settle();
  ASSERT_FALSE(store.exists(path));
}

TEST(StoreNames, ADirectoryWithNothingButNamesInQuarantineIsRemoved) {
  TestStore store;
  store.mkdir("d");
  put_in_quarantine(store, "d/f");
  ASSERT_TRUE(store.write_file("d/seen", "x"));
  EXPECT_EQ(code_of(remove_directory(store, "d")), Code::kNotEmpty);
  ASSERT_TRUE(store.unlink("d/seen"));
  EXPECT_EQ(code_of(remove_directory(store, "d")), Code::kNoData);
  store.drain();
  EXPECT_EQ(store->status().objects_total, 0u);
  store.remount();
  EXPECT_FALSE(store.exists("d"));
  store.mkdir("d");
  EXPECT_FALSE(store.exists("d/f"));
}

TEST(StoreNames, ADirectoryWithNothingButNamesInQuarantineIsReplaced) {
  TestStore store;
  store.mkdir("d");
  put_in_quarantine(store, "d/f");
  store.mkdir("e");
  ASSERT_TRUE(store.write_file("e/g", "x"));
  EXPECT_TRUE(store.rename("e", "d"));
  store.remount();
  EXPECT_FALSE(store.exists("e"));
  EXPECT_EQ(store.read_file("d/g"), "x");
}

TEST(StoreNames, ADirectoryThatWasRemovedIsSeenSoByThoseWhoHaveItOpen) {
  TestStore store;
  store.mkdir("d");
  store.mkdir("e");
  store.mkdir("e2");
  store.drain();
  const ObjectId removed = store->lookup(kRootId, "d", kFirst)->id, replaced = store->lookup(kRootId, "e", kFirst)->id;
  const auto links = [&](ObjectId id) {
    auto stat = store->stat(id);
    return stat ? static_cast<int>(stat->nlink) : -1;
  };
  EXPECT_EQ(links(removed), 2);
  ASSERT_TRUE(remove_directory(store, "d"));
  ASSERT_TRUE(store.rename("e2", "e"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(links(removed), 0);
    EXPECT_EQ(links(replaced), 0);
    EXPECT_EQ(store->make_directory(removed, "x", 0755, kFirst).error().code, Code::kNotFound);
    store.drain();  // and as soon as no record names them
  }
}

TEST(StoreNames, ANameInQuarantineIsAbsentForARename) {
  TestStore store;
  put_in_quarantine(store, "f");
  ASSERT_TRUE(store.write_file("g", "x"));
  EXPECT_EQ(code_of(rename(store, "g", "f", RenameMode::kExchange)), Code::kNotFound);
  EXPECT_EQ(code_of(rename(store, "g", "f", RenameMode::kNoReplace)), Code::kNoData);
  EXPECT_EQ(code_of(rename(store, "f", "f2", RenameMode::kReplace)), Code::kNoData);
  store.remount();
  EXPECT_EQ(store.read_file("f2"), "x");
}

TEST(StoreNames, ADirectoryTakesTheNameOfAFileInQuarantine) {
  TestStore store;
  put_in_quarantine(store, "f");
  store.mkdir("d");
  EXPECT_TRUE(store.rename("d", "f"));
  store.remount();
  ASSERT_TRUE(store.write_file("f/g", "x"));
  EXPECT_EQ(store.read_file("f/g"), "x");
}

// The kernel may open it by the temporary name, for another writer, after its rename.
TEST(StoreNames, WhatWasRenamedAMomentAgoIsLookedUpAgainThoughItLeftTheRam) {
  TestStore store;
  const std::string body(5000, 'b');
  ASSERT_TRUE(store.write_file("t.tmp", body));
  const ObjectId chunk = store->lookup(kRootId, "t.tmp", kFirst)->id;
  ASSERT_TRUE(store.rename("t.tmp", "chunk"));
  store.drain();
  store->drop_caches();
  const auto opened = store->open(chunk, kRewrite, kSecond);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kStale);
  EXPECT_EQ(store.read_file("chunk"), body);
}

// The kernel looks again and finds nothing: what the thread opens next is another file.
TEST(StoreNames, WhoFindsNothingWhenLookingAgainIsToldOfTheNextFile) {
  TestStore store;
  ASSERT_TRUE(store.write_file("c", "body"));
  const ObjectId gone = store->lookup(kRootId, "c", kFirst)->id;
  ASSERT_TRUE(store.unlink("c"));
  auto opened = store->open(gone, {}, kFirst);
  ASSERT_FALSE(opened);
  ASSERT_EQ(opened.error().code, Code::kStale);
  ASSERT_FALSE(store->lookup(kRootId, "c", kFirst));

  Handle* writer = store.create("t.tmp", kSecond.thread_id);
  store.pwrite(writer, 0, "the bytes of the second");
  auto found = store->lookup(kRootId, "t.tmp", kFirst);
  ASSERT_TRUE(found);
  opened = store->open(found->id, kRewrite, kFirst);
  ASSERT_FALSE(opened) << "the second is still writing it";
  EXPECT_EQ(opened.error().code, Code::kStale);
  found = store->lookup(kRootId, "t.tmp", kFirst);
  ASSERT_TRUE(found);
  opened = store->open(found->id, kRewrite, kFirst);
  ASSERT_TRUE(opened);
  store.pwrite(*opened, 0, "of the first");
  EXPECT_TRUE(store.close(*opened));
  EXPECT_TRUE(store.close(writer));
  EXPECT_TRUE(store.rename("t.tmp", "final", kSecond.thread_id));
  EXPECT_EQ(store.read_file("final"), "the bytes of the second");
  EXPECT_TRUE(store.unlink("t.tmp"));
}

// Clients rename before they close. An fsync in the middle makes no version a finished one.
TEST(StoreNames, AVersionThatWasSyncedAndIsFilledFurtherIsNotTheOneThatARenameTakes) {
  TestStore store;
  Handle* first = store.create("t.tmp", kFirst.thread_id);
  store.pwrite(first, 0, "half of the first");
  ASSERT_TRUE(sync_file(store, first));
  Handle* second = store.open_for_rewrite("t.tmp", kSecond.thread_id);
  ASSERT_NE(second, nullptr);
  store.pwrite(second, 0, "all of the second");
  EXPECT_TRUE(store.rename("t.tmp", "final", kSecond.thread_id));
  EXPECT_EQ(store.read_file("final"), "all of the second");
  store.pwrite(first, 17, ", and the rest");
  EXPECT_TRUE(store.close(first));
  EXPECT_TRUE(store.close(second));
  EXPECT_TRUE(store.rename("t.tmp", "final", kFirst.thread_id));
  EXPECT_EQ(store.read_file("final"), "half of the first, and the rest");
}

TEST(StoreNames, AWriterThatSyncedAndIsSilentForLongKeepsItsFile) {
  ManualClock clock{1'000'000'000'000};
  TestStore store({}, clock);
  Handle* first = store.create("t.tmp", kFirst.thread_id);
  store.pwrite(first, 0, "first");
  ASSERT_TRUE(sync_file(store, first));
  clock.advance_ns(60'000'000'000);
  Handle* second = store.open_for_rewrite("t.tmp", kSecond.thread_id);
  ASSERT_NE(second, nullptr);
  EXPECT_NE(store->object_of(second), store->object_of(first));
  store.pwrite(second, 0, "second");
  EXPECT_TRUE(store.close(second));
  EXPECT_TRUE(store.close(first));
  EXPECT_TRUE(store.rename("t.tmp", "b", kSecond.thread_id));
  EXPECT_EQ(store.read_file("b"), "second");
  EXPECT_TRUE(store.rename("t.tmp", "a", kFirst.thread_id));
  EXPECT_EQ(store.read_file("a"), "first");
}

// The name that the file was renamed to waits for its body, and its old name is given to another file that is synced.
TEST(StoreNames, APartThatWasSyncedUnderATemporaryNameGetsNoOtherName) {
  for (const bool replaces : {false, true}) {
    SCOPED_TRACE(replaces);
    TestStore store;
    if (replaces) {
      ASSERT_TRUE(store.write_file("x", "the bytes before"));
    }
    store.drain();
    Handle* writer = store.create("x.tmp", kFirst.thread_id);
    store.pwrite(writer, 0, "half");
    ASSERT_TRUE(sync_file(store, writer));
    store.pwrite(writer, 4, " and half");
    EXPECT_TRUE(store.close(writer));
    ASSERT_TRUE(store.rename("x.tmp", "x", kFirst.thread_id));
    Handle* next = store.create("x.tmp", kFirst.thread_id);
    store.pwrite(next, 0, "the next");
    ASSERT_TRUE(sync_file(store, next));
    store->release(next);
    store.crash();
    if (store.exists("x")) {
      const std::string found = store.read_file("x");
      EXPECT_TRUE(found == "half and half" || (replaces && found == "the bytes before")) << found;
    } else {
      EXPECT_FALSE(replaces);
    }
    EXPECT_EQ(store.read_file("x.tmp"), "the next");
  }
}

// The journal had the older version, then the newer one, which got another name.
TEST(StoreNames, AVersionThatANameMeansAgainIsJournaledAgain) {
  TestStore store;
  ASSERT_TRUE(store.write_file("t.tmp", "of the first", kFirst.thread_id));
  store.drain();
  Handle* writer = store.open_for_rewrite("t.tmp", kSecond.thread_id);
  ASSERT_NE(writer, nullptr);
  store.pwrite(writer, 0, "of the second");
  EXPECT_TRUE(store.close(writer));
  store.drain();
  EXPECT_TRUE(store.rename("t.tmp", "final", kSecond.thread_id));
  EXPECT_EQ(store.read_file("t.tmp"), "of the first");
  store.drain();
  store.remount();
  EXPECT_EQ(store.read_file("t.tmp"), "of the first");
  EXPECT_EQ(store.read_file("final"), "of the second");
}

// The kernel asks twice for one open: to revalidate what it knew, and for what is there now.
TEST(StoreNames, ANameThatComesBackWhileSomebodyLooksAgainIsTheRepetition) {
  TestStore store;
  ASSERT_TRUE(store.write_file("t.tmp", "body", kSecond.thread_id));
  const ObjectId gone = store->lookup(kRootId, "t.tmp", kFirst)->id;
  ASSERT_TRUE(store.unlink("t.tmp"));
  ASSERT_EQ(store->open(gone, kRewrite, kFirst).error().code, Code::kStale);
  ASSERT_FALSE(store->lookup(kRootId, "t.tmp", kFirst));
  Handle* writer = store.create("t.tmp", kSecond.thread_id);
  store.pwrite(writer, 0, "of the second");
  auto found = store->lookup(kRootId, "t.tmp", kFirst);
  ASSERT_TRUE(found);
  EXPECT_NE(found->id, store->object_of(writer));
  auto opened = store->open(found->id, kRewrite, kFirst);
  ASSERT_TRUE(opened) << "it was told once";
  EXPECT_TRUE(store.close(*opened));
  EXPECT_TRUE(store.close(writer));
}

// All opens get one file if its name is not one that clients rename, or if the file is locked, whatever its name.
TEST(StoreNames, ALockFileHasNoVersions) {
  for (const char* name : {"x.lock", "x", "x.tmp"}) {
    SCOPED_TRACE(name);
    TestStore store;
    Handle* first = store.create(name, kFirst.thread_id);
    store.pwrite(first, 0, "first");
    if (name == std::string("x.tmp")) store->note_locked(first);
    auto opened = store->open(store->object_of(first), kRewrite, kSecond);
    ASSERT_TRUE(opened);
    EXPECT_EQ(store->object_of(*opened), store->object_of(first));
    EXPECT_TRUE(store.close(*opened));
    EXPECT_TRUE(store.close(first));
  }
}

TEST(StoreNames, VersionsOfOneNameHaveOneLock) {
  TestStore store;
  Handle* first = store.create("t.tmp", kFirst.thread_id);
  store.pwrite(first, 0, "first");
  Handle* second = store.open_for_rewrite("t.tmp", kSecond.thread_id);
  ASSERT_NE(second, nullptr);
  EXPECT_NE(store->object_of(second), store->object_of(first));
  EXPECT_EQ(store->lock_identity(second), store->lock_identity(first));
  EXPECT_TRUE(store.close(second));
  EXPECT_TRUE(store.close(first));
}

TEST(StoreNames, TheProcessesOfWritersAreLookedUpBeforeTheLockOfNames) {
  TestStore store;
  const uint64_t before = unknown_processes_asked_for();
  Handle* first = store.create("t.tmp", kFirst.thread_id);
  store.pwrite(first, 0, "first");
  Handle* second = store.open_for_rewrite("t.tmp", kSecond.thread_id);
  ASSERT_NE(second, nullptr);
  store.pwrite(second, 0, "second");
  constexpr Caller kThird{.thread_id = 3};
  Handle* third = store.open_for_rewrite("t.tmp", kThird.thread_id);
  ASSERT_NE(third, nullptr);
  store.pwrite(third, 0, "third");
  for (Handle* each : {first, second, third}) EXPECT_TRUE(store.close(each));
  for (const Caller& who : {kFirst, kSecond, kThird}) EXPECT_TRUE(store->lookup(kRootId, "t.tmp", who));
  EXPECT_TRUE(store.rename("t.tmp", "final", kFirst.thread_id));
  std::optional<Status> removed;
  store->unlink(kRootId, "t.tmp", kSecond, [&](Status status) { removed = std::move(status); });
  EXPECT_TRUE(await(store, removed));
  EXPECT_EQ(store.read_file("final"), "first");
  EXPECT_EQ(store.read_file("t.tmp"), "third");
  EXPECT_EQ(unknown_processes_asked_for(), before);
}

TEST(StoreNames, VersionsThatGotNamesOfTheirOwnHaveTheirOwnLocks) {
  TestStore store;
  Handle* first = store.create("t.tmp", kFirst.thread_id);
  store.pwrite(first, 0, "first");
  Handle* second = store.open_for_rewrite("t.tmp", kSecond.thread_id);
  ASSERT_NE(second, nullptr);
  store.pwrite(second, 0, "second");
  for (auto [name, who] : {std::pair{"a", kFirst}, std::pair{"b", kSecond}}) {
    bool done = false;
    store->rename(kRootId, "t.tmp", kRootId, name, RenameMode::kReplace, who, [&](Status status) { done = status.has_value(); });
    EXPECT_TRUE(done);
  }
  EXPECT_NE(store->lock_identity(second), store->lock_identity(first));
  EXPECT_TRUE(store.close(second));
  EXPECT_TRUE(store.close(first));
}

// The object that the second lookup found is removed before the second open. It is opened all the same: the kernel does not ask a third time.
TEST(StoreNames, WhatARepeatedLookupFoundCanBeOpened) {
  TestStore store;
  ASSERT_TRUE(store.write_file("c", "first"));
  const ObjectId gone = store->lookup(kRootId, "c", kFirst)->id;
  ASSERT_TRUE(store.unlink("c"));
  ASSERT_TRUE(store.write_file("c", "second", kSecond.thread_id));
  ASSERT_EQ(store->open(gone, {}, kFirst).error().code, Code::kStale);
  const auto found = store->lookup(kRootId, "c", kFirst);
  ASSERT_TRUE(found);
  ASSERT_TRUE(store.unlink("c"));
  store.drain();
  auto opened = store->open(found->id, {}, kFirst);
  ASSERT_TRUE(opened) << opened.error().message;
  std::optional<size_t> bytes;
  store->read(*opened, 0, 100, [&](Result<ReadReply> reply) { bytes = reply ? reply->bytes : 0; });
  for (int i = 0; i < 1000 && !bytes; ++i) store->pump();
  EXPECT_EQ(bytes, std::string("second").size());
  EXPECT_TRUE(store.close(*opened));
  EXPECT_FALSE(store->open(found->id, {}, kSecond)) << "only then";
}

// A full volume is the normal state of a cache: the round that makes room for others takes nothing from a call under repetition.
TEST(StoreNames, WhatARepeatedLookupFoundOutlivesARoundOfMakingRoom) {
  StoreOptions options;
  options.capacity_bytes = 24 * kMiB;
  options.keep_free_bytes = 1;
  options.evict = false;
  TestStore store(options);
  ASSERT_TRUE(store.write_file("c", "first"));
  const ObjectId gone = store->lookup(kRootId, "c", kFirst)->id;
  ASSERT_TRUE(store.unlink("c"));
  ASSERT_TRUE(store.write_file("c", "second", kSecond.thread_id));
  const OpenRequest rewrite{.write = true, .truncate = true};
  ASSERT_EQ(store->open(gone, rewrite, kFirst).error().code, Code::kStale);
  const auto found = store->lookup(kRootId, "c", kFirst);
  ASSERT_TRUE(found);
  ASSERT_TRUE(store.unlink("c"));
  Handle* big = store.create("big", kSecond.thread_id);
  uint64_t offset = 0;
  while (offset < 2 * options.capacity_bytes && store.try_pwrite(big, offset, store.payload(1, kMiB)) != Code::kNoSpace) offset += kMiB;
  ASSERT_LT(offset, 2 * options.capacity_bytes) << "it is full";
  auto opened = store->open(found->id, rewrite, kFirst);
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_TRUE(store.close(*opened));
  store->release(big);
}

TEST(StoreNames, WhoLooksNothingUpIsNotToldTwice) {
  TestStore store;
  ASSERT_TRUE(store.write_file("c", "body"));
  const ObjectId gone = store->lookup(kRootId, "c", kFirst)->id;
  ASSERT_TRUE(store.unlink("c"));
  EXPECT_EQ(store->open(gone, {}, kFirst).error().code, Code::kStale);
  EXPECT_EQ(store->open(gone, {}, kFirst).error().code, Code::kNotFound);
  EXPECT_EQ(store->open(gone, {}, kFirst).error().code, Code::kStale) << "another call";
  EXPECT_TRUE(store->may_look_again(kSecond, /*by_name=*/false));
  EXPECT_FALSE(store->may_look_again(kSecond, /*by_name=*/false));
  const auto stat = store->stat(gone);
  ASSERT_TRUE(stat) << "what was removed a moment ago is still told of";
  EXPECT_EQ(stat->nlink, 0u);
}

TEST(StoreNames, AnOpenOfADirectoryIsToldToLookAgainOnce) {
  TestStore store;
  store.mkdir("d");
  const ObjectId gone = store->lookup(kRootId, "d", kFirst)->id;
  ASSERT_TRUE(remove_directory(store, "d"));
  store.mkdir("d");
  ASSERT_EQ(code_of(store->open_directory(gone, kFirst)), Code::kStale);
  const auto found = store->lookup(kRootId, "d", kFirst);
  ASSERT_TRUE(found);
  ASSERT_NE(found->id, gone);
  ASSERT_TRUE(remove_directory(store, "d"));
  store.drain();
  const auto opened = store->open_directory(found->id, kFirst);
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->nlink, 0u);
  EXPECT_TRUE(store->list(found->id, 0, 10)->empty());
  EXPECT_EQ(code_of(store->open_directory(found->id, kSecond)), Code::kStale) << "only then";
  EXPECT_EQ(code_of(store->make_directory(found->id, "sub", 0755, kFirst)), Code::kNotFound);
  EXPECT_EQ(store->status().objects_total, 0u);
  ASSERT_FALSE(store->lookup(kRootId, "d", kSecond)) << "the second try does not find it: no open follows";
  store.mkdir("d");
  const ObjectId again = store->lookup(kRootId, "d", kSecond)->id;
  EXPECT_TRUE(store->open_directory(again, kSecond));
  ASSERT_TRUE(remove_directory(store, "d"));
  EXPECT_EQ(code_of(store->open_directory(again, kSecond)), Code::kStale) << "another call";
}

// Other calls that name a directory: chmod, say.
TEST(StoreNames, ADirectoryThatARepeatedLookupFoundStaysForTheCall) {
  TestStore store;
  store.mkdir("d");
  ASSERT_TRUE(store->may_look_again(kFirst, /*by_name=*/false));
  const auto found = store->lookup(kRootId, "d", kFirst);
  ASSERT_TRUE(found);
  ASSERT_TRUE(remove_directory(store, "d"));
  store.drain();
  SetAttributes change;
  change.mode = 0700;
  std::optional<Result<Stat>> changed;
  store->set_attributes(found->id, nullptr, change, kFirst, [&](Result<Stat> stat) { changed = std::move(stat); });
  ASSERT_TRUE(changed && *changed);
  EXPECT_EQ((*changed)->nlink, 0u);
  EXPECT_EQ(code_of(store->make_directory(found->id, "sub", 0755, kFirst)), Code::kNotFound);
  store.drain();
  store.remount();
  EXPECT_FALSE(store.exists("d"));
  EXPECT_EQ(store->status().objects_total, 0u);
}

TEST(StoreNames, ARemovedDirectoryIsOpenedForWhoHasNoNameForIt) {
  TestStore store;
  store.mkdir("d");
  const ObjectId gone = store->lookup(kRootId, "d", kFirst)->id;
  ASSERT_TRUE(remove_directory(store, "d"));
  ASSERT_EQ(code_of(store->open_directory(gone, kFirst)), Code::kStale);
  const auto opened = store->open_directory(gone, kFirst);
  ASSERT_TRUE(opened) << "as a working directory that was removed: nothing was looked up";
  EXPECT_EQ(opened->nlink, 0u);
  EXPECT_TRUE(store->list(gone, 0, 10)->empty());
  EXPECT_EQ(code_of(store->open_directory(gone, kFirst)), Code::kStale) << "another call";
  EXPECT_EQ(code_of(store->open_directory(ObjectId{12345678}, kSecond)), Code::kStale);
  EXPECT_EQ(code_of(store->open_directory(ObjectId{12345678}, kSecond)), Code::kNotFound);
}

TEST(StoreNames, WhoWritesWithoutThePrivilegeTakesItFromTheFile) {
  TestStore store;
  ASSERT_TRUE(store.write_file("f", "x"));
  const auto mode_after = [&](uint32_t mode, bool in_group = false) {
    std::optional<Result<Stat>> changed;
    SetAttributes change;
    change.mode = mode;
    Handle* handle = store.open("f", {.write = true});
    store->set_attributes(store->object_of(handle), handle, change, kFirst, [&](Result<Stat> stat) { changed = std::move(stat); });
    EXPECT_TRUE(changed && *changed);
    store->drop_privileges(handle, [&](uint32_t) { return in_group; });
    store->release(handle);
    store.remount();
    return store->lookup(kRootId, "f", kFirst)->mode & 07777;
  };
  EXPECT_EQ(mode_after(06755), 0755u);
  EXPECT_EQ(mode_after(06755, true), 0755u);
  EXPECT_EQ(mode_after(02744), 0744u);
  EXPECT_EQ(mode_after(02744, true), 02744u) << "of the group, which may not execute it: as the kernel has it";
  EXPECT_EQ(mode_after(0644), 0644u);
}

}  // namespace store_names_test
}  // namespace kvcachefs

// What is journaled before an answer, and what counts as space until it was given back: one thread (pump), small cases.
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "store/base/clock.h"
#include "store/base/units.h"
#include "store/store.h"
#include "store/testing/test_store.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {
namespace {

using testing::TestStore;

// Waits for an answer and does not a step more: what was not journaled before it is lost in the crash that follows.
template <class T, class Call>
Result<T> await(TestStore& store, Call call) {
  auto result = std::make_shared<std::optional<Result<T>>>();
  call([result](Result<T> answer) { result->emplace(std::move(answer)); });
  for (int i = 0; i < 100'000 && !*result; ++i) store->pump();
  if (!*result) return fail(Code::kCanceled, "a request was never answered");
  return std::move(**result);
}

Status drain(TestStore& store) {
  return await<void>(store, [&](auto done) { store->drain(true, std::move(done)); });
}

// And some background work more.
void drain_and_work(TestStore& store) {
  EXPECT_TRUE(drain(store));
  for (int i = 0; i < 20; ++i) store->pump();
}

Stat find(TestStore& store, const std::string& name, ObjectId directory = kRootId) {
  auto found = store->lookup(directory, name, {.thread_id = 1});
  EXPECT_TRUE(found) << found.error().message;
  return found.value_or(Stat{});
}

Status link(TestStore& store, const std::string& from, const std::string& to) {
  auto linked = await<Stat>(store, [&](auto done) { store->link(find(store, from).id, kRootId, to, {}, std::move(done)); });
  return linked ? Status() : std::unexpected(linked.error());
}

Status exchange(TestStore& store, const std::string& one, const std::string& other) {
  return await<void>(store, [&](auto done) {
    store->rename(kRootId, one, kRootId, other, RenameMode::kExchange, {.thread_id = 1}, std::move(done));
  });
}

Code truncate(TestStore& store, const std::string& name, uint64_t size_bytes) {
  SetAttributes change;
  change.size_bytes = size_bytes;
  auto done = await<Stat>(store, [&](auto reply) {
    store->set_attributes(find(store, name).id, nullptr, change, {.thread_id = 1}, std::move(reply));
  });
  return done ? Code::kNoData : done.error().code;
}

size_t count_names(TestStore& store) {
  size_t count = 0;
  for (uint64_t after = 0;;) {
    auto page = store->list(kRootId, after, 1000);
    if (!page || page->empty()) return count;
    count += page->size();
    after = page->back().cookie;
  }
}

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
  ASSERT_TRUE(await<void>(store, [&](auto done) { store->fsync(handle, std::move(done)); }));
  store->release(handle);
  store.crash();
  EXPECT_EQ(find(store, "a").id, replacement);
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

TEST(StoreSettling, AnFsyncCoversTheDirectoriesAbove) {
  TestStore store;
  store.mkdir("d");
  store.mkdir("d/e");
  Handle* handle = store.create("d/e/f");
  store.pwrite(handle, 0, store.payload(1, 5'000));
  ASSERT_TRUE(await<void>(store, [&](auto done) { store->fsync(handle, std::move(done)); }));
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

// --- extents ---

TEST(StoreSettling, AnExtentStaysWhileAnythingInItIsRead) {
  StoreOptions options;
  options.extent_bytes = kMiB;
  TestStore store(options);
  for (int i = 0; i < 24; ++i) ASSERT_TRUE(store.write_file(std::to_string(i), store.payload(i, 100'000)));
  store.drain();  // more than two extents, so that the first is closed
  Handle* reader = store.open("0", {});
  store->drop_caches();
  for (int i = 0; i < 24; ++i) ASSERT_TRUE(store.unlink(std::to_string(i)));
  const uint64_t limit = store->status().limit_bytes;
  Handle* huge = store.create("huge");
  EXPECT_EQ(store->status().reclaimed_bytes, 0u);
  bool refused = false;  // what finds no room makes the keeper give back what it can
  store->allocate(huge, Store::AllocateMode::kKeepSize, 0, limit, [&](Status status) { refused = !status; });
  for (int i = 0; i < 100 && !refused; ++i) store->pump();
  EXPECT_TRUE(refused);
  EXPECT_GT(store->status().reclaimed_bytes, 0u);
  store->release(huge);
  ASSERT_TRUE(store.unlink("huge"));
  {
    auto reply = await<ReadReply>(store, [&](auto done) { store->read(reader, 0, 100'000, std::move(done)); });
    ASSERT_TRUE(reply) << reply.error().message;
    EXPECT_EQ(reply->bytes, 100'000u);
  }
  store->release(reader);
  store.drain();
  store.remount();
  EXPECT_LT(store.allocated_bytes(), 100'000u);
}

TEST(StoreSettling, ARawFileThatWasEmptiedIsReadFromWhereItIsWrittenNow) {
  StoreOptions options;
  options.raw_above_bytes = kMiB;
  TestStore store(options);
  ASSERT_TRUE(store.write_file("a", ""));
  EXPECT_EQ(truncate(store, "a", 4 << 20), Code::kNoData);
  store.drain();
  Handle* handle = store.open("a", {.read = true, .write = true, .truncate = true});
  store.pwrite(handle, 0, store.payload(1, 50'000));
  EXPECT_EQ(store.read_file("a"), store.payload(1, 50'000));
  store.close(handle);
  store.remount();
  EXPECT_EQ(store.read_file("a"), store.payload(1, 50'000));
  EXPECT_LT(store.allocated_bytes(), 100'000u);
}

// --- space ---

class SmallVolume : public ::testing::Test {
 protected:
  static StoreOptions options() {
    StoreOptions options;
    options.capacity_bytes = 17 * kMiB;  // 16 for bodies, and 1 for journals before a checkpoint
    options.keep_free_bytes = 1;
    return options;
  }
  void expect_within_capacity() {
    constexpr uint64_t kHeadersBytes = 64 * kKiB;  // of extents
    const StoreStatus status = store_->status();
    EXPECT_LE(status.physical_bytes + status.staged_bytes, status.limit_bytes);
    EXPECT_LE(store_.allocated_bytes(), status.limit_bytes + kHeadersBytes);
  }
  TestStore store_{options()};
};

TEST_F(SmallVolume, WhatIsRemovedCountsUntilItsBlocksWereGivenBack) {
  for (int i = 0; i < 8; ++i) {
    const std::string name = std::to_string(i);
    ASSERT_TRUE(store_.write_file(name, store_.payload(i, 7 << 20))) << "there is room once the one before was given back";
    ASSERT_TRUE(drain(store_));
    expect_within_capacity();
    ASSERT_TRUE(store_.unlink(name));
    ASSERT_TRUE(drain(store_));
    expect_within_capacity();
  }
}

TEST_F(SmallVolume, WhatIsReplacedCountsUntilItsBlocksWereGivenBack) {
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(store_.write_file("t", store_.payload(i, 7 << 20)));
    ASSERT_TRUE(store_.rename("t", "a"));
    store_->pump();
    expect_within_capacity();
  }
  EXPECT_EQ(store_.read_file("a"), store_.payload(7, 7 << 20));
}

TEST_F(SmallVolume, ShrinkingTakesRoomForWhatIsLeft) {
  ASSERT_TRUE(store_.write_file("a", store_.payload(1, 12 << 20)));
  store_.drain();
  EXPECT_EQ(truncate(store_, "a", 10 << 20), Code::kNoSpace);
  expect_within_capacity();
  EXPECT_EQ(store_.read_file("a"), store_.payload(1, 12 << 20));
  EXPECT_EQ(truncate(store_, "a", 3 << 20), Code::kNoData);
  store_.drain();
  expect_within_capacity();
  EXPECT_EQ(store_.read_file("a"), store_.payload(1, 12 << 20).substr(0, 3 << 20));
  EXPECT_EQ(truncate(store_, "a", 0), Code::kNoData) << "takes nothing";
}

TEST_F(SmallVolume, GrowingWaitsForWhatIsBeingRemoved) {
  ASSERT_TRUE(store_.write_file("a", store_.payload(1, 12 << 20)));
  ASSERT_TRUE(store_.write_file("b", "x"));
  store_.drain();
  ASSERT_TRUE(store_.unlink("a"));
  EXPECT_EQ(truncate(store_, "b", 10 << 20), Code::kNoData);
  expect_within_capacity();
}

TEST_F(SmallVolume, WhatAReaderHoldsIsNoRoomUntilItIsClosed) {
  ASSERT_TRUE(store_.write_file("a", store_.payload(1, 10 << 20)));
  store_.drain();
  Handle* reader = store_.open("a", {});
  ASSERT_TRUE(store_.unlink("a"));
  EXPECT_FALSE(store_.write_file("b", store_.payload(2, 10 << 20)));
  expect_within_capacity();
  ASSERT_TRUE(store_.unlink("b"));
  store_->release(reader);
  EXPECT_TRUE(store_.write_file("c", store_.payload(3, 10 << 20)));
  store_.drain();
  expect_within_capacity();
  EXPECT_EQ(store_.read_file("c"), store_.payload(3, 10 << 20));
}

TEST_F(SmallVolume, AFullVolumeIsNotSyncedForEveryRefusedWrite) {
  ASSERT_TRUE(store_.write_file("a", store_.payload(1, 15 << 20)));
  store_.drain();
  Handle* handle = store_.create("b");
  EXPECT_EQ(store_.try_pwrite(handle, 0, std::string(2 << 20, 'x')), Code::kNoSpace);
  const uint64_t syncs = store_->status().syncs;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(store_.try_pwrite(handle, 0, std::string(2 << 20, 'x')), Code::kNoSpace);
  EXPECT_LE(store_->status().syncs, syncs + 1);
  store_.close(handle);
}

// What is left of a body of which a change met a full volume.
class RefusedChange : public SmallVolume {
 protected:
  static constexpr uint64_t kBytes = 7 * kMiB;
  void SetUp() override {
    ASSERT_TRUE(store_.write_file("a", body_));
    store_.drain();
  }
  Handle* open_again() { return store_.open("a", {.read = true, .write = true}); }
  Code allocate(Handle* handle, Store::AllocateMode mode, uint64_t offset, uint64_t length) {
    auto done = await<void>(store_, [&](auto reply) { store_->allocate(handle, mode, offset, length, std::move(reply)); });
    return done ? Code::kNoData : done.error().code;
  }
  void expect_left(const std::string& expected) {
    EXPECT_TRUE(store_.read_file("a") == expected);
    ASSERT_TRUE(drain(store_));
    store_->drop_caches();
    EXPECT_EQ(store_->status().staged_bytes, 0u);
    EXPECT_TRUE(store_.read_file("a") == expected);
    store_.remount();
    EXPECT_TRUE(store_.read_file("a") == expected);
    expect_within_capacity();
  }
  const std::string body_ = store_.payload(1, kBytes);
  const std::string too_much_ = std::string(3 * kMiB, 'x');
};

TEST_F(RefusedChange, AnAppendLeavesTheVersionBefore) {
  Handle* handle = open_again();
  EXPECT_EQ(store_.try_pwrite(handle, kBytes, too_much_), Code::kNoSpace);
  EXPECT_FALSE(store_.close(handle));
  expect_left(body_);
}

TEST_F(RefusedChange, WhatWasJournaledBetweenStays) {
  Handle* handle = open_again();
  store_.pwrite(handle, 0, "new");
  ASSERT_TRUE(await<void>(store_, [&](auto done) { store_->fsync(handle, std::move(done)); }));
  EXPECT_EQ(store_.try_pwrite(handle, kBytes, too_much_), Code::kNoSpace);
  EXPECT_FALSE(store_.close(handle));
  expect_left("new" + body_.substr(3));
}

TEST_F(RefusedChange, WhatWasAcceptedBeforeItIsNotMixedIn) {
  Handle* handle = open_again();
  store_.pwrite(handle, 0, "new");
  store_.pwrite(handle, kBytes, "longer");
  EXPECT_EQ(store_.try_pwrite(handle, kBytes, too_much_), Code::kNoSpace);
  EXPECT_FALSE(store_.close(handle));
  expect_left(body_);
}

TEST_F(RefusedChange, ACutBeforeItIsUndoneToo) {
  Handle* handle = open_again();
  EXPECT_EQ(truncate(store_, "a", 5 << 20), Code::kNoData);
  store_.pwrite(handle, 0, "new");
  EXPECT_EQ(store_.try_pwrite(handle, 5 * kMiB, std::string(6 * kMiB, 'x')), Code::kNoSpace);
  EXPECT_FALSE(store_.close(handle));
  expect_left(body_);
}

TEST_F(RefusedChange, OnlyTheLastWriterTakesItBack) {
  Handle* handle = open_again();
  Handle* other = open_again();
  store_.pwrite(other, 0, "new");
  EXPECT_EQ(store_.try_pwrite(handle, kBytes, too_much_), Code::kNoSpace);
  EXPECT_FALSE(store_.close(handle));
  EXPECT_EQ(store_.read_file("a").substr(0, 3), "new");
  EXPECT_FALSE(store_.close(other));
  expect_left(body_);
}

TEST_F(RefusedChange, APartOfWhatIsWrittenAnewIsNotAVersion) {
  Handle* handle = store_.create("f");
  store_.pwrite(handle, 0, "a part");
  ASSERT_TRUE(await<void>(store_, [&](auto done) { store_->fsync(handle, std::move(done)); }));
  EXPECT_EQ(store_.try_pwrite(handle, 6, std::string(10 * kMiB, 'x')), Code::kNoSpace);
  EXPECT_FALSE(store_.close(handle));
  EXPECT_EQ(store_.read_file("f"), "");
  store_.drain();
  store_.remount();
  EXPECT_EQ(store_.read_file("f"), "");
}

TEST_F(RefusedChange, WhatWasTruncatedToBeWrittenAnewIsEmptied) {
  Handle* handle = store_.open("a", {.write = true, .truncate = true});
  store_.pwrite(handle, 0, "new");
  EXPECT_EQ(store_.try_pwrite(handle, 0, std::string(16 * kMiB, 'x')), Code::kNoSpace);
  EXPECT_FALSE(store_.close(handle));
  expect_left("");
}

TEST_F(RefusedChange, ARefusedOverwriteOrPunchLeavesTheVersionBefore) {
  ASSERT_TRUE(store_.write_file("b", store_.payload(2, 6 << 20)));
  store_.drain();  // a cannot be written a second time
  Handle* handle = open_again();
  EXPECT_EQ(store_.try_pwrite(handle, 0, "new"), Code::kNoSpace);
  EXPECT_FALSE(store_.close(handle));
  EXPECT_TRUE(store_.read_file("a") == body_);
  handle = open_again();
  EXPECT_EQ(allocate(handle, Store::AllocateMode::kPunchHole, 1000, 5 << 20), Code::kNoSpace);
  EXPECT_FALSE(store_.close(handle));
  expect_left(body_);
}

TEST_F(RefusedChange, ATemporaryNameIsNotPublishedWithoutIt) {
  ASSERT_TRUE(store_.write_file("t", "the header"));
  store_.drain();
  Handle* handle = store_.open("t", {.write = true});
  EXPECT_EQ(store_.try_pwrite(handle, 4096, std::string(9 * kMiB, 'x')), Code::kNoSpace);
  EXPECT_FALSE(store_.close(handle));
  handle = store_.open("t", {.write = true});
  store_.pwrite(handle, 100, "and something else");
  EXPECT_TRUE(store_.close(handle)) << "nothing is wrong with this one";
  store_.drain();
  EXPECT_FALSE(store_.rename("t", "final"));
  EXPECT_FALSE(link(store_, "t", "final"));
  ASSERT_TRUE(store_.unlink("a"));
  handle = store_.open("t", {.write = true});
  store_.pwrite(handle, 4096, std::string(9 * kMiB, 'y'));
  EXPECT_TRUE(store_.close(handle));
  EXPECT_TRUE(store_.rename("t", "final")) << "now it has it all";
}

TEST_F(RefusedChange, GoodWritesAfterwardsCount) {
  Handle* handle = store_.create("f");
  EXPECT_EQ(store_.try_pwrite(handle, 0, std::string(10 * kMiB, 'x')), Code::kNoSpace);
  EXPECT_FALSE(store_.close(handle));
  EXPECT_EQ(store_.read_file("f"), "");
  store_.drain();
  ASSERT_TRUE(store_.unlink("a"));
  handle = store_.open("f", {.read = true, .write = true});
  const std::string content = store_.payload(3, kMiB);
  store_.pwrite(handle, 0, content);
  EXPECT_TRUE(store_.close(handle));
  ASSERT_TRUE(drain(store_));
  store_.remount();
  EXPECT_TRUE(store_.read_file("f") == content);
}

TEST_F(RefusedChange, ARepetitionOfTheWriteMakesUpForIt) {
  const std::string content = store_.payload(3, 10 * kMiB);
  Handle* handle = store_.create("f");
  store_.pwrite(handle, 0, content.substr(0, kMiB));
  EXPECT_EQ(store_.try_pwrite(handle, kMiB, content.substr(kMiB)), Code::kNoSpace);
  const auto sync = [&] { return await<void>(store_, [&](auto done) { store_->fsync(handle, std::move(done)); }).has_value(); };
  EXPECT_FALSE(sync());
  ASSERT_TRUE(store_.unlink("a"));
  for (uint64_t at = kMiB; at < content.size(); at += kMiB) {
    EXPECT_FALSE(sync()) << at;
    store_.pwrite(handle, at, content.substr(at, kMiB));
  }
  EXPECT_TRUE(sync());
  EXPECT_TRUE(store_.close(handle));
  store_.crash();
  EXPECT_TRUE(store_.read_file("f") == content);
}

TEST_F(RefusedChange, WhatWasEmptiedAtAFlushIsMissingToo) {
  Handle* handle = store_.create("f");
  store_.pwrite(handle, 0, "head");
  EXPECT_EQ(store_.try_pwrite(handle, 4, std::string(10 * kMiB, 'x')), Code::kNoSpace);
  EXPECT_FALSE(await<void>(store_, [&](auto done) { store_->flush(handle, std::move(done)); }));
  ASSERT_TRUE(store_.unlink("a"));
  store_.pwrite(handle, 4, std::string(10 * kMiB, 'x'));
  EXPECT_FALSE(store_.close(handle)) << "its head is gone";
  EXPECT_EQ(store_.read_file("f"), "");
}

TEST(StoreSettling, WhatWasSpilledOfARefusedChangeLeavesTheVolume) {
  StoreOptions options;
  options.memory_bytes = 16 * kMiB;
  options.capacity_bytes = 64 * kMiB;
  options.keep_free_bytes = 1;
  TestStore store(options);
  const std::string body = store.payload(1, 24 * kMiB);
  ASSERT_TRUE(store.write_file("a", body));
  store.drain();
  Handle* handle = store.open("a", {.write = true});
  for (uint64_t at = 0; at < 36 * kMiB; at += kMiB) store.pwrite(handle, at, std::string(kMiB, 'x'));
  EXPECT_GT(store.allocated_bytes(), 36 * kMiB);
  EXPECT_EQ(store.try_pwrite(handle, 36 * kMiB, std::string(8 * kMiB, 'x')), Code::kNoSpace);
  EXPECT_FALSE(store.close(handle));
  store.drain();
  EXPECT_TRUE(store.read_file("a") == body);
  EXPECT_LT(store.allocated_bytes(), 25 * kMiB);
  EXPECT_EQ(store->status().staged_bytes, 0u);
  store.remount();
  EXPECT_TRUE(store.read_file("a") == body);
}

// --- holes ---

TEST(StoreSettling, APunchOfAnyLengthReturns) {
  constexpr uint64_t kBytes = 500 * kGiB;
  TestStore beside;  // for its directory
  StoreOptions options;
  options.background = false;
  options.node = "test";
  options.index_directory = beside.root() + "/index";
  options.memory_bytes = 64 * kMiB;
  options.raw_above_bytes = kTiB;
  options.capacity_bytes = kTiB;
  options.keep_free_bytes = 1;
  auto opened = open_store(make_sim_volume(), options, system_clock(), "test");
  ASSERT_TRUE(opened) << opened.error().message;
  Store& store = **opened;
  auto made = store.create(kRootId, "a", 0644, {.read = true, .write = true}, {.thread_id = 1});
  ASSERT_TRUE(made) << made.error().message;
  Handle* handle = made->second;
  int good = 0;
  store.write(handle, 0, std::as_bytes(std::span("x")), [&](Result<size_t> result) { good += result ? 1 : 0; });
  SetAttributes change;
  change.size_bytes = kBytes;
  store.set_attributes(made->first.id, handle, change, {}, [&](Result<Stat> result) { good += result ? 1 : 0; });
  store.allocate(handle, Store::AllocateMode::kPunchHole, 0, kBytes, [&](Status status) { good += status ? 1 : 0; });
  EXPECT_EQ(good, 3);
  auto data = store.seek_data(handle, kUnitBytes);
  EXPECT_FALSE(data);
  store.release(handle);
  store.unlink(kRootId, "a", {}, [&](Status status) { good += status ? 1 : 0; });
  EXPECT_EQ(good, 4);
  EXPECT_TRUE(store.close());
}

TEST_F(SmallVolume, NorForEveryRefusedFileThatIsRemovedAgain) {
  ASSERT_TRUE(store_.write_file("a", store_.payload(1, 15 << 20)));
  store_.drain();
  const uint64_t syncs = store_->status().syncs;
  for (int i = 0; i < 20; ++i) {
    Handle* handle = store_.create("t");
    EXPECT_EQ(store_.try_pwrite(handle, 0, std::string(2 << 20, 'x')), Code::kNoSpace);
    store_.close(handle);
    EXPECT_TRUE(store_.unlink("t"));
  }
  EXPECT_LE(store_->status().syncs, syncs + 2);
}

// While it is written nothing of "a" can go.
TEST_F(SmallVolume, WhatARenamedFileReplacesIsRoomOnceItIsFinished) {
  ASSERT_TRUE(store_.write_file("a", store_.payload(1, 10 << 20)));
  store_.drain();
  Handle* handle = store_.create("t");
  store_.pwrite(handle, 0, "new");
  ASSERT_TRUE(store_.rename("t", "a"));
  Handle* other = store_.create("b");
  EXPECT_EQ(store_.try_pwrite(other, 0, std::string(8 << 20, 'x')), Code::kNoSpace);
  store_.close(other);
  EXPECT_TRUE(store_.unlink("b"));
  store_.close(handle);
  EXPECT_TRUE(store_.write_file("c", store_.payload(3, 8 << 20)));
}

uint64_t bytes_of_everything(const std::string& root) {
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    struct stat info {};
    if (::stat(entry.path().c_str(), &info) == 0 && S_ISREG(info.st_mode)) bytes += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

// They lie in the journal and in the index, which both count.
TEST(StoreSettling, SmallBodiesCountAgainstTheCapacityAndComeBack) {
  StoreOptions options;
  options.capacity_bytes = 64 * kMiB;
  options.keep_free_bytes = 1;
  options.inline_below_bytes = 64 * kKiB;
  TestStore store(options);
  constexpr int kMost = 2000;
  constexpr uint64_t kSlackBytes = 4 * kMiB;
  int files = 0;
  const auto space_is_left = [&] {  // a create that finds none has upkeep look for some
    for (int tries = 0; tries < 5 && store->space().blocks_free == 0; ++tries) {
      if (auto made = store->create(kRootId, "x", 0644, {.write = true}, {})) {
        store->release(made->second);
        store.unlink("x");
      }
      for (int i = 0; i < 20; ++i) store->pump();
    }
    return store->space().blocks_free > 0;
  };
  const auto fill = [&] {
    for (files = 0; files < kMost && space_is_left() && store.write_file(std::to_string(files), store.payload(files, 60'000)); ++files)
      if (files % 50 == 0) {
        ASSERT_TRUE(drain(store));
      }
    store.unlink(std::to_string(files));  // if it was made
    ASSERT_TRUE(drain(store));
    EXPECT_LE(bytes_of_everything(store.root()), options.capacity_bytes + kSlackBytes);
    EXPECT_LE(store->status().physical_bytes, options.capacity_bytes + kSlackBytes);
  };
  fill();
  EXPECT_GT(files, 300);  // a body lies in the index, in a checkpoint, and has room in the next one
  EXPECT_LT(files, 600);
  EXPECT_EQ(store.read_file("0"), store.payload(0, 60'000));
  for (int i = 0; i < files; ++i) ASSERT_TRUE(store.unlink(std::to_string(i)));
  fill();
  EXPECT_GT(files, 200) << "what was removed from the journal is room again";
  store.remount();
  EXPECT_LE(store->status().physical_bytes, options.capacity_bytes + kSlackBytes);
  EXPECT_GT(store->status().physical_bytes, files * uint64_t{60'000});
}

TEST(StoreSettling, WhatWasSpilledAndEmptiedLeavesNothingOnTheVolume) {
  StoreOptions options;
  options.memory_bytes = 16 * kMiB;
  TestStore store(options);
  Handle* handle = store.create("a");
  for (uint64_t at = 0; at < 48 * kMiB; at += kMiB) store.pwrite(handle, at, std::string(kMiB, 'x'));
  EXPECT_GT(store.allocated_bytes(), 16 * kMiB);
  EXPECT_EQ(truncate(store, "a", 0), Code::kNoData);
  store.close(handle);
  store.drain();
  EXPECT_LT(store.allocated_bytes(), kMiB);
  EXPECT_EQ(store->status().staged_bytes, 0u);
}

// --- spilled bodies ---

TEST(StoreSettling, WhatWasSpilledAndThenCutOffReadsAsZeros) {
  StoreOptions options;
  options.memory_bytes = 16 * kMiB;
  TestStore store(options);
  Handle* holes = store.create("holes");
  std::string expected(5 * kUnitBytes, '\0');
  for (int i = 0; i < 12; ++i) {
    const std::string piece = store.payload(i, kMiB);
    store.pwrite(holes, expected.size(), piece);
    expected += piece;
  }
  Handle* other = store.create("other");  // does not fit beside it: both are spilled
  for (int i = 0; i < 40; ++i) store.pwrite(other, static_cast<uint64_t>(i) * kMiB, store.payload(i, kMiB));
  store.truncate("holes", kUnitBytes);
  store.pwrite(holes, 12 * kMiB, "end");
  expected.assign(12 * kMiB, '\0');
  expected += "end";
  ASSERT_TRUE(store.close(holes));
  ASSERT_TRUE(store.close(other));
  drain_and_work(store);
  store->drop_caches();
  EXPECT_TRUE(store.read_file("holes") == expected);
}

// Only its beginning lies in the spill file: what follows it there is not where its bytes end.
TEST(StoreSettling, APartOfAUnitThatWasSpilledIsReadWithWhatFollows) {
  StoreOptions options;
  options.memory_bytes = 16 * kMiB;
  TestStore store(options);
  Handle* gap = store.create("gap");
  std::string expected = store.payload(1, 100 * kKiB);
  store.pwrite(gap, 0, expected);
  expected.resize(kUnitBytes);
  for (int i = 0; i < 12; ++i) {
    const std::string piece = store.payload(i + 2, kMiB);
    store.pwrite(gap, expected.size(), piece);
    expected += piece;
  }
  Handle* other = store.create("other");  // does not fit beside it: both are spilled
  for (int i = 0; i < 40; ++i) store.pwrite(other, static_cast<uint64_t>(i) * kMiB, store.payload(i, kMiB));
  EXPECT_TRUE(store.read_file("gap") == expected);
  ASSERT_TRUE(store.close(gap));
  ASSERT_TRUE(store.close(other));
  EXPECT_TRUE(store.read_file("gap") == expected);
}

// --- what could not be synced ---

TEST(StoreSettling, ABodyThatCouldNotBeSyncedIsNotPassedThroughUntilItLiesElsewhere) {
  TestStore beside;  // for its directory
  std::filesystem::create_directory(beside.root() + "/other");
  StoreOptions options;
  options.background = false;
  options.node = "test";
  options.memory_bytes = 64 * kMiB;
  options.pack_below_bytes = 64 * kKiB;
  auto posix = open_posix_volume(beside.root() + "/other", {});
  ASSERT_TRUE(posix) << posix.error().message;
  bool fails = false;
  auto volume = make_fault_volume(*posix, [&](const VolumeCall& call) {
    return Fault{.sys_errno = fails && call.kind == VolumeCall::Kind::kSync && call.path.ends_with(".solo") ? 5 : 0};
  });
  ManualClock clock(1'700'000'000'000'000'000);
  auto opened = open_store(volume, options, clock, "test");
  ASSERT_TRUE(opened) << opened.error().message;
  Store& store = **opened;
  const auto drain_once = [&](bool sync) {
    std::optional<Status> drained;
    store.drain(sync, [&](Status status) { drained = std::move(status); });
    for (int i = 0; i < 1000 && !drained; ++i) store.pump();
    return drained.value_or(fail(Code::kCanceled, "never answered")).has_value();
  };
  EXPECT_TRUE(drain_once(true));
  for (int i = 0; i < 20; ++i) store.pump();  // upkeep was due; from now on it is not
  auto made = store.create(kRootId, "f", 0644, {.read = true, .write = true}, {.thread_id = 1});
  ASSERT_TRUE(made) << made.error().message;
  int good = 0;
  const std::string body = TestStore::payload(1, 200'000);
  store.write(made->second, 0, std::as_bytes(std::span(body)), [&](Result<size_t> result) { good += result ? 1 : 0; });
  store.flush(made->second, [&](Status status) { good += status ? 1 : 0; });
  store.release(made->second);
  EXPECT_EQ(good, 2);
  EXPECT_TRUE(drain_once(false));
  fails = true;
  EXPECT_FALSE(drain_once(true));
  fails = false;
  store.drop_caches();
  EXPECT_LT(store.backing_file(made->first.id).descriptor, 0);
  clock.advance_ns(6'000'000'000);
  for (int i = 0; i < 20; ++i) store.pump();
  store.drop_caches();
  EXPECT_GE(store.backing_file(made->first.id).descriptor, 0);
  EXPECT_TRUE(store.close());
}

// --- who waits for memory ---

TEST(StoreSettling, AWriteThatWaitsForMemoryIsNotOvertakenBySmallerOnes) {
  StoreOptions options;
  options.memory_bytes = 16 * kMiB;
  TestStore store(options);
  ASSERT_TRUE(store.write_file("third", store.payload(3, kUnitBytes)));
  store.drain();
  store->drop_caches();
  Handle* third = store.open("third", {.read = true, .write = true});
  Handle* first = store.create("first");
  Handle* second = store.create("second");
  const std::string piece = store.payload(1, kMiB);
  const auto bytes = std::as_bytes(std::span(piece));
  std::vector<int> done;
  const auto write = [&](Handle* handle, uint64_t offset, size_t length, int name) {
    store->write(handle, offset, bytes.first(length), [&done, name](Result<size_t> result) { done.push_back(result ? name : -1); });
  };
  write(second, 0, kUnitBytes, 0);  // and with the others less than a megabyte is left of what is not for readers
  uint64_t end = 0;
  for (int i = 0; i < 13; ++i, end += kMiB) write(first, end, kMiB, 0);
  ASSERT_EQ(done, std::vector<int>(14, 0));
  done.clear();
  write(first, end, kMiB, 1);
  ASSERT_TRUE(done.empty()) << "it was to wait";
  write(second, kUnitBytes, kUnitBytes, 2);
  store->allocate(third, Store::AllocateMode::kZeroRange, 0, kUnitBytes, [&done](Status status) { done.push_back(status ? 4 : -1); });
  EXPECT_TRUE(done.empty()) << "what was left was taken by who came later";
  write(second, 0, kUnitBytes, 3);
  EXPECT_EQ(done, std::vector<int>{3}) << "this one needs no memory";
  for (int step = 0; step < 1'000'000 && done.size() < 4; ++step) store->pump();
  EXPECT_EQ(done, (std::vector<int>{3, 1, 2, 4}));
  store.close(third);
  store.close(first);
  store.close(second);
}

}  // namespace
}  // namespace kvcachefs

// Names, attributes, opens and closes as clients ask for them, over the lanes and the committer, on a volume in memory. No store.
#include "store/requests/name_requests.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "store/base/limits.h"
#include "store/load/unverified_bodies.h"
#include "store/requests/rename_requests.h"
#include "store/writeback/testing/writeback_fixture.h"

namespace kvcachefs {
namespace name_requests_test {

constexpr Caller kFirst{.uid = 1, .gid = 1, .thread_id = 1}, kSecond{.uid = 2, .gid = 2, .thread_id = 2};
constexpr uint32_t kEnded = 1'000'000'000;  // more than any thread has
constexpr OpenRequest kWrite{.read = false, .write = true}, kRewrite{.read = false, .write = true, .truncate = true};

class NameRequestsTest : public WritebackFixture {
 protected:
  ~NameRequestsTest() override {
    for (Handle* handle : open_handles) open_files.release(handle);
    dirty.clear();
    space_waiters.stop();
    space_waiters.answer_all();
    ahead.finish();
  }

  void be_durable() { EXPECT_TRUE(options.set("durability", "close", {.backing_bytes = kGiB, .memory_bytes = kGiB})); }
  // No room is left; what then can be had is told by may_get_room.
  void fill() { space.configure(0, 0); }

  Handle* create(const std::string& name, const Caller& caller = kFirst) {
    auto created = names.create(kRootId, name, 0644, kWrite, caller);
    EXPECT_TRUE(created) << created.error().message;
    open_handles.push_back(created->second);
    return created->second;
  }
  Result<Handle*> open(ObjectId id, const OpenRequest& request, const Caller& caller) {
    auto opened = open_files.open(id, request, caller);
    if (opened) open_handles.push_back(*opened);
    return opened;
  }
  void close(Handle* handle) {
    Answer flushed;
    open_files.flush(handle, into(flushed));
    EXPECT_TRUE(flushed.is_good());
    open_files.release(handle);
    std::erase(open_handles, handle);
  }
  // A file that was stored and closed.
  ObjectId store_file(const std::string& name, uint64_t size_bytes = 5000) {
    Handle* const handle = create(name);
    const ObjectId id = handle->object->id;
    write_at(handle->object, 0, bytes_of(size_bytes, 1));
    close(handle);
    return id;
  }
  ObjectId named(const std::string& name) {
    auto found = tree.read().find_name(kRootId, name);
    return found && *found ? (*found)->child : ObjectId{};
  }
  // Without `durability`: it is answered at once.
  Answer rename_to(const std::string& from, const std::string& to) {
    Answer answer;
    renames.rename(kRootId, from, kRootId, to, RenameMode::kReplace, kFirst, into(answer));
    return answer;
  }
  Result<Stat> change(ObjectId id, const std::function<void(SetAttributes&)>& set) {
    SetAttributes asked;
    set(asked);
    std::optional<Result<Stat>> answer;
    attributes.set_attributes(id, nullptr, asked, kFirst, [&](Result<Stat> result) { answer = std::move(result); });
    return answer ? *std::move(answer) : fail(Code::kCanceled, "it was not answered");
  }
  template <class T>
  static Code code_of(const Result<T>& result) {
    return result ? Code::kNoData : result.error().code;
  }

  std::vector<Handle*> open_handles;
  bool may_get_room = false;
  Status may_change, may_pin;  // what others say of each object
  std::atomic<uint64_t> next_number{1'000};

  RequestClock request_clock{clock};
  StaleOpens stale_opens{request_clock};
  ProbeCounts probes{clock.monotonic_ns()};
  MemoryFilePolicy policy{{files, options, request_clock}};
  Opener opener;
  UnverifiedBodies unverified{{index, tree, reader, quarantine}, {}};
  Loader loader{{*volume, extents, tree, cache, policy, quarantine, opener, work, counters, request_clock}};
  FileMover mover{{pool, files, policy, request_clock, counters, false, [](uint64_t) { return false; }}};
  BackingFiles backing{{*volume, extents, tree, files, policy, accesses, unverified, counters, request_clock, false}};
  ReadAhead ahead{{accesses, tree, loader, extents, pool, files, policy, cache, mover, backing, counters, request_clock, false}};
  RawSpace raw_space{space, false};
  WaitingBytes waiting{volume,
                       {[this] { return space.room_bytes(); }, [this](uint64_t bytes) { return space.try_reserve(bytes); },
                        [this](uint64_t bytes) { space.release(bytes); }},
                       "WAITING"};
  InPlaceChanges in_place{{changes, space, dirty, false}};
  WriteRequests writes{{*volume, extents, space, raw_space, space_waiters, discards, changes, dirty, cache, policy, waiting, loader, ahead,
                        in_place, refusals, opener, resumer, counters, options, [this](const Object&) { return may_change; }}};
  NewObjects new_objects{{request_clock, 1, next_number}};
  RoomForRecords room_for_records{{space, space_waiters, refusals, counters, [this] { return may_get_room; }}};
  NameVersions versions{{tree, stale_opens, new_objects, room_for_records, records, changes, policy, request_clock, [this](const Object&) { return may_change; }}};
  OpenFiles open_files{{tree, versions, accesses, extents, space, discards, changes, dirty, cache, policy, backing, in_place, read_times, urgent,
                        counters, options, request_clock, ReadTimes::kRelative, false}};
  AttributeRequests attributes{{tree, open_files, writes, in_place, accesses, extents, room_for_records, records, changes, dirty, read_times,
                                request_clock, [this](const Object&) { return may_change; },
                                {[this](const Object&, bool) { return may_pin; }, [](ObjectId) { return false; },
                                 [](const Tree::View&, const ObjectPtr&, uint32_t, AttributeRequests::Facts&) {},
                                 [](ObjectId) { return std::nullopt; }},
                                false}};
  NameRequests names{{tree, versions, attributes, new_objects, room_for_records, records, accesses, changes, dirty, policy, refusals, urgent,
                      probes, counters, options, request_clock, false}};
  RenameRequests renames{{tree, writes, changes, dirty, urgent, space_waiters, probes, options, false}};
};

TEST_F(NameRequestsTest, WhatIsCreatedIsThereAndOpenAndOneThatIsThereIsNotMadeAgain) {
  Handle* const handle = create("a");
  EXPECT_EQ(named("a"), handle->object->id);
  EXPECT_EQ(counters.open_handles, 1u);
  const auto stat = attributes.stat(handle->object->id);
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->uid, kFirst.uid);
  EXPECT_EQ(code_of(names.create(kRootId, "a", 0644, kWrite, kSecond)), Code::kExists);
  EXPECT_EQ(counters.open_handles, 1u);
  close(handle);
  EXPECT_EQ(counters.open_handles, 0u);
}

// They are not evicted: else they could displace all chunks.
TEST_F(NameRequestsTest, NamesWithoutABodyHaveAPartOfTheCapacity) {
  records.measured({.index_bytes = kMiB, .bodiless_bytes = kGiB});
  for (const auto& refused : {names.make_directory(kRootId, "d", 0755, kFirst), names.make_symlink(kRootId, "l", "target", kFirst),
                              names.make_node(kRootId, "f", S_IFIFO | 0644, 0, kFirst)}) {
    ASSERT_EQ(code_of(refused), Code::kNoSpace);
    EXPECT_NE(refused.error().message.find("remove some"), std::string::npos) << refused.error().message;
  }
  EXPECT_TRUE(names.make_node(kRootId, "n", S_IFREG | 0644, 0, kFirst));
  close(create("a"));
  records.measured({.index_bytes = 256 * kMiB, .bodiless_bytes = 0});  // long targets
  EXPECT_EQ(code_of(names.make_symlink(kRootId, "l", "target", kFirst)), Code::kNoSpace);
  EXPECT_TRUE(names.make_directory(kRootId, "e", 0755, kFirst));
  records.measured({.index_bytes = kMiB, .bodiless_bytes = 0});
  EXPECT_TRUE(names.make_directory(kRootId, "d", 0755, kFirst));
}

TEST_F(NameRequestsTest, WhatIsRemovedMayBeRoomInTheIndex) {
  const ObjectId file = store_file("a");
  ASSERT_TRUE(names.make_directory(kRootId, "d", 0755, kFirst) && names.make_symlink(kRootId, "l", "target", kFirst));
  ASSERT_TRUE(attributes.set_xattr(file, "user.x", "12", XattrMode::kAny));
  Answer answer;
  for (const auto& remove : std::initializer_list<std::function<void()>>{
           [&] { names.remove_directory(kRootId, "d", into(answer)); }, [&] { names.unlink(kRootId, "l", kFirst, into(answer)); },
           [&] { ASSERT_TRUE(attributes.set_xattr(file, "user.x", "1", XattrMode::kAny)); }, [&] { ASSERT_TRUE(attributes.remove_xattr(file, "user.x")); }}) {
    run();
    records.index_commit_begins();
    records.index_committed();
    records.measured({.index_bytes = kMiB, .bodiless_bytes = kGiB});
    EXPECT_FALSE(records.is_to_be_measured(Growth::kBodiless));
    remove();
    EXPECT_TRUE(records.is_to_be_measured(Growth::kBodiless));
  }
}

TEST_F(NameRequestsTest, WhatIsEvictedOrHadABodyIsNoRoomForNamesWithoutOne) {
  store_file("a");
  const ObjectId evicted = store_file("b");
  ASSERT_TRUE(attributes.set_xattr(evicted, "user.x", "1", XattrMode::kAny));
  run();
  records.index_commit_begins();
  records.index_committed();
  records.measured({.index_bytes = kMiB, .bodiless_bytes = kGiB});
  Answer answer;
  names.unlink(kRootId, "a", kFirst, into(answer));
  {
    Tree::Write write = tree.write();
    const auto object = write.get(evicted);
    ASSERT_TRUE(object);
    EXPECT_GT(write.evict(*object, kRootId, "b"), 0u);
  }
  run();
  EXPECT_FALSE(records.is_to_be_measured(Growth::kBodiless));
}

TEST_F(NameRequestsTest, AFullVolumeTakesNoNewNamesOrAttributesUnlessRoomMayBeMade) {
  const ObjectId file = store_file("a");
  run();
  fill();
  EXPECT_EQ(code_of(names.make_directory(kRootId, "d", 0755, kFirst)), Code::kNoSpace);
  EXPECT_EQ(code_of(attributes.set_xattr(file, "user.x", "1", XattrMode::kAny)), Code::kNoSpace);
  EXPECT_EQ(counters.errors_no_space, 2u);
  may_get_room = true;
  EXPECT_TRUE(names.make_directory(kRootId, "d", 0755, kFirst));
  EXPECT_TRUE(attributes.set_xattr(file, "user.x", "1", XattrMode::kAny));
  EXPECT_EQ(counters.errors_no_space, 2u);
}

// One record tells the last value.
TEST_F(NameRequestsTest, AnAttributeThatIsSetAgainAndAgainIsSetAsideForOnce) {
  const ObjectId file = store_file("a");
  run();
  const uint64_t before = records.accepted_bytes();
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(attributes.set_xattr(file, "user.x", std::string(60'000, static_cast<char>('a' + i % 26)), XattrMode::kAny));
  EXPECT_GE(records.accepted_bytes(), before + 60'000);
  EXPECT_LE(records.accepted_bytes(), before + 61'000);
  run();
  ASSERT_TRUE(attributes.set_xattr(file, "user.x", std::string(60'000, 'z'), XattrMode::kAny));
  EXPECT_GE(records.accepted_bytes(), before + 60'000) << "that is another record";
}

TEST_F(NameRequestsTest, ARenameIsAnsweredOnceItIsJournaledIfThatWasAskedFor) {
  const ObjectId file = store_file("a.tmp");
  EXPECT_TRUE(rename_to("a.tmp", "a").is_good());
  EXPECT_EQ(named_in_index("a"), ObjectId{});
  be_durable();
  Answer answer;
  renames.rename(kRootId, "a", kRootId, "b", RenameMode::kReplace, kFirst, into(answer));
  EXPECT_EQ(answer.count, 0);
  run();
  EXPECT_TRUE(answer.is_good());
  EXPECT_EQ(named_in_index("b"), file);
}

TEST_F(NameRequestsTest, WhatLacksAWriteGetsNoOtherName) {
  Handle* const handle = create("a.tmp");
  write_at(handle->object, 0, bytes_of(5000, 1));
  {
    const auto lock = handle->object->lock();
    handle->object->note_failed_write({Code::kIo, 0, "a write failed"});
  }
  EXPECT_TRUE(rename_to("a.tmp", "a").is_error(Code::kIo));
  std::optional<Result<Stat>> linked;
  names.link(handle->object->id, kRootId, "b", kFirst, [&](Result<Stat> result) { linked = std::move(result); });
  ASSERT_TRUE(linked);
  EXPECT_EQ(code_of(*linked), Code::kIo);
  EXPECT_EQ(named("a.tmp"), handle->object->id);
  EXPECT_EQ(named("a"), ObjectId{});
  EXPECT_EQ(named("b"), ObjectId{});
}

TEST_F(NameRequestsTest, WhoWritesATemporaryNameAnewBesideItsWriterIsToldToLookAgainAndGetsAVersion) {
  Handle* const first = create("a.tmp");
  write_at(first->object, 0, bytes_of(5000, 1));
  const ObjectId its = first->object->id;
  EXPECT_EQ(code_of(open(its, kRewrite, kSecond)), Code::kStale);
  ObjectPtr own;
  {
    StaleOpens::Released released;
    Tree::Write held = tree.write();
    ASSERT_TRUE(stale_opens.note_lookup(kSecond.thread_id, kRootId, "a.tmp", true, released));
    auto version = versions.version_to_write(held, kRootId, "a.tmp", its, kSecond);
    ASSERT_TRUE(version);
    own = *version;
    EXPECT_NE(own->id, its);
    EXPECT_EQ(own->attributes.uid, kFirst.uid) << "like the other, but for its bytes";
    auto again = versions.version_to_write(held, kRootId, "a.tmp", own->id, kSecond);
    EXPECT_TRUE(again && *again == own) << "the kernel may look twice";
  }
  EXPECT_TRUE(open(own->id, kRewrite, kSecond)) << "no open is told twice";
  EXPECT_EQ(first->object->size_bytes, 5000u);
}

// Both were answered kStale while its writer still wrote it.
TEST_F(NameRequestsTest, OneOfThoseThatWaitForTheFileOfAnEndedWriterGetsIt) {
  Handle* const left = create("a.tmp");
  write_at(left->object, 0, bytes_of(5000, 1));
  left->object->writer_thread = left->object->writer_process = kEnded;
  const ObjectId its = left->object->id;
  close(left);
  Tree::Write held = tree.write();
  const auto first = versions.version_to_write(held, kRootId, "a.tmp", its, kFirst);
  const auto second = versions.version_to_write(held, kRootId, "a.tmp", its, kSecond);
  ASSERT_TRUE(first && second);
  EXPECT_EQ((*first)->id, its);
  EXPECT_NE((*second)->id, its);
}

// A program with a thread pool writes in one thread, which ends, and renames in another.
TEST_F(NameRequestsTest, AFileThatIsToBeRenamedIsLeftToItsProcessThoughTheThreadThatWroteItHasEnded) {
  const auto as_a_thread_that_ends = [](const std::function<void(const Caller&)>& write) {
    pid_t thread_id = 0;
    std::thread([&] {
      thread_id = gettid();
      write({.uid = 1, .gid = 1, .thread_id = static_cast<uint32_t>(thread_id)});
    }).join();
    while (kill(thread_id, 0) == 0) std::this_thread::yield();
  };
  ObjectId created, emptied, version;
  as_a_thread_that_ends([&](const Caller& caller) {
    Handle* const handle = create("a.tmp", caller);
    created = handle->object->id;
    close(handle);
  });
  Handle* const left = create("b.tmp");
  emptied = left->object->id;
  left->object->writer_thread = left->object->writer_process = kEnded;
  close(left);
  as_a_thread_that_ends([&](const Caller& caller) {
    const auto opened = open(emptied, kRewrite, caller);
    ASSERT_TRUE(opened);
    close(*opened);
  });
  Handle* const other = create("c.tmp");
  as_a_thread_that_ends([&](const Caller& caller) {
    Tree::Write held = tree.write();
    const auto made = versions.version_to_write(held, kRootId, "c.tmp", other->object->id, caller);
    held.unlock();
    ASSERT_TRUE(made);
    version = (*made)->id;
    const auto opened = open(version, {.read = false, .write = true}, caller);
    ASSERT_TRUE(opened);
    close(*opened);
  });
  ASSERT_NE(version, other->object->id);
  uint32_t other_thread = kEnded;  // another for each open: the next one of the same would count as its repetition
  for (const ObjectId file : {created, emptied, version}) EXPECT_EQ(code_of(open(file, kRewrite, {.thread_id = ++other_thread})), Code::kStale);
  for (const ObjectId file : {created, emptied}) {
    tree.find(file)->writer_process = kEnded;
    EXPECT_TRUE(open(file, kRewrite, {.thread_id = ++other_thread})) << "its process has ended";
  }
}

TEST_F(NameRequestsTest, WhatIsGoneWhenItIsOpenedIsLookedUpAgainOnce) {
  const ObjectId file = store_file("a");
  Answer removed;
  names.unlink(kRootId, "a", kFirst, into(removed));
  ASSERT_TRUE(removed.is_good());
  run();
  EXPECT_EQ(code_of(open(file, kRewrite, kSecond)), Code::kStale);
  EXPECT_EQ(code_of(open(file, kRewrite, kSecond)), Code::kNotFound);
}

// A file of a peer in the state that the repeated lookup found, and in the next one, which was removed, too, and leaves the table late.
class NameRequestsChangedTest : public NameRequestsTest {
 protected:
  void SetUp() override {
    for (const ObjectPtr& each : {found, next}) {
      const auto lock = each->lock();
      each->durable = each->published = true;
    }
    found->outdated = ObjectId::make(255, 0, 1);
    found->kept_for_repeat = 1;
    next->loading[0];
    tree.write().add(next);
    StaleOpens::Released released;
    stale_opens.tell(kSecond.thread_id, {.open = true}, released);
    ASSERT_TRUE(stale_opens.note_lookup(kSecond.thread_id, kRootId, "a", true, released));
    stale_opens.keep(kSecond.thread_id, found, released);
    ASSERT_TRUE(released.empty());
  }

  static ObjectPtr make() {
    Attributes attributes;
    attributes.mode = S_IFREG | 0644;
    return std::make_shared<Object>(kFile, std::move(attributes));
  }

  static constexpr ObjectId kFile = ObjectId::make(1, 1, 5);
  const ObjectPtr found = make(), next = make();
};

TEST_F(NameRequestsChangedTest, ARepeatedOpenOpensWhatItsLookupFound) {
  const auto opened = open(kFile, {}, kSecond);
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ((*opened)->object, found);
  EXPECT_FALSE(stale_opens.knows(kSecond.thread_id));
  EXPECT_EQ(found->kept_for_repeat, 0u);
}

TEST_F(NameRequestsChangedTest, AnotherStateThatIsGoneIsNoReasonToLookTheNameUp) {
  const ObjectId closed = ObjectId::make(255, 0, 2);
  EXPECT_EQ(code_of(open(closed, {.again = true}, kSecond)), Code::kNotFound);
  EXPECT_TRUE(stale_opens.kept_of(kSecond.thread_id, kFile)) << "it is opened next";
  const auto opened = open(kFile, {}, kSecond);
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ((*opened)->object, found);
  EXPECT_EQ(code_of(open(kFile, {.again = true}, kSecond)), Code::kNotFound) << "the nodeid showed another state than the one that was opened";
  EXPECT_FALSE(stale_opens.knows(kSecond.thread_id));
}

TEST_F(NameRequestsTest, APinThatIsRefusedLeavesNoMark) {
  const ObjectId file = store_file("a");
  may_pin = fail(Code::kNoSpace, "too much would be pinned");
  EXPECT_EQ(code_of(attributes.set_pinned(file, true)), Code::kNoSpace);
  EXPECT_EQ(code_of(attributes.set_pinned(file, false)), Code::kNoAttribute);
  may_pin = {};
  EXPECT_TRUE(attributes.set_pinned(file, true));
  const auto shown = attributes.list_xattrs(file);
  EXPECT_TRUE(shown && shown->empty()) << "it is no attribute of clients";
  EXPECT_TRUE(attributes.set_pinned(file, false));
}

TEST_F(NameRequestsTest, WhatIsOfAPeerIsNotChanged) {
  const ObjectId file = store_file("a");
  may_change = fail(Code::kReadOnly, "another node stored it");
  EXPECT_EQ(code_of(change(file, [](SetAttributes& set) { set.mode = 0600; })), Code::kReadOnly);
  EXPECT_TRUE(change(file, [](SetAttributes& set) { set.mtime_ns = 5; })) << "clients note by times that they used it";
  EXPECT_EQ(code_of(attributes.set_xattr(file, "user.x", "1", XattrMode::kAny)), Code::kReadOnly);
}

TEST_F(NameRequestsTest, ATruncationByPathIsAChangeOfTheBody) {
  const ObjectId file = store_file("a");
  run();
  const auto changed = change(file, [](SetAttributes& set) { set.size_bytes = 0; });
  ASSERT_TRUE(changed);
  EXPECT_EQ(changed->size_bytes, 0u);
  run();
  EXPECT_EQ(index.objects.at(file).body.size_bytes, 0u);
}

}  // namespace name_requests_test
}  // namespace kvcachefs

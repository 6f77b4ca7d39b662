// What names mean, with a fake index and nothing else of a store: no volume, no journal, no threads.
#include "store/tree/tree.h"

#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "store/base/units.h"
#include "store/index/testing/fake_index.h"
#include "store/tree/journaled_version.h"
#include "store/tree/rename.h"
#include "store/tree/testing/tree_parts.h"
#include "store/tree/writer_processes.h"

namespace kvcachefs {
namespace tree_test {

constexpr ObjectId kBody{100}, kOther{101}, kDirectory{102}, kThird{103};
constexpr int64_t kSecondNs = 1'000'000'000;
constexpr uint32_t kThread = 4'000'000, kOtherThread = 4'000'001;  // beyond pid_max: each its own process, which has ended

class TreeTest : public ::testing::Test, protected testing::TreeParts {
 protected:
  TreeTest() {
    index.put_object(record(kRootId, S_IFDIR | 0755, 2));
    space.configure(1024 * kMiB, 0);
  }
  ~TreeTest() override { tree.clear(); }

  static Attributes attributes(uint32_t mode) {
    Attributes made;
    made.mode = mode;
    return made;
  }
  static ObjectRecord record(ObjectId id, uint32_t mode, uint32_t nlink, uint64_t size_bytes = 0) {
    ObjectRecord made;
    made.id = id;
    made.attributes = attributes(mode);
    made.body.size_bytes = size_bytes;
    if (size_bytes > 0) made.body.place = {PlaceKind::kPacked, {1, 1}, 0, size_bytes};
    made.nlink = nlink;
    return made;
  }
  void put_journaled(ObjectId id, const std::string& name, uint64_t size_bytes = 4096) {
    index.put_object(record(id, S_IFREG | 0644, 1, size_bytes));
    index.put_name(kRootId, name, id, S_IFREG);
  }
  ObjectPtr make(ObjectId id, const std::string& name, uint32_t mode = S_IFREG | 0644, uint32_t thread_id = kThread) {
    auto object = std::make_shared<Object>(id, attributes(mode));
    note_writer(*object, thread_id);
    Tree::Write names = tree.write();
    EXPECT_TRUE(names.check_new_name(kRootId, name));
    auto directory = names.directory_for_entry(kRootId);
    EXPECT_TRUE(directory && names.make_entry(*directory, name, object));
    return object;
  }
  ObjectPtr another_version(const ObjectPtr& object, ObjectId id, const std::string& name, uint32_t thread_id) {
    auto fresh = std::make_shared<Object>(id, attributes(S_IFREG | 0644));
    note_writer(*fresh, thread_id);
    fresh->temporary = true;
    Tree::Write names = tree.write();
    auto state = names.names().edit(kRootId, name);
    names.add_version(*state, kRootId, name, object, fresh);
    return fresh;
  }
  // The journal has the object and its name.
  void journaled(const ObjectPtr& object, const std::string& name) {
    Tree::Write names = tree.write();
    {
      const auto lock = object->lock();
      object->sealed_version = object->content_version;
      object->attributes_durable = object->attributes_version;
    }
    object->durable = true;
    static_cast<void>(names.names().take_pending());
    names.names().settle({kRootId, {name_cookie(name), name}}, object->id);
    index.put_object(record(object->id, S_IFREG | 0644, 1));
    index.put_name(kRootId, name, object->id, S_IFREG);
  }
  Result<Rename> rename(const std::string& from, const std::string& to, RenameMode mode = RenameMode::kReplace) {
    Rename asked{kRootId, from, kRootId, to, mode, kThread};
    Tree::Write names = tree.write();
    KVC_TRY(names.resolve_rename(asked));
    if (asked.source) KVC_TRY(names.rename(asked));
    return asked;
  }
  ObjectId found(const std::string& name) {
    auto entry = tree.read().find_name(kRootId, name);
    return entry && *entry ? (*entry)->child : ObjectId{};
  }
  bool in_ram(ObjectId id) { return tree.find(id) != nullptr; }

  ManualClock clock{1000 * kSecondNs};
  FakeIndex index;
  StaleOpens stale{clock};
  Tree tree{of(index, clock)};
};

TEST_F(TreeTest, AnObjectIsMadeFromTheIndexAndForgottenWhenIdle) {
  put_journaled(kBody, "a");
  EXPECT_FALSE(in_ram(kBody));
  {
    auto kept = tree.get_kept(kBody);
    ASSERT_TRUE(kept);
    EXPECT_EQ(kept->object->size_bytes, 4096u);
    EXPECT_EQ(kept->names.live(kBody), kept->object);
  }
  const ObjectPtr object = *tree.get(kBody);
  object->handles = 1;
  tree.forget_when_idle(object);
  EXPECT_TRUE(in_ram(kBody));
  object->handles = 0;
  tree.forget_when_idle(object);
  EXPECT_FALSE(in_ram(kBody));
  EXPECT_TRUE(object->forgotten);
  EXPECT_FALSE(tree.get(kOther));
}

TEST_F(TreeTest, OneThatWasForgottenDoesNotTakeItsSuccessorAlong) {
  put_journaled(kBody, "a");
  const ObjectPtr first = *tree.get(kBody);
  tree.forget_when_idle(first);
  const ObjectPtr second = *tree.get(kBody);
  EXPECT_NE(first, second);
  tree.forget_when_idle(first);
  EXPECT_EQ(tree.find(kBody), second);
}

TEST_F(TreeTest, AChangedObjectStaysUntilItIsJournaled) {
  const ObjectPtr object = make(kBody, "a");
  EXPECT_EQ(found("a"), kBody);
  tree.forget_when_idle(object);
  EXPECT_TRUE(in_ram(kBody));
  EXPECT_GT(records.accepted_bytes(), 0u);
  EXPECT_TRUE(dirty.has_attributes());
  journaled(object, "a");
  tree.forget_when_idle(object);
  EXPECT_FALSE(in_ram(kBody));
  EXPECT_EQ(found("a"), kBody);
}

TEST_F(TreeTest, WhatLostItsNameIsToldOfAsItWas) {
  put_journaled(kBody, "a");
  ASSERT_TRUE(tree.write().unlink(kRootId, "a", kThread));
  EXPECT_FALSE(found("a").valid());
  EXPECT_FALSE(in_ram(kBody));
  EXPECT_FALSE(tree.get(kBody)) << "the index may not know yet that it is gone";
  Tree::Write names = tree.write();
  auto stat = names.stat(kBody);
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->nlink, 0u);
  EXPECT_EQ(stat->size_bytes, 4096u);
  EXPECT_EQ(names.unlinked(), 1u);
  ASSERT_TRUE(index.objects.contains(kBody));
  EXPECT_FALSE(names.record(kBody).value()) << "the row may lack what was changed last";
  EXPECT_FALSE(names.record_summary(kBody).value());
  names.forget_removed(kBody);
  EXPECT_FALSE(names.stat(kBody));
  index.objects.erase(kBody);
  names.note_gone(kBody);
  EXPECT_FALSE(names.stat(kBody));
}

TEST_F(TreeTest, AnOpenObjectOutlivesItsName) {
  put_journaled(kBody, "a");
  const ObjectPtr object = *tree.get(kBody);
  object->handles = 1;
  ASSERT_TRUE(tree.write().unlink(kRootId, "a", kThread));
  EXPECT_TRUE(in_ram(kBody));
  EXPECT_TRUE(tree.read().still_needed({kBody, object->base.place}));
  object->handles = 0;
  EXPECT_FALSE(tree.read().still_needed({kBody, object->base.place}));
  tree.forget_when_idle(object);
  EXPECT_FALSE(in_ram(kBody));
}

// The seal reads what the body has on the volume, to write it elsewhere, whatever becomes of the name meanwhile.
TEST_F(TreeTest, ThePlaceOfAnObjectThatIsBeingSealedOutlivesItsName) {
  put_journaled(kBody, "a");
  const ObjectPtr object = *tree.get(kBody);
  const FreedPlace freed{kBody, object->base.place};
  object->sealing = true;
  ASSERT_TRUE(tree.write().unlink(kRootId, "a", kThread));
  EXPECT_TRUE(tree.read().still_needed(freed));
  object->sealing = false;
  tree.forget_when_idle(object);
  EXPECT_FALSE(in_ram(kBody));
  EXPECT_FALSE(tree.read().still_needed(freed));
}

TEST_F(TreeTest, APlaceThatWasTakenOverIsNeededWhileTheFormerIsRead) {
  put_journaled(kBody, "a");
  const ObjectPtr former = *tree.get(kBody);
  const FreedPlace freed{kOther, former->base.place};
  former->handles = 1;
  tree.write().keep_shared_place(kBody, freed.place);
  EXPECT_TRUE(tree.read().still_needed(freed));
  former->handles = 0;
  EXPECT_FALSE(tree.read().still_needed(freed));
  tree.write().drop_unread_places();
  former->handles = 1;
  EXPECT_FALSE(tree.read().still_needed(freed)) << "dropped";
}

TEST_F(TreeTest, DirectoriesCountTheirDirectories) {
  make(kDirectory, "d", S_IFDIR | 0755);
  EXPECT_EQ(tree.read().stat(kRootId)->nlink, 3u);
  EXPECT_EQ(tree.read().stat(kDirectory)->nlink, 2u);
  EXPECT_EQ(tree.write().unlink(kRootId, "d", kThread).error().code, Code::kIsDirectory);
  ASSERT_TRUE(tree.write().remove_directory(kRootId, "d"));
  EXPECT_EQ(tree.read().stat(kRootId)->nlink, 2u);
  EXPECT_EQ(tree.write().directory_for_entry(kDirectory).error().code, Code::kNotFound);
  EXPECT_EQ(tree.write().remove_directory(kRootId, "d").error().code, Code::kNotFound);
}

TEST_F(TreeTest, ARemovedDirectoryIsGoneThoughABatchUnderWayBringsItIntoTheIndex) {
  for (const bool kept : {false, true}) {
    SCOPED_TRACE(kept ? "kept for a call that is repeated" : "kept by nobody");
    const ObjectId id = kept ? kOther : kDirectory;
    const ObjectPtr directory = make(id, "d", S_IFDIR | 0755);
    if (kept) {
      const auto lock = directory->lock();
      ++directory->kept_for_repeat;
    }
    ASSERT_TRUE(tree.write().remove_directory(kRootId, "d"));
    EXPECT_EQ(in_ram(id), kept);
    if (kept) tree.write().let_go({directory});
    EXPECT_FALSE(in_ram(id));
    index.put_object(record(id, S_IFDIR | 0755, 2));
    EXPECT_EQ(tree.write().directory_for_entry(id).error().code, Code::kNotFound);
    EXPECT_EQ(tree.read().stat(id)->nlink, 0u);
  }
}

TEST_F(TreeTest, AQuarantinedNameIsAbsentAndCanBeTaken) {
  put_journaled(kBody, "a");
  {
    Tree::Write names = tree.write();
    const ObjectPtr object = *names.get(kBody);
    const auto lock = object->lock();
    names.mark_quarantined(object);
  }
  EXPECT_FALSE(found("a").valid());
  EXPECT_TRUE(tree.read().list(kRootId, 0, 10)->empty());
  make(kOther, "a");
  EXPECT_EQ(found("a"), kOther);
  EXPECT_EQ(tree.read().stat(kBody)->nlink, 0u);
  tree.write().end_quarantine(kBody);
  EXPECT_FALSE(tree.read().is_quarantined(kBody));
}

TEST_F(TreeTest, WhatWasEvictedIsAbsentAndCanBeMadeAnewBeforeThatIsJournaled) {
  put_journaled(kBody, "a");
  {
    Tree::Write names = tree.write();
    auto state = names.names().edit_own(kRootId, "a");
    ASSERT_TRUE(state);
    (*state)->leave_to_peers();
  }
  EXPECT_EQ(found("a"), ObjectId{});
  EXPECT_TRUE(tree.read().list(kRootId, 0, 10)->empty());
  make(kOther, "a");
  EXPECT_EQ(found("a"), kOther);
  const auto items = tree.read().list(kRootId, 0, 10);
  ASSERT_TRUE(items && items->size() == 1);
  EXPECT_EQ(items->front().id, kOther);
  Tree::Write names = tree.write();
  const NameState& state = *names.names().dirty(kRootId, "a");
  EXPECT_EQ(state.durable, kBody);
  EXPECT_TRUE(state.erase_durable) << "it goes before the new one has a body";
}

TEST_F(TreeTest, ADirectoryOfQuarantinedNamesIsEmpty) {
  make(kDirectory, "d", S_IFDIR | 0755);
  index.put_object(record(kBody, S_IFREG | 0644, 1, 10));
  index.put_name(kDirectory, "a", kBody, S_IFREG);
  EXPECT_EQ(tree.write().remove_directory(kRootId, "d").error().code, Code::kNotEmpty);
  tree.write().found_quarantined(kBody);
  EXPECT_TRUE(tree.write().remove_directory(kRootId, "d"));
}

TEST_F(TreeTest, AProbeOfASidecarTellsOfItsBody) {
  put_journaled(kBody, "a", 123);
  EXPECT_FALSE(tree.read().body_probed_by(kRootId, "a.metadata", false)) << "one without the other tells nothing";
  const auto both = tree.read().body_probed_by(kRootId, "a.metadata", true);
  ASSERT_TRUE(both);
  EXPECT_EQ(both->id, kBody);
  EXPECT_EQ(both->size_bytes, 123u);
  const auto neither = tree.read().body_probed_by(kRootId, "b.metadata", false);
  ASSERT_TRUE(neither);
  EXPECT_FALSE(neither->id.valid());
  EXPECT_FALSE(tree.read().body_probed_by(kRootId, "a", true));
}

TEST_F(TreeTest, ARenamePublishesAndReplaces) {
  put_journaled(kBody, "a");
  const ObjectPtr replaced = *tree.get(kBody);
  const ObjectPtr fresh = make(kOther, "a.tmp");
  EXPECT_TRUE(fresh->temporary);
  auto moved = rename("a.tmp", "a");
  ASSERT_TRUE(moved);
  EXPECT_EQ(moved->unsealed, std::vector<ObjectPtr>{fresh}) << "its name cannot be journaled before its body is";
  EXPECT_EQ(found("a"), kOther);
  EXPECT_FALSE(found("a.tmp").valid());
  EXPECT_EQ(fresh->replaced, kBody);
  EXPECT_TRUE(fresh->published);
  EXPECT_FALSE(fresh->temporary);
  EXPECT_EQ(replaced->nlink, 0u);
  EXPECT_TRUE(in_ram(kBody)) << "it lingers";
  EXPECT_EQ(rename("a.tmp", "b").error().code, Code::kNotFound);
  EXPECT_EQ(rename("a", "a", RenameMode::kNoReplace).error().code, Code::kExists);
}

TEST_F(TreeTest, AnExchangeKeepsBoth) {
  make(kBody, "a");
  make(kDirectory, "d", S_IFDIR | 0755);
  EXPECT_EQ(rename("a", "b", RenameMode::kExchange).error().code, Code::kNotFound);
  EXPECT_EQ(rename("a", "d").error().code, Code::kIsDirectory);
  EXPECT_EQ(rename("d", "a").error().code, Code::kNotDirectory);
  ASSERT_TRUE(rename("a", "d", RenameMode::kExchange));
  EXPECT_EQ(found("a"), kDirectory);
  EXPECT_EQ(found("d"), kBody);
  EXPECT_EQ(tree.read().stat(kRootId)->nlink, 3u);
}

TEST_F(TreeTest, ARenamedDirectoryTakesItsLinkAlong) {
  make(kDirectory, "d", S_IFDIR | 0755);
  make(kOther, "e", S_IFDIR | 0755);
  ASSERT_TRUE(rename("d", "e")) << "an empty directory is replaced";
  EXPECT_EQ(tree.read().stat(kRootId)->nlink, 3u);
  EXPECT_EQ(tree.read().stat(kOther)->nlink, 0u);
  make(kThird, "f", S_IFDIR | 0755);
  Rename into{kRootId, "e", kThird, "e", RenameMode::kReplace, kThread};
  Tree::Write names = tree.write();
  ASSERT_TRUE(names.resolve_rename(into));
  ASSERT_TRUE(names.rename(into));
  EXPECT_EQ(names.stat(kRootId)->nlink, 3u);
  EXPECT_EQ(names.stat(kThird)->nlink, 3u);
}

TEST_F(TreeTest, ARenameOfOneVersionLeavesTheOthersTheirName) {
  const ObjectPtr first = make(kBody, "a.tmp");
  const ObjectPtr second = another_version(first, kOther, "a.tmp", kOtherThread);
  EXPECT_EQ(rename("a.tmp", "a", RenameMode::kExchange).error().code, Code::kNotFound);
  ASSERT_TRUE(rename("a.tmp", "a"));
  EXPECT_EQ(found("a"), kBody);
  EXPECT_EQ(found("a.tmp"), kOther);
  EXPECT_GT(second->relookup_until_ns.load(), clock.monotonic_ns()) << "the kernel may take the other for it";
  EXPECT_EQ(first->relookup_until_ns.load(), 0);
}

TEST_F(TreeTest, TwoNamesOfOneObjectStay) {
  const ObjectPtr object = make(kBody, "a");
  {
    Tree::Write names = tree.write();
    ASSERT_TRUE(names.give_name(kRootId, "b", object));
    names.change_links(object, +1);
  }
  auto moved = rename("a", "b");
  ASSERT_TRUE(moved);
  EXPECT_EQ(moved->source, nullptr);
  EXPECT_EQ(found("a"), kBody);
  EXPECT_EQ(object->nlink, 2u);
}

TEST_F(TreeTest, ARenameTakesTheVersionOfItsCaller) {
  const ObjectPtr first = make(kBody, "a.tmp");
  const ObjectPtr second = another_version(first, kOther, "a.tmp", kOtherThread);
  EXPECT_TRUE(tree.has_versions());
  EXPECT_EQ(found("a.tmp"), kOther);
  Tree::Write names = tree.write();
  const NameState& state = *names.names().dirty(kRootId, "a.tmp");
  EXPECT_EQ(names.choose_version(state, kThread), kBody);
  EXPECT_EQ(names.choose_version(state, kOtherThread), kOther);
  EXPECT_EQ(names.choose_version_to_read(state, kThread), kOther);
  second->unflushed_handles = 1;
  EXPECT_EQ(names.choose_version_to_read(state, kThread), kBody) << "the newest that reads whole";
  EXPECT_EQ(names.version_to_keep(state), kBody);
  EXPECT_EQ(names.choose_version_to_read(state, kOtherThread), kOther) << "what the caller itself is making";
}

// What newer versions took the records of, until they were renamed or removed.
TEST_F(TreeTest, OfVersionsWithoutARecordThoseThatTheNameMeansAreJournaledAgain) {
  const LiveOptions options{StoreOptions{}};
  const BodyChanges changes{{clock, space, records, dirty, discards, options}};
  const ObjectPtr first = make(kBody, "a.tmp"), second = another_version(first, kOther, "a.tmp", kOtherThread);
  const ObjectPtr shown = another_version(second, kThird, "a.tmp", kThread);
  shown->unflushed_handles = shown->synced_handles = 1;
  const std::vector<ObjectPtr> all{first, second, shown};
  const auto queued = [&](const std::function<void(NameState&)>& change) {
    Tree::Write names = tree.write();
    NameState& state = *names.names().state({kRootId, {name_cookie("a.tmp"), "a.tmp"}});
    change(state);
    journal_former_version(names, state, changes);
    std::vector<ObjectId> ids;
    for (const ObjectPtr& object : all) {
      const auto lock = object->lock();
      if (object->content_dirty()) ids.push_back(object->id);
      object->sealed_version = object->content_version;
      object->in_dirty_queue = false;
    }
    static_cast<void>(dirty.take_content());
    return ids;
  };
  using Ids = std::vector<ObjectId>;
  EXPECT_EQ(queued([](NameState&) {}), (Ids{kOther, kThird})) << "the newest finished one, which the next commit names, and the one that clients see";
  EXPECT_EQ(queued([&](NameState&) { second->durable = true; }), Ids{kThird});
  EXPECT_EQ(queued([&](NameState&) { shown->unflushed_handles = shown->synced_handles = 0; }), Ids{kThird}) << "one for both";
  EXPECT_EQ(queued([](NameState& state) { state.taken_later = kThird; }), Ids{}) << "a peer removed it";
  EXPECT_EQ(queued([&](NameState& state) {
              state.taken_later = kOther;
              second->durable = false;
              shown->unflushed_handles = 1;
            }),
            Ids{kThird});
  const Tree::Read names = tree.read();
  const NameState& state = *names.names().dirty(kRootId, "a.tmp");
  EXPECT_EQ(version_to_journal(names, state), ObjectId{});
}

TEST_F(TreeTest, OneOfSeveralWritersRemovesItsOwn) {
  const ObjectPtr first = make(kBody, "a.tmp");
  another_version(first, kOther, "a.tmp", kOtherThread);
  EXPECT_TRUE(tree.asks_for_process(kRootId, "a.tmp"));
  ASSERT_TRUE(tree.write().unlink(kRootId, "a.tmp", kThread));
  EXPECT_EQ(found("a.tmp"), kOther);
  EXPECT_FALSE(in_ram(kBody));
  EXPECT_TRUE(tree.read().is_one_of_several(kOther)) << "the kernel may still know the other";
}

TEST_F(TreeTest, AThreadRemovesItsOwnVersionBeforeThoseOfItsProcess) {
  const ObjectPtr first = make(kBody, "a.tmp");
  const ObjectPtr second = another_version(first, kOther, "a.tmp", kOtherThread);
  first->writer_process = second->writer_process = process_of(kThread);
  ASSERT_TRUE(tree.write().unlink(kRootId, "a.tmp", kThread));
  EXPECT_EQ(found("a.tmp"), kOther);
  EXPECT_FALSE(in_ram(kBody));
}

TEST_F(TreeTest, AVersionThatNobodyRenamesIsSwept) {
  const ObjectPtr first = make(kBody, "a.tmp");
  first->last_write_ns = clock.monotonic_ns();
  another_version(first, kOther, "a.tmp", kOtherThread);
  tree.write().sweep_versions(false);
  EXPECT_TRUE(in_ram(kBody));
  clock.advance_ns(61 * kSecondNs);
  tree.write().sweep_versions(false);
  EXPECT_FALSE(in_ram(kBody));
  EXPECT_EQ(found("a.tmp"), kOther);
  tree.write().sweep_versions(false);
  EXPECT_FALSE(tree.has_versions());
}

TEST_F(TreeTest, WhereRoomIsWantedAVersionThatNobodyCanRenameIsSwept) {
  const auto lives = static_cast<uint32_t>(getpid()), lives_too = static_cast<uint32_t>(getppid());
  const auto two_versions = [&](uint32_t first_by, uint32_t second_by) {
    const ObjectPtr first = make(kBody, "a.tmp", S_IFREG | 0644, first_by);
    first->last_write_ns = clock.monotonic_ns();
    space.reserve(4096);
    first->reserved_bytes = 4096;
    another_version(first, kOther, "a.tmp", second_by);
    return first;
  };
  const auto is_swept = [&](bool room_is_wanted) {
    tree.write().sweep_versions(false, room_is_wanted);
    return !in_ram(kBody);
  };
  const auto next = [&] {
    tree.write().unlink(kRootId, "a.tmp", kThread);
    tree.write().unlink(kRootId, "a.tmp", kThread);
    ASSERT_FALSE(in_ram(kBody) || in_ram(kOther));
  };
  two_versions(lives, lives_too);
  clock.advance_ns(20 * kSecondNs);
  EXPECT_FALSE(is_swept(true)) << "its writer may rename it, however slowly";
  next();
  const ObjectPtr first = two_versions(lives, lives);
  EXPECT_FALSE(is_swept(false)) << "no room is wanted";
  first->handles = 1;
  EXPECT_FALSE(is_swept(true)) << "it is open";
  first->handles = 0;
  EXPECT_TRUE(is_swept(true)) << "its writer wrote another one";
  EXPECT_EQ(found("a.tmp"), kOther);
  EXPECT_EQ(space.reserved_bytes(), 0u);
  next();
  const ObjectPtr of_ended = two_versions(kThread, lives);
  of_ended->writer_process = lives_too;
  EXPECT_FALSE(is_swept(true)) << "another thread of its process may rename it";
  of_ended->writer_process = kThread;
  EXPECT_TRUE(is_swept(true)) << "its writer has ended";
}

TEST_F(TreeTest, WhatWasReplacedLingersForASecond) {
  put_journaled(kBody, "a");
  const ObjectPtr object = *tree.get(kBody);
  {
    Tree::Write names = tree.write();
    names.change_links(object, -1);
    ASSERT_TRUE(names.linger(object));
    names.forget_if_idle(object);
    names.end_lingering(false);
  }
  EXPECT_TRUE(in_ram(kBody));
  clock.advance_ns(kSecondNs);
  tree.write().end_lingering(false);
  EXPECT_FALSE(in_ram(kBody));
}

TEST_F(TreeTest, WhatIsTooLargeForItDoesNotLinger) {
  put_journaled(kBody, "a", 64 * kMiB);
  const ObjectPtr object = *tree.get(kBody);
  EXPECT_FALSE(tree.write().linger(object));
}

TEST_F(TreeTest, WhatWasJustWrittenIsKeptForItsRename) {
  const ObjectPtr object = make(kBody, "a.tmp");
  object->last_write_ns = clock.monotonic_ns();
  journaled(object, "a.tmp");
  tree.forget_when_idle(object);
  EXPECT_TRUE(in_ram(kBody));
  clock.advance_ns(10 * kSecondNs);
  tree.write().end_lingering(false);
  EXPECT_FALSE(in_ram(kBody));
}

TEST_F(TreeTest, WhatHasLargeAttributesIsNotKeptForItsRename) {
  const ObjectPtr object = make(kBody, "a.tmp");
  object->last_write_ns = clock.monotonic_ns();
  object->attributes.xattrs.push_back({"user.a", std::string(4000, 'v')});
  journaled(object, "a.tmp");
  tree.forget_when_idle(object);
  EXPECT_FALSE(in_ram(kBody)) << "20,000 of them would fill the RAM";
}

TEST_F(TreeTest, WhatARepeatedLookupFoundStaysUntilTheOpen) {
  put_journaled(kBody, "a");
  tree.write().keep_for_repeat(stale, kThread, kBody);
  EXPECT_FALSE(in_ram(kBody)) << "the thread was not told";
  StaleOpens::Released released;
  stale.tell(kThread, {.open = true}, released);
  tree.write().keep_for_repeat(stale, kThread, kBody);
  tree.write().keep_for_repeat(stale, kThread, kBody);
  ASSERT_TRUE(in_ram(kBody));
  EXPECT_EQ(tree.find(kBody)->kept_for_repeat, 1u);
  tree.write().let_go({stale.looked_again(kThread, nullptr).kept});
  EXPECT_FALSE(in_ram(kBody));
}

TEST_F(TreeTest, TheLockIsNotWaitedForByATry) {
  {
    const Tree::Read names = tree.read();
    EXPECT_FALSE(tree.try_write());
  }
  const auto names = tree.try_write();
  ASSERT_TRUE(names);
  EXPECT_EQ(names->objects_in_ram(), 0u);
}

}  // namespace tree_test
}  // namespace kvcachefs

// The content and order of journaled batches, and what follows from them; without lanes and without a store.
#include "store/commit/committer.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <thread>
#include <utility>

#include "store/commit/testing/commit_fixture.h"

namespace kvcachefs {
namespace committer_test {

class CommitterTest : public CommitFixture {
 protected:
  // The first call made that begins like this; SIZE_MAX: none.
  size_t call(const std::string& beginning) {
    const auto found = std::find_if(calls.begin(), calls.end(), [&](const std::string& each) { return each.starts_with(beginning); });
    return found == calls.end() ? SIZE_MAX : static_cast<size_t>(found - calls.begin());
  }
  static bool is_journal(const VolumeCall& each) { return each.path.find("/journal/") != std::string::npos; }
  bool sync_all(Answer& answer) {
    CommitRequest point = request({}, &answer);
    point.sync = point.sync_all = true;
    queue.add(std::move(point));
    return committer->step();
  }
};

TEST_F(CommitterTest, ABodyAndItsNameAreOneBatchAndTheCallIsAnsweredWhenTheIndexHasIt) {
  const ObjectPtr body = make("a");
  write(body, 5000);
  EXPECT_TRUE(is_queued(body));
  Answer answer;
  queue.add(request_of(body, &answer));
  EXPECT_TRUE(committer->step());
  EXPECT_TRUE(answer.is_good());
  EXPECT_TRUE(is_journaled(body));
  EXPECT_TRUE(last_batch().starts_with("put 100; ")) << last_batch();
  EXPECT_NE(last_batch().find("name a 100; "), std::string::npos) << last_batch();
  EXPECT_EQ(named_in_index("a"), body->id);
  EXPECT_EQ(told_sizes.at(body->id), 5000u);
  EXPECT_EQ(seals_ended, 1);
  EXPECT_EQ(space.live_bytes(), 8192u);
  EXPECT_EQ(space.reserved_bytes(), 0u) << "what was set aside for it is on the volume";
  EXPECT_TRUE(queue.idle());
  EXPECT_FALSE(committer->step());
}

// A later commit puts the directory: if its name came first, the index would skip the name, and no later batch would repeat it.
TEST_F(CommitterTest, ADirectoryMadeBetweenTwoBatchesIsNotNamedBeforeItIsPut) {
  const auto make_directory = [this](const std::string& name, size_t xattr_bytes = 0) {
    Attributes attributes;
    attributes.mode = S_IFDIR | 0755;
    if (xattr_bytes > 0) attributes.xattrs.push_back(Xattr{"user.x", std::string(xattr_bytes, 'x')});
    const auto made = std::make_shared<Object>(ObjectId{next_id++}, attributes);
    Tree::Write names = tree.write();
    const auto above = names.directory_for_entry(kRootId);
    EXPECT_TRUE(above && names.make_entry(*above, name, made));
    return made;
  };
  make_directory("n");
  queue.add({});
  EXPECT_TRUE(committer->step());
  EXPECT_TRUE(tree.write().remove_directory(kRootId, "n"));
  for (int i = 0; i < 140; ++i) make_directory(std::to_string(i), 65'000);  // more than one batch
  ObjectPtr anew;
  index.on_apply = [&] {
    if (!anew) anew = make_directory("n");
  };
  queue.add({});
  EXPECT_TRUE(committer->step());
  ASSERT_TRUE(anew);
  queue.add({});
  committer->step();
  EXPECT_EQ(named_in_index("n"), anew->id);
  const auto found = tree.read().find_name(kRootId, "n");
  ASSERT_TRUE(found && *found);
  EXPECT_EQ((*found)->child, anew->id);
}

TEST_F(CommitterTest, RequestsThatWaitAreJournaledTogether) {
  const ObjectPtr first = make("a"), second = make("b");
  write(first, 5000);
  write(second, 6000);
  Answer answers[2];
  queue.add(request_of(first, &answers[0]));
  queue.add(request_of(second, &answers[1]));
  EXPECT_TRUE(committer->step());
  EXPECT_TRUE(answers[0].is_good() && answers[1].is_good());
  EXPECT_EQ(journaled_batches().size(), 1u);
}

TEST_F(CommitterTest, ANameWaitsForItsBody) {
  const ObjectPtr body = make("a");
  write(body, 5000);
  queue.add({});
  EXPECT_TRUE(committer->step());
  EXPECT_FALSE(named_in_index("a").valid());
  queue.add(request_of(body));
  EXPECT_TRUE(committer->step());
  EXPECT_EQ(named_in_index("a"), body->id);
}

// A peer reads the journal before the index here has the batch; its removal must not be answered before that.
TEST_F(CommitterTest, WhatABatchNamesIsKnownUntilTheIndexHasItWhateverTheNameIsByThen) {
  const ObjectPtr body = make("a"), other = make("b");
  write(body, 5000);
  write(other, 5000);
  const auto may_be_journaled = [&](const ObjectPtr& child) { return tree.read().names().may_be_journaled(kRootId, "a", child->id); };
  EXPECT_FALSE(may_be_journaled(body)) << "no batch has it";
  int looked = 0;
  index.on_apply = [&] {
    if (looked++ > 0) return;
    EXPECT_TRUE(may_be_journaled(body));
    rename("b", "a");
    EXPECT_TRUE(may_be_journaled(body));
    EXPECT_FALSE(may_be_journaled(other));
  };
  queue.add(request_of(body));
  EXPECT_TRUE(committer->step());
  EXPECT_EQ(looked, 1);
  EXPECT_FALSE(may_be_journaled(body)) << "the index has it";
  queue.add(request_of(other));
  EXPECT_TRUE(committer->step());
  EXPECT_EQ(named_in_index("a"), other->id);
  EXPECT_FALSE(may_be_journaled(other));
}

// A peer must not see the time of a change before its bytes.
class CommitterTimesTest : public CommitterTest {
 protected:
  static constexpr int64_t kSecondNs = 1'000'000'000, kStartNs = 1'000 * kSecondNs;
  using Times = std::pair<int64_t, int64_t>;  // mtime, ctime: seconds since the start
  Times in_index() const {
    const Attributes& attributes = index.objects.at(body->id).attributes;
    return {(attributes.mtime_ns - kStartNs) / kSecondNs, (attributes.ctime_ns - kStartNs) / kSecondNs};
  }
  void write_later(uint64_t size_bytes) {
    clock.advance_ns(kSecondNs);
    write(body, size_bytes);
  }
  void change_attributes(const std::function<void(Attributes&)>& change) {
    clock.advance_ns(kSecondNs);
    const auto lock = body->lock();
    body->attributes.ctime_ns = clock.realtime_ns();
    change(body->attributes);
    changes.mark_attributes_dirty(body);
  }
  void set_mtime(int64_t seconds) {
    change_attributes([&](Attributes& attributes) { attributes.mtime_ns = kStartNs + seconds * kSecondNs; });
  }
  void commit(std::vector<SealedBody> bodies = {}) {
    queue.add(request(std::move(bodies)));
    committer->step();
  }
  void commit(SealedBody sealed) {
    std::vector<SealedBody> bodies;
    bodies.push_back(std::move(sealed));
    commit(std::move(bodies));
  }
  const ObjectPtr body = put("a");
};

TEST_F(CommitterTimesTest, OfAChangeInPlaceComeWithItsBytes) {
  EXPECT_EQ(in_index(), Times(0, 0));
  write_later(6000);
  change_attributes([](Attributes& attributes) { attributes.mode = S_IFREG | 0600; });
  commit();
  EXPECT_EQ(index.objects.at(body->id).attributes.mode, S_IFREG | 0600U);
  EXPECT_EQ(in_index(), Times(0, 0));
  write_later(6000);
  commit(seal(body));
  EXPECT_EQ(in_index(), Times(3, 3));
  change_attributes([](Attributes&) {});
  commit();
  EXPECT_EQ(in_index(), Times(3, 4)) << "the journal has its bytes";
}

TEST_F(CommitterTimesTest, ThatAClientSetsCountInTheEnd) {
  set_mtime(-50);
  commit();
  EXPECT_EQ(in_index(), Times(-50, 1));
  write_later(6000);
  set_mtime(-40);
  commit();
  EXPECT_EQ(in_index(), Times(-50, 1)) << "those of the bytes that the journal has";
  SealedBody sealed = seal(body);
  set_mtime(-30);
  commit(std::move(sealed));
  EXPECT_EQ(in_index(), Times(-30, 4));
  commit();
  EXPECT_EQ(in_index(), Times(-30, 4));
  set_mtime(-20);
  commit();
  EXPECT_EQ(in_index(), Times(-20, 5));
}

TEST_F(CommitterTimesTest, OfWhatWasWrittenDuringASealComeLater) {
  write_later(6000);
  SealedBody sealed = seal(body);
  write_later(7000);
  commit(std::move(sealed));
  EXPECT_EQ(in_index(), Times(1, 1));
  set_mtime(-10);
  commit();
  EXPECT_EQ(in_index(), Times(1, 1));
  commit(seal(body));
  EXPECT_EQ(in_index(), Times(-10, 3));
}

TEST_F(CommitterTimesTest, OfABodyThatOnlyMovesAreItsOwn) {
  {
    const auto lock = body->lock();
    ASSERT_TRUE(changes.reserve_space(*body, 5000));
    changes.mark_content_dirty(body);
    body->moving_version = body->content_version;
  }
  set_mtime(-10);
  commit();
  EXPECT_EQ(in_index(), Times(-10, 1));
  write_later(6000);
  change_attributes([](Attributes&) {});
  commit();
  EXPECT_EQ(in_index(), Times(-10, 1));
}

TEST_F(CommitterTimesTest, OfADamagedBodyStay) {
  write_later(6000);
  commit(seal(body));
  quarantine.put(body, body->base.version, "bad");
  write_later(7000);
  commit();
  EXPECT_EQ(in_index(), Times(1, 1));
}

// Its bytes did not change: neither do its times. While it is written again its old place is on the volume, too.
TEST_F(CommitterTest, AVersionThatIsRenamedWhileTheBatchOfANewerOneIsWrittenStaysAsItIs) {
  const ObjectPtr older = make("x.tmp"), newer = std::make_shared<Object>(ObjectId{next_id++}, older->attributes);
  older->add_handle();  // a reader, so that the table keeps it
  write(older, 5000);
  queue.add(request_of(older));
  EXPECT_TRUE(committer->step());
  ASSERT_TRUE(is_journaled(older));
  older->writer_thread = 7;
  newer->writer_thread = 8;
  add_version("x.tmp", older, newer);
  write(newer, 5000);
  const int64_t mtime_ns = older->attributes.mtime_ns;
  int renamed = 0;
  index.on_apply = [&] {
    if (renamed++ > 0) return;
    clock.advance_ns(1'000'000'000);
    Rename asked{kRootId, "x.tmp", kRootId, "x", RenameMode::kReplace, older->writer_thread};
    Tree::Write names = tree.write();
    ASSERT_TRUE(names.resolve_rename(asked));
    ASSERT_EQ(asked.source, older);
    ASSERT_TRUE(names.rename(asked));
  };
  queue.add(request_of(newer));
  EXPECT_TRUE(committer->step());
  ASSERT_EQ(renamed, 1);
  ASSERT_EQ(named_in_index("x.tmp"), newer->id);
  ASSERT_FALSE(named_in_index("x").valid());
  EXPECT_TRUE(is_queued(older));
  EXPECT_EQ(older->attributes.mtime_ns, mtime_ns);
  EXPECT_EQ(space.reserved_bytes(), 2 * kBlockBytes);
  queue.add(request_of(older));
  EXPECT_TRUE(committer->step());
  EXPECT_EQ(named_in_index("x"), older->id);
  EXPECT_EQ(index.objects.at(older->id).attributes.mtime_ns, mtime_ns);
  EXPECT_EQ(space.reserved_bytes(), 0u);
}

// Until then its eviction would bring back what it replaced; from then on nothing keeps it, though its bytes stay in RAM.
TEST_F(CommitterTest, WhatReplacedAnotherCountsSoUntilThatIsJournaled) {
  put("a");
  const ObjectPtr sealed = make("tmp");
  sealed->add_handle();  // a reader, so that the table keeps it
  write(sealed, 5000);
  queue.add(request_of(sealed));
  EXPECT_TRUE(committer->step());
  rename("tmp", "a");
  EXPECT_TRUE(sealed->replaces);
  queue.add({});
  EXPECT_TRUE(committer->step());
  ASSERT_EQ(named_in_index("a"), sealed->id);
  EXPECT_FALSE(sealed->replaces);
  const ObjectPtr dirty_one = make("tmp");
  write(dirty_one, 5000);
  rename("tmp", "a");
  queue.add({});
  EXPECT_TRUE(committer->step());
  ASSERT_EQ(named_in_index("a"), sealed->id) << "the other has no body yet";
  EXPECT_TRUE(dirty_one->replaces);
  queue.add(request_of(dirty_one));
  EXPECT_TRUE(committer->step());
  ASSERT_EQ(named_in_index("a"), dirty_one->id);
  EXPECT_FALSE(dirty_one->replaces);
}

TEST_F(CommitterTest, WhatWasRenamedAndWrittenSinceIsNotNamedByItsOlderBody) {
  const ObjectPtr body = make("tmp");
  write(body, 5000);
  SealedBody older = seal(body);
  write(body, 6000);
  rename("tmp", "a");
  std::vector<SealedBody> bodies;
  bodies.push_back(std::move(older));
  queue.add(request(std::move(bodies)));
  EXPECT_TRUE(committer->step());
  EXPECT_FALSE(named_in_index("a").valid());
  queue.add(request_of(body));
  EXPECT_TRUE(committer->step());
  EXPECT_EQ(named_in_index("a"), body->id);
  EXPECT_EQ(index.objects.at(body->id).body.size_bytes, 6000u);
}

TEST_F(CommitterTest, ABodyThatWasWrittenToMeanwhileStaysDirty) {
  const ObjectPtr body = make("a");
  write(body, 5000);
  SealedBody sealed = seal(body);
  write(body, 9000);
  std::vector<SealedBody> bodies;
  bodies.push_back(std::move(sealed));
  queue.add(request(std::move(bodies)));
  EXPECT_TRUE(committer->step());
  EXPECT_EQ(index.objects.at(body->id).body.size_bytes, 5000u);
  const auto lock = body->lock();
  EXPECT_TRUE(body->content_dirty());
  EXPECT_FALSE(body->sealing);
  EXPECT_EQ(body->reserved_bytes, 12288u) << "for the next seal";
}

TEST_F(CommitterTest, WithSyncTheDataIsSyncedBeforeTheRecordAndTheRecordBeforeTheAnswer) {
  const ObjectPtr body = make("a");
  write(body, 5000);
  size_t calls_before_answer = 0;
  CommitRequest wanted = request_of(body);
  wanted.sync = true;
  wanted.done = [&](Status status) {
    EXPECT_TRUE(status);
    calls_before_answer = calls.size();
  };
  queue.add(std::move(wanted));
  calls.clear();
  EXPECT_TRUE(committer->step());
  const size_t data = call("sync nodes/test/1/extents"), record = call("write nodes/test/1/journal"), synced = call("sync nodes/test/1/journal");
  ASSERT_NE(synced, SIZE_MAX);
  EXPECT_LT(data, record);
  EXPECT_LT(record, synced);
  EXPECT_LT(synced, calls_before_answer);
}

TEST_F(CommitterTest, WithoutSyncNothingIsSynced) {
  calls.clear();
  put("a");
  EXPECT_EQ(call("sync"), SIZE_MAX);
}

TEST_F(CommitterTest, AReplacedChunkGivesItsPlaceUpWithTheNewName) {
  const ObjectPtr old = put("a");
  const Place place = index.objects.at(old->id).body.place;
  const ObjectPtr fresh = make("tmp");
  write(fresh, 7000);
  rename("tmp", "a");
  queue.add(request_of(fresh));
  EXPECT_TRUE(committer->step());
  EXPECT_EQ(named_in_index("a"), fresh->id);
  EXPECT_EQ(index.objects.count(old->id), 0u);
  const std::vector<FreedPlace> freed = dead.take();
  ASSERT_EQ(freed.size(), 1u);
  EXPECT_EQ(freed[0].place, place);
}

TEST_F(CommitterTest, ABodyThatLostItsNameIsNotJournaledAndItsPlaceIsDead) {
  const ObjectPtr body = make("a");
  write(body, 5000);
  SealedBody sealed = seal(body);
  const Place place = sealed.body.place;
  unlink("a");
  Answer answer;
  std::vector<SealedBody> bodies;
  bodies.push_back(std::move(sealed));
  queue.add(request(std::move(bodies), &answer));
  EXPECT_TRUE(committer->step());
  EXPECT_TRUE(answer.is_good());
  EXPECT_EQ(index.objects.count(body->id), 0u);
  EXPECT_TRUE(dead.mentions(place.extent));
  EXPECT_GE(seals_ended, 1);
}

TEST_F(CommitterTest, APlaceChangesHandsOnlyInTheBatchThatTakesItFromTheOther) {
  const ObjectPtr old = put("a");
  const auto twin_of_old = [&](const ObjectPtr& twin) {
    SealedBody sealed;
    const auto lock = twin->lock();
    sealed.snapshot = twin->begin_seal(twin);
    sealed.body = index.objects.at(old->id).body;
    sealed.shared_with = old->id;
    return sealed;
  };
  const ObjectPtr other = make("b");
  write(other, 5000);
  std::vector<SealedBody> bodies;
  bodies.push_back(twin_of_old(other));  // the other keeps its name
  queue.add(request(std::move(bodies)));
  EXPECT_TRUE(committer->step());
  EXPECT_FALSE(is_journaled(other));
  EXPECT_TRUE(is_queued(other)) << "it is written after all";
  EXPECT_EQ(dead.bytes(), 0u) << "the place is that of the old one still";

  const ObjectPtr twin = make("tmp");
  write(twin, 5000);
  rename("tmp", "a");
  const Place place = index.objects.at(old->id).body.place;
  bodies.clear();
  bodies.push_back(twin_of_old(twin));
  queue.add(request(std::move(bodies)));
  EXPECT_TRUE(committer->step());
  EXPECT_TRUE(is_journaled(twin));
  EXPECT_EQ(index.objects.at(twin->id).body.place, place);
}

// ... also if peers had so much under other names that the statements make the commit take two batches.
TEST_F(CommitterTest, APlaceDoesNotChangeHandsWhereWhatIsSaidOfPeersTakesTwoBatches) {
  constexpr uint64_t kNames = 25'000;
  const auto name_of = [](uint64_t number) { return std::string(180, 'x') + std::to_string(number); };
  FakeIndex of_peer;
  for (uint64_t n = 0; n < kNames; ++n) {
    const std::string name = name_of(n);
    of_peer.names[{kRootId, name_cookie(name)}] = NameEntry{name, ObjectId::make(0, 1, 1000 + n), S_IFREG, name_cookie(name)};
  }
  const ObjectPtr linked = put("linked"), old = put("a");
  const ObjectPtr twin = make("tmp");
  write(twin, 5000);
  {
    Tree::Write names = tree.write();
    names.view().set_peers({{1, "peer", {std::shared_ptr<const Index>(), &of_peer}, std::make_shared<const Statements>()}});
    for (uint64_t n = 0; n < kNames; ++n) {  // a link over each of them
      auto state = names.names().edit_own(kRootId, name_of(n));
      ASSERT_TRUE(state);
      (*state)->child = linked->id;
      (*state)->type_bits = S_IFREG;
      (*state)->overridden = {ObjectId::make(1, 1, 1000 + n)};
    }
  }
  rename("tmp", "a");
  SealedBody sealed;
  {
    const auto lock = twin->lock();
    sealed.snapshot = twin->begin_seal(twin);
    sealed.body = index.objects.at(old->id).body;
    sealed.shared_with = old->id;
  }
  std::vector<SealedBody> bodies;
  bodies.push_back(std::move(sealed));
  queue.add(request(std::move(bodies)));
  EXPECT_TRUE(committer->step());
  const std::vector<Batch> batches = journaled_batches();
  EXPECT_GT(std::ranges::count_if(batches, [](const Batch& batch) { return batch.records.size() > 10'000; }), 1) << "or this is no test";
  const std::string put_text = "put " + std::to_string(twin->id.value) + "; ", name_text = "name a " + std::to_string(twin->id.value) + "; ";
  for (const Batch& batch : batches) {
    const std::string text = text_of(batch);
    EXPECT_TRUE(!text.contains(put_text) || text.contains(name_text)) << "and its name in another";
  }
  EXPECT_TRUE(is_queued(twin)) << "it is written after all";
}

// A rotation of logs that their writers have open: the file before takes each name, and its own new name waits for the bytes written since.
TEST_F(CommitterTest, AChainOfRenamesTakesWorkInProportionToItsLength) {
  constexpr uint64_t kFiles = 300;
  const auto name_of = [](uint64_t number) { return "log." + std::to_string(number); };
  std::vector<ObjectPtr> logs;
  for (uint64_t n = 0; n < kFiles; ++n) logs.push_back(put(name_of(n)));
  const ObjectPtr fresh = put("fresh");
  for (ObjectPtr& file : logs) {
    auto opened = tree.write().get(file->id);
    ASSERT_TRUE(opened);
    write(file = std::move(*opened), 6000);
  }
  for (uint64_t n = kFiles; n-- > 0;) rename(name_of(n), name_of(n + 1));
  queue.add({});
  EXPECT_TRUE(committer->step());
  EXPECT_EQ(named_in_index(name_of(1)), logs[1]->id) << "all of them wait";
  rename("fresh", name_of(1));

  BatchBuilder builder({tree, index, accesses, dirty, changes, space, records, dead, stamps, read_times});
  Commit commit;
  EXPECT_TRUE(builder.build(commit));
  EXPECT_EQ(commit.named_as_is.size(), kFiles - 1) << "or this is no test";
  EXPECT_LT(builder.looks(), 10 * kFiles);
  builder.give_up(commit);

  queue.add({});
  EXPECT_TRUE(committer->step());
  EXPECT_EQ(named_in_index(name_of(1)), fresh->id);
  for (uint64_t n = 1; n < kFiles; ++n) EXPECT_EQ(named_in_index(name_of(n + 1)), logs[n]->id) << n;
  // Even if each record were a batch of its own, no file would be without a name in between.
  std::map<std::string, ObjectId> names;
  std::map<ObjectId, int> links;
  for (const Batch& batch : journaled_batches())
    for (const Record& record : batch.records) {
      const auto* const name = std::get_if<NameRecord>(&record);
      if (name == nullptr) continue;
      ++links[name->child];
      const ObjectId before = std::exchange(names[name->name], name->child);
      if (!before.valid() || before == logs[0]->id) continue;  // the first one is replaced
      EXPECT_GT(--links[before], 0) << name->name;
    }
}

TEST_F(CommitterTest, AChainOfSharedPlacesOfWhichNoneChangesHandsTakesWorkInProportionToItsLength) {
  constexpr uint64_t kFiles = 300;
  std::vector<ObjectPtr> old, fresh;
  const auto name_of = [](uint64_t number) { return "log." + std::to_string(number); };
  for (uint64_t n = 0; n < kFiles; ++n) old.push_back(put(name_of(n)));
  // Each has the bytes of one file and the name of the next; the name of the first does not change.
  std::vector<SealedBody> bodies;
  for (uint64_t n = 0; n < kFiles; ++n) {
    fresh.push_back(make("tmp"));
    write(fresh[n], 5000);
    rename("tmp", n + 1 < kFiles ? name_of(n + 1) : "last");
    SealedBody sealed;
    {
      const auto lock = fresh[n]->lock();
      sealed.snapshot = fresh[n]->begin_seal(fresh[n]);
    }
    sealed.body = index.objects.at(old[n]->id).body;
    sealed.shared_with = old[n]->id;
    bodies.push_back(std::move(sealed));
  }
  queue.add(request(std::move(bodies)));
  BatchBuilder builder({tree, index, accesses, dirty, changes, space, records, dead, stamps, read_times});
  Commit commit;
  commit.requests = queue.take();
  builder.build(commit);
  EXPECT_LT(builder.looks(), 10 * kFiles);
  for (const ObjectPtr& each : fresh) EXPECT_TRUE(is_queued(each)) << "it is written after all";
  EXPECT_TRUE(commit.sealed.empty());
  builder.give_up(commit);
}

// Statements cover the files that a client removed with a peer's directory; a name that the peer made in it since stays, with the directory.
TEST_F(CommitterTest, OfAPeersDirectoryNothingIsSaidWhereThereIsANameThatNobodyTook) {
  FakeIndex of_peer;
  const auto give = [&](uint64_t directory, const std::string& name, uint64_t child, uint32_t type) {
    const ObjectId parent = directory == 0 ? kRootId : ObjectId::make(0, 1, directory);
    of_peer.names[{parent, name_cookie(name)}] = NameEntry{name, ObjectId::make(0, 1, child), type, name_cookie(name)};
  };
  give(0, "d", 1000, S_IFDIR);
  give(1000, "taken", 1001, S_IFREG);
  tree.write().view().set_peers({{1, "peer", {std::shared_ptr<const Index>(), &of_peer}, std::make_shared<const Statements>()}});
  const ObjectId child = ObjectId::make(1, 1, 1000), here = ObjectId::make(0, 1, 1000);  // the removed directory
  const auto said_after_removal = [&] {
    {
      Tree::Write names = tree.write();
      for (const auto& [parent, name, of_peer_there] : {std::tuple(kRootId, "d", child), std::tuple(here, "taken", ObjectId::make(1, 1, 1001))}) {
        auto state = names.names().edit_own(parent, name);
        EXPECT_TRUE(state);
        if (state) (*state)->overridden = {of_peer_there};
      }
    }
    const size_t before = journaled_batches().size();
    queue.add(CommitRequest{});
    EXPECT_TRUE(committer->step());
    std::set<std::string> said;
    const std::vector<Batch> batches = journaled_batches();
    for (size_t at = before; at < batches.size(); ++at)
      for (const Record& record : batches[at].records)
        if (const auto* statement = std::get_if<StatementRecord>(&record)) said.insert(std::get<UnnameRecord>(statement->what).name);
    return said;
  };
  give(1000, "later", 1002, S_IFREG);
  EXPECT_EQ(said_after_removal(), std::set<std::string>{"taken"});
  of_peer.names.erase({ObjectId::make(0, 1, 1000), name_cookie("later")});
  EXPECT_EQ(said_after_removal(), std::set<std::string>{"d"});
}

TEST_F(CommitterTest, WhatTheJournalDoesNotTakeWaitsAgain) {
  const ObjectPtr body = make("a");
  write(body, 5000);
  SealedBody sealed = seal(body);
  const Place place = sealed.body.place;
  on_call = [](const VolumeCall& each) { return Fault{.sys_errno = is_journal(each) ? EIO : 0}; };
  Answer answer;
  std::vector<SealedBody> bodies;
  bodies.push_back(std::move(sealed));
  queue.add(request(std::move(bodies), &answer));
  EXPECT_TRUE(committer->step());
  EXPECT_TRUE(answer.is_error(Code::kIo));
  EXPECT_TRUE(health.error(Health::Of::kJournal));
  EXPECT_EQ(counters.errors_journal, 1u);
  EXPECT_TRUE(index.batches == 0 && dead.mentions(place.extent));
  EXPECT_TRUE(is_queued(body));
  EXPECT_EQ(seals_ended, 2);
  on_call = nullptr;
  queue.add(request_of(body, &(answer = {})));
  EXPECT_TRUE(committer->step());
  EXPECT_TRUE(answer.is_good());
  EXPECT_EQ(named_in_index("a"), body->id);
  EXPECT_FALSE(health.error(Health::Of::kJournal));
}

TEST_F(CommitterTest, AFullFileSystemGivesTheJournalOfTheReserve) {
  ASSERT_TRUE(reserve.refill(4 * kMiB, kGiB));
  int refused = 0;
  on_call = [&](const VolumeCall& each) {
    return Fault{.sys_errno = is_journal(each) && each.kind == VolumeCall::Kind::kWrite && refused++ == 0 ? ENOSPC : 0};
  };
  put("a");
  EXPECT_LT(reserve.held_bytes(), 4 * kMiB);
  EXPECT_TRUE(reserve.is_cut());
}

TEST_F(CommitterTest, WithoutADescriptorTheJournalHasOneOfAnExtent) {
  ASSERT_TRUE(extents.make(PlaceKind::kSolo));
  size_t left = 2;
  const auto lacks_one = [&]() -> Status { return left-- > 0 ? fail_errno(EMFILE, "journal: open") : Status{}; };
  EXPECT_FALSE(room.write(lacks_one)) << "it is the only one";
  ASSERT_TRUE(extents.make(PlaceKind::kSolo));
  left = 1;
  EXPECT_TRUE(room.write(lacks_one));
  EXPECT_EQ(counters.errors_journal.load(), 0u) << "nothing of the room that is kept for it went";
}

TEST_F(CommitterTest, AMarkCoversWhatWasJournaledAndTheIndexMayHoldItThen) {
  const ObjectPtr body = put("a");
  const ExtentId extent = index.objects.at(body->id).body.place.extent;
  EXPECT_EQ(unmarked.in(extent), std::vector<ObjectId>{body->id});
  queue.note_written(5000);
  Answer answer;
  EXPECT_TRUE(sync_all(answer));
  EXPECT_TRUE(answer.is_good());
  EXPECT_EQ(last_batch(), "synced; ");
  EXPECT_EQ(index.frozen, 1u);
  EXPECT_TRUE(unmarked.in(extent).empty());
  EXPECT_EQ(queue.unsynced_bytes(), 0u);
}

TEST_F(CommitterTest, BodiesCountAsDurableOnceTheJournalIsSyncedAsWell) {
  put("a");  // of 5000 bytes
  on_call = [](const VolumeCall& each) { return Fault{.sys_errno = is_journal(each) && each.kind == VolumeCall::Kind::kSync ? ENOSPC : 0}; };
  Answer answer;
  sync_all(answer);
  EXPECT_TRUE(answer.is_error(Code::kNoSpace));
  EXPECT_EQ(extents.synced_bytes(), 5000u);
  EXPECT_EQ(counters.durable_bytes, 0u);
  on_call = nullptr;
  sync_all(answer = {});
  EXPECT_TRUE(answer.is_good());
  EXPECT_EQ(counters.durable_bytes, 5000u);
}

TEST_F(CommitterTest, NoMarkIsMadeWhileABodyLiesWhereASyncFailed) {
  const ObjectPtr body = put("a");
  const ExtentId extent = index.objects.at(body->id).body.place.extent;
  on_call = [](const VolumeCall& each) {
    return Fault{.sys_errno = each.kind == VolumeCall::Kind::kSync && each.path.find("/extents/") != std::string::npos ? EIO : 0};
  };
  Answer answer;
  sync_all(answer);
  EXPECT_TRUE(answer.is_error(Code::kIo));
  on_call = nullptr;
  ASSERT_TRUE(extents.is_lost(extent));
  sync_all(answer = {});
  EXPECT_TRUE(answer.is_error(Code::kIo)) << "it still lies there";
  EXPECT_EQ(index.frozen, 0u);
  write(body, 5000);  // sealed once more, to another place
  queue.add(request_of(body));
  sync_all(answer = {});
  EXPECT_TRUE(answer.is_good());
  EXPECT_EQ(index.frozen, 1u);
}

TEST_F(CommitterTest, ADamagedIndexIsBuiltAnewOrTakesNoMoreCommitsAndTheCallIsAnsweredAllTheSame) {
  index.fails = true;
  put("a");
  EXPECT_EQ(rebuilds, 1);
  EXPECT_FALSE(index.gave_up);
  index.fails = true;
  rebuilt = false;
  const ObjectPtr body = make("b");
  write(body, 5000);
  Answer answer;
  queue.add(request_of(body, &answer));
  EXPECT_TRUE(committer->step());
  EXPECT_TRUE(answer.is_good()) << "the journal has it";
  EXPECT_TRUE(is_journaled(body));
  EXPECT_TRUE(index.gave_up);
  EXPECT_EQ(counters.errors_index, 1u);
}

TEST_F(CommitterTest, WhatIsQuarantinedIsJournaledSo) {
  const ObjectPtr body = put("a");
  quarantine.put(body, 1, "a test");
  EXPECT_FALSE(queue.idle());
  EXPECT_TRUE(committer->step());
  EXPECT_TRUE(queue.idle());
  EXPECT_EQ(last_batch(), "put 100; ");
  EXPECT_TRUE(index.objects.at(body->id).body.quarantined);
}

TEST_F(CommitterTest, CallsThatWaitForRecordsGoOnWhenSomeAreWritten) {
  records.accept(100 * kMiB);
  ASSERT_TRUE(records.crowded());
  EXPECT_FALSE(waiters.has_room(100));
  Answer answer;
  waiters.await_room(100, Growth::kFiles, [&](Status status) {
    ++answer.count;
    answer.status = std::move(status);
  });
  EXPECT_EQ(answer.count, 0);
  queue.add({});
  EXPECT_TRUE(committer->step());
  resumer.give_answers();
  EXPECT_TRUE(answer.is_good());
}

TEST_F(CommitterTest, CallsThatSetAttributesWaitUntilOthersAreJournaledOrForFiveSeconds) {
  const auto await_room = [this](Answer& answer) {
    waiters.await_room_for_xattr(100, [&answer](Status status) {
      ++answer.count;
      answer.status = std::move(status);
    });
  };
  const auto look_again = [this] {
    waiters.resume();
    resumer.give_answers();
  };
  UnjournaledXattrs of_open_files;
  records.keep_xattrs(of_open_files, RecordSpace::kMostXattrBytes);
  EXPECT_TRUE(waiters.has_room(100)) << "nothing else waits for them";
  EXPECT_FALSE(waiters.has_room_for_xattr(100));
  Answer first, second;
  await_room(first);
  look_again();
  EXPECT_EQ(first.count, 0);
  records.keep_xattrs(of_open_files, 0);
  look_again();
  EXPECT_TRUE(first.is_good());
  records.keep_xattrs(of_open_files, RecordSpace::kMostXattrBytes);
  await_room(second);
  clock.advance_ns(4'900'000'000);
  look_again();
  EXPECT_EQ(second.count, 0);
  clock.advance_ns(200'000'000);
  look_again();
  EXPECT_TRUE(second.is_good()) << "it is refused where it is set";
}

// A call that would be refused for the part of the index.
TEST_F(CommitterTest, CallsThatAreToBeMeasuredWaitForACommitOfTheIndexThatBeginsLater) {
  const auto await_room = [this](Answer& answer) {
    EXPECT_FALSE(waiters.has_room(100, Growth::kLinks));
    waiters.await_room(100, Growth::kLinks, [&answer](Status status) {
      ++answer.count;
      answer.status = std::move(status);
    });
  };
  const auto look_again = [this] {
    waiters.resume();
    resumer.give_answers();
  };
  records.measured({.bodiless_bytes = kGiB});
  EXPECT_TRUE(waiters.has_room(100, Growth::kLinks)) << "nothing to wait for: it is refused where the name is made";
  records.index_commit_begins();
  records.note_shrunk();
  Answer first, second;
  await_room(first);
  EXPECT_TRUE(waiters.want_upkeep());
  EXPECT_TRUE(waiters.has_room(100)) << "a file";
  records.index_committed();
  records.measured({.bodiless_bytes = kGiB});
  look_again();
  EXPECT_EQ(first.count, 0) << "that commit had begun before";
  records.index_commit_begins();
  EXPECT_FALSE(waiters.want_upkeep());
  records.index_committed();
  records.measured({.bodiless_bytes = kGiB});
  look_again();
  EXPECT_TRUE(first.is_good()) << "it is refused where the name is made";
  EXPECT_TRUE(waiters.has_room(100, Growth::kLinks));
  records.note_shrunk();
  await_room(second);
  health.report(Health::Of::kUpkeep, fail(Code::kIo, "the index cannot be written"));
  look_again();
  EXPECT_TRUE(second.is_good()) << "nor does it wait in vain";
}

TEST_F(CommitterTest, WhereTheJournalFailsCallsThatWaitForRecordsAreRefused) {
  records.accept(100 * kMiB);
  health.report(Health::Of::kJournal, fail(Code::kIo, "the journal takes nothing"));
  Answer answer;
  waiters.await_room(100, Growth::kFiles, [&](Status status) {
    ++answer.count;
    answer.status = std::move(status);
  });
  EXPECT_TRUE(answer.is_error(Code::kIo));
}

TEST_F(CommitterTest, TheThreadAnswersEachOfManyCallsOnceAndStopsWhenAllIsDone) {
  constexpr int kLanes = 3, kEach = 40;
  committer->start();
  EXPECT_TRUE(committer->is_running());
  std::vector<std::vector<ObjectPtr>> bodies(kLanes);
  for (int lane = 0; lane < kLanes; ++lane)
    for (int i = 0; i < kEach; ++i) {
      bodies[static_cast<size_t>(lane)].push_back(make(std::to_string(lane) + "-" + std::to_string(i)));
      write(bodies[static_cast<size_t>(lane)].back(), 5000);
    }
  std::vector<std::thread> lanes;
  for (const auto& mine : bodies)
    lanes.emplace_back([&] {
      for (const ObjectPtr& body : mine) EXPECT_TRUE(committer->commit_and_wait(request_of(body)));
    });
  for (std::thread& lane : lanes) lane.join();
  committer->stop();
  EXPECT_FALSE(committer->is_running());
  EXPECT_EQ(index.names.size(), size_t{kLanes * kEach});
  EXPECT_TRUE(queue.idle());
}

TEST_F(CommitterTest, WithoutItsThreadTheCallThatWaitsCommits) {
  const ObjectPtr body = make("a");
  write(body, 5000);
  EXPECT_TRUE(committer->commit_and_wait(request_of(body)));
  EXPECT_TRUE(is_journaled(body));
}

}  // namespace committer_test
}  // namespace kvcachefs

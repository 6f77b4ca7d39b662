#include "store/peers/replica.h"

#include <sys/stat.h>

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "store/base/sanitized.h"
#include "store/index/index_test_util.h"
#include "store/journal/memory_volume.h"
#include "store/journal/test_records.h"
#include "store/peers/part_size.h"
#include "store/peers/testing/history.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {
namespace replica_test {

using State = Replica::State;
using Names = std::map<std::string, uint64_t>;  // path -> object

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr ObjectId id(uint64_t number) { return ObjectId::make(0, 1, number); }

PutRecord object(ObjectId which, uint32_t mode) {
  PutRecord put;
  put.object.id = which;
  put.object.attributes.mode = mode;
  return put;
}

void add_names(const Index& index, ObjectId directory, const std::string& path, Names& names) {
  const auto entries = index.list(directory, 0, 10'000);
  ASSERT_TRUE(entries) << entries.error().message;
  for (const NameEntry& entry : *entries) {
    names[path + "/" + entry.name] = entry.child.value;
    if (S_ISDIR(entry.type_bits)) add_names(index, entry.child, path + "/" + entry.name, names);
  }
}

// The peer's daemon.
class Daemon {
 public:
  Daemon(std::shared_ptr<MemoryVolume> volume, uint32_t epoch, JournalForm form) : volume_(std::move(volume)), identity_(test_identity(epoch)) {
    EXPECT_TRUE(volume_->make_directories(epoch_directory(identity_.node, epoch)));
    auto made = JournalWriter::create(volume_, identity_, "boot-1", form == JournalForm::kBlocks ? 64 * 1024 : 2000, form);
    EXPECT_TRUE(made) << made.error().message;
    journal_ = std::move(*made);
    outlook_.epoch = epoch;
  }
  JournalPosition say(std::vector<Record> records) {
    const Batch batch{Stamp{++stamp_}, std::move(records)};
    const auto after = journal_->append(batch);
    EXPECT_TRUE(after) << after.error().message;
    outlook_.written = *after;
    EXPECT_TRUE(state.apply(batch, *after));
    statements.apply(batch, *after);
    return *after;
  }
  JournalPosition make_file(uint64_t number, const std::string& name) {
    return say({object(id(number), S_IFREG | 0644), NameRecord{kRootId, name, id(number)}});
  }
  void make_checkpoint(uint64_t seq) {
    auto made = CheckpointWriter::create(volume_, identity_, seq, {journal_->position(), Stamp{stamp_}, 1000});
    ASSERT_TRUE(made) << made.error().message;
    for (const auto& [which, row] : state.objects) EXPECT_TRUE((*made)->add(PutRecord{row->object}));
    for (const auto& [key, row] : state.names)
      for (const NameEntry& entry : row) EXPECT_TRUE((*made)->add(NameRecord{key.parent, entry.name, entry.child}));
    for (const char* node : {"node-b", "node-c"}) {
      const JournalPosition seen = statements.seen(node);
      EXPECT_TRUE(seen == JournalPosition{} || (*made)->add(SeenRecord{node, seen}));
    }
    std::map<StatementKey, StatementRecord> said;
    for (const char* node : {"node-b", "node-c"})
      statements.for_each(node, {}, [&](const StatementKey& key, const Statements::What& what) {
        StatementRecord& record = said[key];
        record.node = node;
        record.said = key.said;
        std::visit([&record](const auto& typed) { record.what = typed; }, what);
        return true;
      });
    for (const auto& [key, record] : said) EXPECT_TRUE((*made)->add(record));
    ASSERT_TRUE((*made)->finish());
    outlook_.checkpoint = HeadCheckpoint{identity_.epoch, seq};
  }
  const Outlook& outlook() const { return outlook_; }
  JournalPosition end() const { return journal_->position(); }

  MemoryPart state;
  Statements statements;

 private:
  std::shared_ptr<MemoryVolume> volume_;
  const FileIdentity identity_;
  std::unique_ptr<JournalWriter> journal_;
  Outlook outlook_;
  uint64_t stamp_ = 1000;
};

class ReplicaTest : public ::testing::TestWithParam<JournalForm> {
 protected:
  std::unique_ptr<Replica> make() { return std::make_unique<Replica>(Replica::Setup{volume_, test_identity(0), scratch_.path("node-a"), 3}); }
  static Status commit_due(Replica& replica, int64_t now_ns) { return replica.is_commit_due(now_ns) ? replica.commit() : Status(); }
  std::unique_ptr<Daemon> start(uint32_t epoch, const Daemon* before = nullptr) {
    auto daemon = std::make_unique<Daemon>(volume_, epoch, GetParam());
    if (before != nullptr) {
      daemon->state = before->state;
      daemon->statements = before->statements;
    } else {
      daemon->say({object(kRootId, S_IFDIR | 0755)});
    }
    return daemon;
  }
  Replica::HasRead has_read() const {
    return [this](const std::string& node, JournalPosition position) {
      const auto read = read_.find(node);
      return read == read_.end() || read->second >= position;
    };
  }
  Status load(Replica& replica, const Daemon& daemon) const { return load(replica, daemon.outlook()); }
  Status load(Replica& replica, const Outlook& outlook, Replica::Loading loading = {}) const {
    loading.has_read = has_read();
    return replica.load([&outlook] { return outlook; }, std::move(loading));
  }
  uint64_t poll(Replica& replica, const Outlook& outlook, int64_t now_ns = 0) {
    const auto polled = replica.poll(outlook, now_ns, [](const PeerBatch&, const std::function<Status()>& work) { return work(); }, has_read());
    EXPECT_TRUE(polled) << polled.error().message;
    return polled ? polled->batches : 0;
  }
  static Names names(const Replica& replica) {
    Names names;
    if (replica.part().index) add_names(*replica.part().index, kRootId, "", names);
    return names;
  }
  Bytes& journal(uint32_t epoch, uint64_t seq) { return *volume_->files().at(journal_path("node-a", epoch, seq)); }
  void remove_journals(uint32_t epoch) {
    std::erase_if(volume_->files(), [&](const auto& each) { return each.first.starts_with(epoch_directory("node-a", epoch) + "/journal/"); });
  }

  std::shared_ptr<MemoryVolume> volume_ = std::make_shared<MemoryVolume>();
  std::map<std::string, JournalPosition> read_;  // position in the journals of others
  index_test::ScratchDirectory scratch_{index_test::ScratchDirectory::kInMemory};
};

TEST_P(ReplicaTest, LoadsTheCheckpointAndFollowsTheJournal) {
  auto daemon = start(1);
  daemon->make_file(5, "old");
  daemon->make_checkpoint(1);
  daemon->make_file(6, "new");
  auto replica = make();
  EXPECT_EQ(replica->state(), State::kLoading);
  EXPECT_TRUE(replica->wants_load());
  EXPECT_EQ(poll(*replica, daemon->outlook()), 0u);
  ASSERT_TRUE(load(*replica, *daemon));
  EXPECT_EQ(names(*replica), (Names{{"/new", id(6).value}, {"/old", id(5).value}})) << "nothing is shown that is not so any more";
  EXPECT_EQ(replica->position(), daemon->end());
  daemon->make_file(7, "newest");
  EXPECT_GT(replica->bytes_behind(daemon->outlook()), 0u);
  EXPECT_EQ(poll(*replica, daemon->outlook()), 1u);
  EXPECT_EQ(replica->state(), State::kLive);
  EXPECT_EQ(replica->bytes_behind(daemon->outlook()), 0u);
  EXPECT_EQ(names(*replica), (Names{{"/new", id(6).value}, {"/newest", id(7).value}, {"/old", id(5).value}}));
  EXPECT_EQ(replica->position(), daemon->end());
  EXPECT_EQ(replica->objects(), 3u);
  daemon->say({UnnameRecord{kRootId, "old", id(5), false}});
  EXPECT_EQ(poll(*replica, daemon->outlook()), 1u);
  EXPECT_EQ(names(*replica), (Names{{"/new", id(6).value}, {"/newest", id(7).value}}));
}

// How far a load reads in the epoch that is being written, and what it leaves to the polls.
TEST_P(ReplicaTest, ALoadGoesAsFarAsAPollWould) {
  auto first = start(1);
  first->make_file(5, "a");
  auto second = start(2, first.get());
  second->say({EndsRecord{first->end(), false}});
  second->say({UnnameRecord{kRootId, "a", id(5), false}});
  const auto replica = make();
  ASSERT_TRUE(load(*replica, *second));
  EXPECT_EQ(names(*replica), Names{}) << "what it removed in its new life was shown after the load";
  EXPECT_EQ(replica->position(), second->end());

  // An answer to a statement that was not read yet waits here too, with all batches behind it.
  second->make_file(6, "b");
  read_["node-b"] = {1, 0, 99};
  second->say({SeenRecord{"node-b", {1, 0, 100}}});
  second->make_file(7, "c");
  const auto late = std::make_unique<Replica>(Replica::Setup{volume_, test_identity(0), scratch_.path("late"), 3});
  ASSERT_TRUE(load(*late, *second));
  EXPECT_EQ(names(*late), (Names{{"/b", id(6).value}}));
  read_["node-b"] = {1, 0, 100};
  EXPECT_EQ(poll(*late, second->outlook()), 2u);
  EXPECT_EQ(names(*late), (Names{{"/b", id(6).value}, {"/c", id(7).value}}));

  // A poll reports what cannot be read; batches before it are served.
  const auto good = second->end();
  second->make_file(8, "d");
  journal(2, good.seq)[good.offset + 20] ^= std::byte{1};
  const auto last = std::make_unique<Replica>(Replica::Setup{volume_, test_identity(0), scratch_.path("last"), 3});
  ASSERT_TRUE(load(*last, *second));
  EXPECT_EQ(names(*last), names(*late));
  for (const int64_t second_of : {0, 1, 2, 3}) poll(*last, second->outlook(), second_of * kSecondNs);
  EXPECT_EQ(last->state(), State::kHeld);
}

// A load hands on what a poll would: which nodes use this node's chunks, and what happened to a peer's while this node was away.
TEST_P(ReplicaTest, WhatALoadAppliesIsHandedOn) {
  auto daemon = start(1);
  daemon->make_checkpoint(1);
  daemon->say({StatementRecord{"node-b", {}, TouchRecord{{{id(7), 5}}}}});
  daemon->make_file(5, "x");
  Outlook outlook = daemon->outlook();
  uint64_t batches = 0, touches = 0;
  auto replica = make();
  ASSERT_TRUE(load(*replica, outlook, {.applied = [&](const Batch& batch) {
                     ++batches;
                     for (const Record& record : batch.records)
                       if (const auto* said = std::get_if<StatementRecord>(&record)) touches += std::holds_alternative<TouchRecord>(said->what) ? 1u : 0u;
                   }}));
  EXPECT_EQ(batches, 2u);
  EXPECT_EQ(touches, 1u);
}

// A body that its node only moved is none of these.
TEST_P(ReplicaTest, TellsWhichObjectsGetOtherBytes) {
  const auto put = [](uint64_t number, uint32_t version, uint64_t checksum) {
    PutRecord record = object(id(number), S_IFREG | 0644);
    record.object.body.version = version;
    record.object.body.size_bytes = 1000;
    record.object.body.place = {PlaceKind::kPacked, {1, 1}, 4096 * (10 * number + version), 1000};
    record.object.body.checksums = {checksum};
    return record;
  };
  auto daemon = start(1);
  daemon->say({put(5, 1, 50), put(6, 1, 60), put(7, 1, 70)});
  daemon->make_checkpoint(1);
  auto replica = make();
  ASSERT_TRUE(load(*replica, *daemon));
  std::vector<ObjectId> changed;
  const auto change = [&](const PeerBatch& batch, const std::function<Status()>& work) {
    changed.insert(changed.end(), batch.changed.begin(), batch.changed.end());
    return work();
  };
  daemon->say({put(5, 2, 50), put(6, 2, 61), put(8, 1, 80), put(9, 2, 90), object(id(10), S_IFDIR | 0755)});
  daemon->say({put(7, 2, 71), put(7, 3, 70)});
  daemon->say({put(6, 3, 61)});
  ASSERT_TRUE(replica->poll(daemon->outlook(), 0, change, has_read()));
  EXPECT_EQ(changed, (std::vector<ObjectId>{id(6), id(9), id(7)}));
}

TEST_P(ReplicaTest, WhatThePeerHasInQuarantineIsKept) {
  const auto damaged = [](uint64_t number) {
    PutRecord put = object(id(number), S_IFREG | 0644);
    put.object.body.quarantined = true;
    return put;
  };
  auto daemon = start(1);
  for (const uint64_t number : {5, 6, 7, 8}) daemon->make_file(number, std::to_string(number));
  auto replica = make();
  ASSERT_TRUE(load(*replica, *daemon));
  ASSERT_TRUE(replica->part().quarantined);
  EXPECT_FALSE(replica->part().quarantined->may_contain(id(5)));
  daemon->say({damaged(5)});
  poll(*replica, daemon->outlook());
  EXPECT_TRUE(replica->part().quarantined->may_contain(id(5)));
  EXPECT_FALSE(replica->part().quarantined->may_contain(id(6)));
  EXPECT_TRUE(commit_due(*replica, 100 * kSecondNs));
  daemon->make_checkpoint(1);
  daemon->say({damaged(7)});
  for (const bool again : {false, true}) {  // from the index that is there, and from the checkpoint
    if (again) std::filesystem::remove_all(scratch_.path("node-a"));
    replica = make();
    ASSERT_TRUE(load(*replica, *daemon));
    const auto kept = replica->part().quarantined;
    EXPECT_TRUE(kept->may_contain(id(5)) && kept->may_contain(id(7)));
    EXPECT_FALSE(kept->may_contain(id(6)) || kept->may_contain(id(8)) || kept->has_all());
  }
}

TEST(QuarantinedIdsTest, TooManyAreNotKept) {
  QuarantinedIds ids;
  for (uint64_t number = 1; number <= QuarantinedIds::kMost; ++number) ids.add(ObjectId::make(0, 1, number));
  EXPECT_FALSE(ids.may_contain(ObjectId::make(0, 1, 1 << 20)));
  ids.add(ObjectId::make(0, 1, 1 << 21));
  EXPECT_TRUE(ids.has_all() && ids.may_contain(ObjectId::make(0, 1, 1 << 20)));
}

// A load can take minutes: at its end the latest known position of the peer counts.
TEST_P(ReplicaTest, ALoadLooksOutOnceMoreAtItsEnd) {
  auto daemon = start(1);
  daemon->make_file(5, "a");
  const Outlook before = daemon->outlook();
  for (uint64_t number = 10; number < 60; ++number) daemon->make_file(number, std::to_string(number));
  ASSERT_GE(daemon->end().seq, GetParam() == JournalForm::kPacked ? 1u : 0u);
  int looks = 0;
  auto replica = make();
  Replica::Loading loading;
  loading.has_read = has_read();
  ASSERT_TRUE(replica->load([&] { return looks++ == 0 ? before : daemon->outlook(); }, std::move(loading)));
  EXPECT_EQ(names(*replica).size(), 51u);
}

// Batches applied in a load are committed like any others.
TEST_P(ReplicaTest, WhatALoadAppliedIsCommitted) {
  auto daemon = start(1);
  daemon->make_checkpoint(1);
  daemon->make_file(5, "x");
  {
    auto replica = make();
    ASSERT_TRUE(load(*replica, *daemon));
    ASSERT_LT(replica->part().index->position(), daemon->end());
    EXPECT_TRUE(commit_due(*replica, 61 * kSecondNs));
    EXPECT_EQ(replica->part().index->position(), daemon->end());
  }
}

// Of large rows only few wait until a minute has passed: they are set aside of the capacity meanwhile.
TEST_P(ReplicaTest, TellsWhatACommitWillAddAndCommitsBeforeThatIsMuch) {
  auto daemon = start(1);
  daemon->make_checkpoint(1);
  auto replica = make();
  ASSERT_TRUE(load(*replica, *daemon));
  EXPECT_EQ(replica->growth_bytes(), 0u);
  const auto make_large = [&](uint64_t number) {
    Record put = object(id(number), S_IFREG | 0644);
    std::get<PutRecord>(put).object.attributes.xattrs.push_back({"user.a", std::string(60'000, 'x')});
    daemon->say({std::move(put), NameRecord{kRootId, std::to_string(number), id(number)}});
  };
  for (uint64_t number = 10; number < 20; ++number) make_large(number);
  while (replica->position() < daemon->end()) poll(*replica, daemon->outlook(), 1);
  EXPECT_GE(replica->growth_bytes(), 10 * 60'000u);
  EXPECT_TRUE(commit_due(*replica, 2));
  EXPECT_GT(replica->growth_bytes(), 0u) << "too little for a sync of its own";
  for (uint64_t number = 20; number < 160; ++number) make_large(number);
  while (replica->position() < daemon->end()) poll(*replica, daemon->outlook(), 3);
  EXPECT_TRUE(commit_due(*replica, 4));
  EXPECT_EQ(replica->growth_bytes(), 0u);
  EXPECT_EQ(replica->part().index->position(), daemon->end());
}

// What is told is set aside of the capacity by each node for each other: it is never less than what comes, and not much more. By journals it would
// be 8 MiB where 200 KiB come, for a frame of one file takes a block there.
TEST_P(ReplicaTest, WhatItTellsThatACommitAddsIsCloseToWhatItAdds) {
  struct Kind {
    size_t name_bytes, xattr_bytes, files;
    uint64_t most_bytes;  // that may be told
  };
  constexpr Kind kXattrs{120, 15'000, 40, 700 << 10}, kNames{200, 0, 400, 1536 << 10}, kPlain{20, 0, 400, 1024 << 10}, kLarge{20, 60'000, 10, 700 << 10};
  auto daemon = start(1);
  daemon->make_checkpoint(1);
  auto replica = make();
  ASSERT_TRUE(load(*replica, *daemon));
  uint64_t number = 100, seed = 1;
  const auto file_bytes = [this] { return allocated_below(scratch_.path("node-a")); };
  for (const Kind& kind : {kXattrs, kNames, kPlain, kLarge, kXattrs})
    for (int commits = 0; commits < 14; ++commits) {
      for (size_t i = 0; i < kind.files; ++i, ++number) {
        Record put = object(id(number), S_IFREG | 0644);
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const size_t bytes = kind.xattr_bytes == kLarge.xattr_bytes ? kind.xattr_bytes : kind.xattr_bytes == 0 ? 0 : 100 + (seed >> 33) % kind.xattr_bytes;
        if (bytes > 0) std::get<PutRecord>(put).object.attributes.xattrs.push_back({"user.meta", std::string(bytes, 'x')});
        daemon->say({std::move(put), NameRecord{kRootId, std::to_string(number) + std::string(kind.name_bytes, 'z'), id(number)}});
      }
      while (replica->position() < daemon->end()) poll(*replica, daemon->outlook(), 1);
      const uint64_t told = replica->growth_bytes(), before = file_bytes();
      ASSERT_TRUE(replica->commit());
      const uint64_t grown = file_bytes() - before;
      EXPECT_GE(told, grown) << kind.name_bytes << " " << kind.xattr_bytes << " commit " << commits;
      EXPECT_LE(told, kind.most_bytes) << kind.name_bytes << " " << kind.xattr_bytes << " commit " << commits;
    }
}

TEST_P(ReplicaTest, GivesBackWhatIsUnusedOfItsIndex) {
  auto daemon = start(1);
  daemon->make_checkpoint(1);
  auto replica = make();
  ASSERT_TRUE(load(*replica, *daemon));
  for (uint64_t number = 10; number < 60; ++number) {
    Record put = object(id(number), S_IFREG | 0644);
    std::get<PutRecord>(put).object.attributes.xattrs.push_back({"user.a", std::string(60'000, 'x')});
    daemon->say({std::move(put), NameRecord{kRootId, std::to_string(number), id(number)}});
  }
  while (replica->position() < daemon->end()) poll(*replica, daemon->outlook(), 1);
  ASSERT_TRUE(replica->commit());
  for (uint64_t number = 11; number < 60; ++number) daemon->say({UnnameRecord{kRootId, std::to_string(number), id(number)}});
  while (replica->position() < daemon->end()) poll(*replica, daemon->outlook(), 2);
  EXPECT_LT(replica->growth_bytes(), 64u << 10) << "nothing is added";
  ASSERT_TRUE(replica->commit());
  const uint64_t before = allocated_below(scratch_.path("node-a"));
  EXPECT_GT(replica->unused_bytes(), before * 3 / 4);
  EXPECT_TRUE(replica->give_back_unused());
  EXPECT_LT(allocated_below(scratch_.path("node-a")), before / 4);
  EXPECT_EQ(names(*replica), (Names{{"/10", id(10).value}}));
  daemon->make_file(70, "x");
  EXPECT_EQ(poll(*replica, daemon->outlook(), 3), 1u);
  ASSERT_TRUE(replica->commit());
  EXPECT_EQ(names(*replica).size(), 2u);
}

TEST_P(ReplicaTest, GoesOnWhereItWasAfterARestart) {
  auto daemon = start(1);
  daemon->make_checkpoint(1);
  daemon->make_file(5, "x");
  daemon->say({StatementRecord{"node-b", {}, UnnameRecord{kRootId, "y", id(77), false}}, SeenRecord{"node-c", {4, 5, 6}}});
  {
    auto replica = make();
    ASSERT_TRUE(load(*replica, *daemon));
    daemon->make_file(7, "w");
    EXPECT_EQ(poll(*replica, daemon->outlook(), 1), 1u);
    EXPECT_TRUE(commit_due(*replica, 2));
    EXPECT_EQ(replica->part().index->position().offset < daemon->end().offset, true) << "a commit at each poll would be a sync at each";
    EXPECT_TRUE(commit_due(*replica, 1 + 60 * kSecondNs));
    EXPECT_EQ(replica->part().index->position(), daemon->end());
  }
  volume_->files().erase(checkpoint_path("node-a", 1, 1));  // it is not needed
  daemon->make_file(6, "z");
  auto replica = make();
  ASSERT_TRUE(load(*replica, *daemon));
  EXPECT_EQ(names(*replica), (Names{{"/w", id(7).value}, {"/x", id(5).value}, {"/z", id(6).value}}));
  EXPECT_EQ(replica->part().statements->removals("node-b", {}, kRootId, "y", id(77)).size(), 1u);
  EXPECT_EQ(replica->part().statements->seen("node-c"), (JournalPosition{4, 5, 6}));
}

TEST_P(ReplicaTest, WhatIsSaidOfOthersComesWithTheCheckpoint) {
  auto daemon = start(1);
  const auto said = daemon->say({StatementRecord{"node-b", {}, UnnameRecord{kRootId, "y", id(77), false}},
                                 StatementRecord{"node-b", {}, UnnameRecord{kRootId, "z", id(78), false}}, SeenRecord{"node-c", {4, 5, 6}}});
  daemon->make_checkpoint(1);
  remove_journals(1);
  auto replica = make();
  ASSERT_TRUE(load(*replica, *daemon));
  const auto part = replica->part();
  EXPECT_EQ(part.ordinal, 3u);
  EXPECT_EQ(part.node, "node-a");
  EXPECT_EQ(part.statements->removals("node-b", {}, kRootId, "z", id(78)), (std::vector{StatementKey{said, 1}}));
  EXPECT_TRUE(part.statements->removals("node-b", said, kRootId, "z", id(78)).empty());
  EXPECT_EQ(part.statements->seen("node-c"), (JournalPosition{4, 5, 6}));
}

TEST_P(ReplicaTest, WhatIsAnsweredIsForgottenForGood) {
  auto daemon = start(1);
  const auto said = daemon->say({StatementRecord{"node-b", {}, UnnameRecord{kRootId, "y", id(77), false}},
                                 StatementRecord{"node-c", {}, UnnameRecord{kRootId, "y", id(77), false}}});
  const auto committed = daemon->say({StatementRecord{"node-b", {}, UnnameRecord{kRootId, "z", id(78), false}}});
  auto replica = make();
  ASSERT_TRUE(load(*replica, *daemon));
  poll(*replica, daemon->outlook(), 1);
  EXPECT_TRUE(commit_due(*replica, 100 * kSecondNs));
  const auto last = daemon->say({StatementRecord{"node-b", {}, UnnameRecord{kRootId, "zz", id(79), false}}});
  daemon->say({StatementRecord{"node-b", {}, UnnameRecord{kRootId, "zzz", id(80), false}}});
  poll(*replica, daemon->outlook(), 101 * kSecondNs);
  int alone = 0;
  const auto forget = [&](JournalPosition answered) {
    return replica->forget("node-b", answered, [&](const std::function<Status()>& work) {
      ++alone;
      return work();
    });
  };
  ASSERT_TRUE(forget(said));
  EXPECT_EQ(replica->part().statements->count(), 4u);
  ASSERT_TRUE(forget(last));  // of both, what is committed and what is not
  EXPECT_EQ(replica->part().statements->count(), 2u);
  EXPECT_EQ(alone, 2);
  ASSERT_TRUE(forget(last));
  EXPECT_EQ(alone, 2) << "there was nothing to forget, and clients waited for that";
  EXPECT_TRUE(commit_due(*replica, 200 * kSecondNs));
  replica = make();
  ASSERT_TRUE(load(*replica, *daemon));
  poll(*replica, daemon->outlook());
  EXPECT_EQ(replica->part().statements->count(), 2u);
  EXPECT_EQ(replica->part().statements->removals("node-b", {}, kRootId, "zzz", id(80)).size(), 1u);
  EXPECT_EQ(replica->part().statements->removals("node-c", {}, kRootId, "y", id(77)).size(), 1u);
  EXPECT_TRUE(replica->part().statements->removals("node-b", {}, kRootId, "z", id(78)).empty());
  EXPECT_LT(committed, last);
}

TEST_P(ReplicaTest, AnAnswerWaitsForWhatItAnswers) {
  auto daemon = start(1);
  auto replica = make();
  ASSERT_TRUE(load(*replica, *daemon));
  poll(*replica, daemon->outlook(), 10 * kSecondNs);
  read_["node-b"] = {1, 0, 99};
  daemon->make_file(5, "a");
  daemon->say({SeenRecord{"node-b", {1, 0, 100}}});
  daemon->make_file(6, "b");
  EXPECT_EQ(poll(*replica, daemon->outlook(), 11 * kSecondNs), 1u);
  EXPECT_EQ(poll(*replica, daemon->outlook(), 12 * kSecondNs), 0u);
  EXPECT_EQ(replica->state(), State::kLive);
  EXPECT_LT(replica->position(), daemon->end());
  read_["node-b"] = {1, 0, 100};
  EXPECT_EQ(poll(*replica, daemon->outlook(), 12 * kSecondNs), 2u);
  daemon->say({SeenRecord{"node-b", {1, 0, 200}}});
  EXPECT_EQ(poll(*replica, daemon->outlook(), 20 * kSecondNs), 0u);
  EXPECT_EQ(poll(*replica, daemon->outlook(), 22 * kSecondNs), 1u) << "not for ever";
}

TEST_P(ReplicaTest, GoesFromOneEpochToTheNext) {
  auto first = start(1);
  first->make_file(5, "a");
  auto replica = make();
  ASSERT_TRUE(load(*replica, *first));
  poll(*replica, first->outlook());
  first->make_file(6, "b");  // not read before the next epoch begins
  auto second = start(2, first.get());
  second->make_file(7, "c");
  EXPECT_EQ(poll(*replica, second->outlook()), 2u);
  EXPECT_EQ(names(*replica).size(), 3u);
  EXPECT_EQ(replica->position(), second->end());
  auto third = start(3, second.get());
  auto fourth = start(4, third.get());
  fourth->make_file(8, "d");
  EXPECT_EQ(poll(*replica, fourth->outlook()), 1u);
  EXPECT_EQ(names(*replica).size(), 4u);
  // As a reader sees it that comes later.
  auto late = std::make_unique<Replica>(Replica::Setup{volume_, test_identity(0), scratch_.path("late"), 3});
  ASSERT_TRUE(load(*late, *fourth));
  poll(*late, fourth->outlook());
  EXPECT_EQ(names(*late), names(*replica));
}

// If there is no room for two indexes.
TEST_P(ReplicaTest, WhatIsServedCanBeLetGoOfBeforeTheNextLoad) {
  auto first = start(1);
  const auto end = first->make_file(5, "a");
  auto replica = make();
  ASSERT_TRUE(load(*replica, *first));
  first->make_file(6, "late");
  EXPECT_EQ(poll(*replica, first->outlook()), 1u);
  ASSERT_TRUE(replica->commit());
  auto second = start(2, first.get());
  second->say({EndsRecord{end, false}});
  EXPECT_EQ(poll(*replica, second->outlook()), 0u);
  ASSERT_TRUE(replica->wants_load());
  {
    const Part read = replica->part();
    replica->let_go();
    EXPECT_EQ(replica->part().index, nullptr);
    EXPECT_EQ(replica->state(), State::kLoading);
    EXPECT_EQ(replica->objects(), 0u);
    EXPECT_TRUE(replica->is_let_go()) << "somebody reads it";
    EXPECT_TRUE(std::filesystem::exists(scratch_.path("node-a/1")));
    ASSERT_TRUE(read.index->find_name(kRootId, "late"));
  }
  EXPECT_FALSE(replica->is_let_go());
  EXPECT_FALSE(std::filesystem::exists(scratch_.path("node-a/1")));
  ASSERT_TRUE(load(*replica, *second));
  EXPECT_EQ(names(*replica), (Names{{"/a", id(5).value}}));
  second->make_file(7, "c");
  EXPECT_EQ(poll(*replica, second->outlook()), 1u);
  EXPECT_EQ(names(*replica), (Names{{"/a", id(5).value}, {"/c", id(7).value}}));
}

TEST_P(ReplicaTest, WhatAnEpochTakesBackIsReadAnew) {
  auto first = start(1);
  const auto end = first->make_file(5, "a");
  auto replica = make();
  ASSERT_TRUE(load(*replica, *first));
  first->make_file(6, "late");  // by a daemon that had lost the node
  EXPECT_EQ(poll(*replica, first->outlook()), 1u);
  EXPECT_EQ(names(*replica).size(), 2u);
  auto second = start(2, first.get());
  // The epoch's directory is seen before its first record.
  EXPECT_EQ(poll(*replica, second->outlook()), 0u);
  second->say({EndsRecord{end, false}});
  second->make_file(7, "c");
  EXPECT_EQ(poll(*replica, second->outlook()), 0u);
  ASSERT_TRUE(replica->wants_load());
  EXPECT_EQ(names(*replica).size(), 2u) << "it is served until another one is there";
  ASSERT_TRUE(load(*replica, *second));
  poll(*replica, second->outlook());
  EXPECT_EQ(names(*replica), (Names{{"/a", id(5).value}, {"/c", id(7).value}}));
  EXPECT_EQ(replica->reloads(), 1u);
  poll(*replica, second->outlook());
  EXPECT_FALSE(std::filesystem::exists(scratch_.path("node-a/1")));
  EXPECT_TRUE(std::filesystem::exists(scratch_.path("node-a/2")));
}

TEST_P(ReplicaTest, WhatAnEpochTakesBackIsFoundWhenItIsEntered) {
  auto first = start(1);
  const auto end = first->make_file(5, "a");
  first->make_file(6, "late");
  auto replica = make();
  ASSERT_TRUE(load(*replica, *first));
  poll(*replica, first->outlook());
  auto second = start(2, first.get());
  second->say({EndsRecord{end, false}});
  EXPECT_EQ(poll(*replica, second->outlook()), 0u);
  EXPECT_TRUE(replica->wants_load());
}

TEST_P(ReplicaTest, WhereThePeerLeftSomethingOutItsCheckpointIsWaitedFor) {
  auto first = start(1);
  first->make_file(5, "a");
  auto replica = make();
  ASSERT_TRUE(load(*replica, *first));
  poll(*replica, first->outlook());
  auto second = start(2, first.get());
  second->say({EndsRecord{first->end(), true}});
  second->make_file(7, "c");
  EXPECT_EQ(poll(*replica, second->outlook()), 0u);
  EXPECT_EQ(replica->state(), State::kHeld);
  EXPECT_FALSE(replica->reason().empty());
  EXPECT_FALSE(replica->wants_load());
  EXPECT_EQ(names(*replica).size(), 1u);
  second->make_checkpoint(1);
  poll(*replica, second->outlook());
  ASSERT_TRUE(replica->wants_load());
  ASSERT_TRUE(load(*replica, *second));
  EXPECT_EQ(replica->state(), State::kLive);
  second->make_file(8, "d");
  poll(*replica, second->outlook());
  EXPECT_EQ(names(*replica).size(), 3u);
}

TEST_P(ReplicaTest, WhoComesWhileThatIsWaitedForServesWhatWasBefore) {
  auto first = start(1);
  first->make_file(5, "a");
  auto second = start(2, first.get());
  second->say({EndsRecord{first->end(), true}});
  second->make_file(7, "c");
  auto third = start(3, second.get());
  auto replica = make();
  ASSERT_TRUE(load(*replica, *third));
  EXPECT_EQ(poll(*replica, third->outlook()), 0u);
  EXPECT_EQ(replica->state(), State::kHeld);
  EXPECT_EQ(names(*replica), (Names{{"/a", id(5).value}}));
}

TEST_P(ReplicaTest, JournalsThatAreGoneAreReloadedFromTheCheckpoint) {
  auto daemon = start(1);
  daemon->make_file(5, "a");
  auto replica = make();
  ASSERT_TRUE(load(*replica, *daemon));
  poll(*replica, daemon->outlook());
  EXPECT_TRUE(commit_due(*replica, 100 * kSecondNs));
  for (uint64_t number = 10; number < 60; ++number) daemon->make_file(number, std::to_string(number));
  ASSERT_GT(daemon->end().seq, 0u);
  daemon->make_checkpoint(1);
  const uint64_t last = daemon->end().seq;
  for (uint64_t seq = 0; seq < last; ++seq) volume_->files().erase(journal_path("node-a", 1, seq));
  // One that went on is told by its tail once it has nothing open; one that was away by the index that it left.
  replica = make();
  ASSERT_TRUE(load(*replica, *daemon));
  poll(*replica, daemon->outlook());
  EXPECT_EQ(names(*replica).size(), 51u);
  EXPECT_EQ(replica->state(), State::kLive);
}

TEST_P(ReplicaTest, DamageHoldsUntilTheNextCheckpoint) {
  auto daemon = start(1);
  const auto good = daemon->make_file(5, "a");
  auto replica = make();
  ASSERT_TRUE(load(*replica, *daemon));
  poll(*replica, daemon->outlook());
  daemon->make_file(6, "b");
  journal(1, good.seq)[good.offset + 20] ^= std::byte{1};
  for (const int64_t second : {0, 1, 2, 3, 4, 5}) poll(*replica, daemon->outlook(), second * kSecondNs);
  EXPECT_EQ(replica->state(), State::kHeld);
  EXPECT_EQ(names(*replica).size(), 1u);
  EXPECT_FALSE(replica->wants_load());
  daemon->make_checkpoint(1);
  poll(*replica, daemon->outlook(), 6 * kSecondNs);
  ASSERT_TRUE(replica->wants_load());
  ASSERT_TRUE(load(*replica, *daemon));
  poll(*replica, daemon->outlook(), 7 * kSecondNs);
  EXPECT_EQ(names(*replica).size(), 2u);
  EXPECT_EQ(replica->state(), State::kLive);
}

TEST_P(ReplicaTest, WhatNoDaemonWritesIsLeftOut) {
  auto daemon = start(1);
  daemon->say({object(ObjectId::make(0, 9, 5), S_IFREG | 0644), object(id(5), S_IFREG | 0644), NameRecord{kRootId, "..", id(5)},
               NameRecord{kRootId, "a", id(5)}});
  auto replica = make();
  ASSERT_TRUE(load(*replica, *daemon));
  poll(*replica, daemon->outlook());
  EXPECT_EQ(names(*replica), (Names{{"/a", id(5).value}}));
  EXPECT_EQ(replica->records_left_out(), 2u);
}

TEST_P(ReplicaTest, ALoadThatWasCutShortIsBegunAnew) {
  auto daemon = start(1);
  daemon->make_file(5, "a");
  daemon->make_checkpoint(1);
  {
    Index::Found found{};
    std::string why;
    std::filesystem::create_directories(scratch_.path("node-a"));
    auto index = Index::open(scratch_.path("node-a/7"), {test_identity().volume_uuid, "node-a"}, &found, &why);
    ASSERT_TRUE(index);
    ASSERT_TRUE((*index)->begin_load());
    ASSERT_TRUE((*index)->load(object(kRootId, S_IFDIR | 0755)));
  }
  auto replica = make();
  ASSERT_TRUE(load(*replica, *daemon));
  EXPECT_EQ(names(*replica).size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(scratch_.path("node-a/7")));
}

TEST_P(ReplicaTest, AnErrorOfTheVolumeIsToldAndTriedAgain) {
  auto daemon = start(1);
  bool refused = true;
  const auto volume = make_fault_volume(volume_, [&refused](const VolumeCall& call) -> Fault {
    const bool is_journal = call.path.find("/journal/") != std::string::npos;
    return refused && is_journal && call.kind == VolumeCall::Kind::kOpen ? Fault{EACCES, -1, 0} : Fault{};
  });
  Replica replica({volume, test_identity(0), scratch_.path("node-a"), 3});
  const auto poll_it = [&] {
    return replica.poll(daemon->outlook(), 0, [](const PeerBatch&, const std::function<Status()>& work) { return work(); },
                        [](const std::string&, JournalPosition) { return true; });
  };
  ASSERT_FALSE(load(replica, *daemon) && poll_it());
  EXPECT_EQ(replica.state(), State::kUnreadable);
  EXPECT_NE(replica.reason().find("node-a/1/journal"), std::string::npos) << replica.reason();
  refused = false;
  ASSERT_TRUE(!replica.wants_load() || load(replica, *daemon));
  ASSERT_TRUE(poll_it());
  EXPECT_EQ(replica.state(), State::kLive);
  EXPECT_EQ(replica.reason(), "");
}

TEST_P(ReplicaTest, ADamagedIndexIsMadeAnew) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer owns SIGSEGV";
  auto daemon = start(1);
  for (uint64_t number = 10; number < 200; ++number) daemon->make_file(number, std::to_string(number));
  daemon->make_checkpoint(1);
  auto replica = make();
  ASSERT_TRUE(load(*replica, *daemon));
  poll(*replica, daemon->outlook());
  const Names before = names(*replica);
  ASSERT_EQ(before.size(), 190u);
  {
    std::fstream file(scratch_.path("node-a/1/data.mdb"), std::ios::in | std::ios::out | std::ios::binary);
    const std::string garbage(std::filesystem::file_size(scratch_.path("node-a/1/data.mdb")) - 2 * 4096, '\xff');
    file.seekp(2 * 4096).write(garbage.data(), static_cast<std::streamsize>(garbage.size()));
  }
  static_cast<void>(replica->part().index->find_name(kRootId, "10"));  // a client
  ASSERT_TRUE(replica->part().index->damaged());
  EXPECT_EQ(poll(*replica, daemon->outlook()), 0u);
  ASSERT_TRUE(replica->wants_load());
  ASSERT_TRUE(load(*replica, *daemon));
  daemon->make_file(200, "200");
  EXPECT_EQ(poll(*replica, daemon->outlook()), 1u);
  EXPECT_EQ(names(*replica).size(), 191u);
  EXPECT_EQ(replica->state(), State::kLive);
  EXPECT_EQ(replica->reloads(), 1u);
}

TEST_P(ReplicaTest, ALoadThatFailsLeavesNothing) {
  auto daemon = start(1);
  const auto end = daemon->make_file(5, "a");
  auto replica = make();
  ASSERT_TRUE(load(*replica, *daemon));
  daemon->make_file(6, "late");
  poll(*replica, daemon->outlook());
  auto second = start(2, daemon.get());
  second->say({EndsRecord{end, false}});
  poll(*replica, second->outlook());
  ASSERT_TRUE(replica->wants_load());
  const auto generations = [this] {
    const std::filesystem::directory_iterator all(scratch_.path("node-a"));
    return std::distance(begin(all), std::filesystem::directory_iterator());
  };
  int calls = 0;
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(load(*replica, second->outlook(), {.meanwhile = [&calls]() -> Status {
      ++calls;
      return fail(Code::kCanceled, "no more");
    }}));
    EXPECT_EQ(generations(), 1);
    EXPECT_EQ(names(*replica).size(), 2u) << "what was read before is served";
  }
  EXPECT_EQ(calls, 3) << "a load that is not wanted any more does not go on";
  ASSERT_TRUE(load(*replica, *second));
  EXPECT_EQ(replica->state(), State::kLive);
}

TEST_P(ReplicaTest, AnEpochBeginsWithItsJournal) {
  auto daemon = start(1);
  daemon->make_file(5, "a");
  auto replica = make();
  ASSERT_TRUE(load(*replica, *daemon));
  poll(*replica, daemon->outlook());
  ASSERT_TRUE(volume_->make_directories("nodes/node-a/2"));
  Outlook begun;
  begun.epoch = 2;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(poll(*replica, begun), 0u);
    EXPECT_FALSE(replica->wants_load());
    EXPECT_EQ(replica->state(), State::kLive);
    ASSERT_TRUE(volume_->make_directories("nodes/node-a/2/journal"));
  }
  auto late = std::make_unique<Replica>(Replica::Setup{volume_, test_identity(0), scratch_.path("late"), 3});
  ASSERT_TRUE(load(*late, begun));
  EXPECT_EQ(poll(*late, begun), 0u);
  EXPECT_FALSE(late->wants_load());
  auto second = start(2, daemon.get());
  second->make_file(6, "b");
  for (Replica* each : {replica.get(), late.get()}) {
    EXPECT_EQ(poll(*each, second->outlook()), 1u);
    EXPECT_EQ(names(*each).size(), 2u);
    EXPECT_EQ(each->reloads(), 0u);
  }
}

// An index that is not recognizable any more, or a file of another program: it is not touched, and does not disturb.
TEST_P(ReplicaTest, WhatIsNoIndexIsPassedOver) {
  auto daemon = start(1);
  daemon->make_file(5, "a");
  std::filesystem::create_directories(scratch_.path("node-a/3"));
  for (const char* name : {"node-a/3/data.mdb", "node-a/3/lock"}) std::ofstream(scratch_.path(name)) << "something else";
  for (int life = 0; life < 2; ++life) {
    auto replica = make();
    ASSERT_TRUE(load(*replica, *daemon));
    EXPECT_EQ(names(*replica), (Names{{"/a", id(5).value}}));
    EXPECT_TRUE(commit_due(*replica, 100 * kSecondNs));
    EXPECT_TRUE(std::filesystem::exists(scratch_.path("node-a/4/data.mdb")));
    EXPECT_FALSE(std::filesystem::exists(scratch_.path("node-a/5")));
    EXPECT_EQ(std::filesystem::file_size(scratch_.path("node-a/3/data.mdb")), 14u);
  }
}

// Whenever it is loaded, and from whichever checkpoint, the result is the same.
TEST_P(ReplicaTest, WhereverItBeginsItComesToTheSame) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const History history(seed, {.nodes = 3, .steps = 120});
    const auto& log = history.nodes()[0]->log;
    volume_ = std::make_shared<MemoryVolume>();
    TestRandom random(seed);
    auto daemon = std::make_unique<Daemon>(volume_, 1, GetParam());
    const index_test::ScratchDirectory scratch{index_test::ScratchDirectory::kInMemory};
    std::vector<std::unique_ptr<Replica>> replicas;
    uint64_t checkpoints = 0;
    for (const auto& [batch, after] : log) {
      daemon->say(batch.records);
      if (random.one_in(10)) daemon->make_checkpoint(++checkpoints);
      if (random.one_in(25)) {
        auto next = std::make_unique<Daemon>(volume_, daemon->outlook().epoch + 1, GetParam());
        next->state = daemon->state;
        next->statements = daemon->statements;
        daemon = std::move(next);
        checkpoints = 0;
      }
      if (random.one_in(12)) {
        replicas.push_back(std::make_unique<Replica>(Replica::Setup{volume_, test_identity(0), scratch.path(std::to_string(replicas.size())), 3}));
        ASSERT_TRUE(load(*replicas.back(), *daemon));
      }
      for (const auto& replica : replicas)
        if (random.one_in(5)) poll(*replica, daemon->outlook());
    }
    replicas.push_back(std::make_unique<Replica>(Replica::Setup{volume_, test_identity(0), scratch.path("last"), 3}));
    ASSERT_TRUE(load(*replicas.back(), *daemon));
    MemoryPartIndex expected;
    expected.state = &daemon->state;
    Names wanted;
    add_names(expected, kRootId, "", wanted);
    for (const auto& replica : replicas) {
      poll(*replica, daemon->outlook());
      EXPECT_EQ(replica->state(), State::kLive);
      EXPECT_EQ(names(*replica), wanted) << "seed " << seed;
      EXPECT_EQ(replica->part().statements->count(), daemon->statements.count()) << "seed " << seed;
      for (const char* node : {"node-b", "node-c"}) EXPECT_EQ(replica->part().statements->seen(node), daemon->statements.seen(node));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, ReplicaTest, ::testing::Values(JournalForm::kPacked, JournalForm::kBlocks),
                         [](const auto& form) { return form.param == JournalForm::kBlocks ? "Blocks" : "Packed"; });

}  // namespace replica_test
}  // namespace kvcachefs

// What a start finds: journals on a volume in memory, an index in a directory of its own, and no store.
#include "store/recovery/recovery.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/base/boot_id.h"
#include "store/base/checksum.h"
#include "store/base/units.h"
#include "store/extent/extents.h"
#include "store/journal/lost_records.h"
#include "store/recovery/first_records.h"
#include "store/recovery/node_start.h"
#include "store/volume/fault_volume.h"
#include "store/volume/test_directory.h"

namespace kvcachefs {
namespace recovery_test {

constexpr uint64_t kBodyBytes = 5000;

class RecoveryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    NodeStart node(volume, stamps);
    auto settled = node.settle("test", false, false, true);
    ASSERT_TRUE(settled) << settled.error().message;
    identity = *settled;
  }
  // --- a life of the node: what it journals
  void begin_life(const std::string& boot = boot_id()) {
    ++identity.epoch;
    number = 0;
    ASSERT_TRUE(volume->make_directory(epoch_directory(identity.node, identity.epoch)));
    auto made = JournalWriter::create(volume, identity, boot, 64 * kMiB);
    ASSERT_TRUE(made) << made.error().message;
    journal = std::move(*made);
    extents.emplace(volume, identity, 8);
    extents->start_at(1);
  }
  JournalPosition append(std::vector<Record> records) {
    auto after = journal->append(Batch{stamps.next(), std::move(records)});
    EXPECT_TRUE(after) << after.error().message;
    return *after;
  }
  void mark_synced() {
    append({SyncedRecord{}});
    ASSERT_TRUE(journal->sync());
  }
  static ObjectRecord object(ObjectId id, uint32_t mode) {
    ObjectRecord made;
    made.id = id;
    made.attributes.mode = mode;
    return made;
  }
  void make_root() { append({PutRecord{object(kRootId, S_IFDIR | 0755)}}); }
  ObjectId next_id() { return ObjectId::make(0, identity.epoch, ++number); }
  // A body with an extent of its own, journaled with its name.
  ObjectRecord put_body(const std::string& name, std::optional<ObjectId> id = std::nullopt) {
    ObjectRecord row = object(id.value_or(next_id()), S_IFREG | 0644);
    auto made = extents->make(PlaceKind::kSolo);
    EXPECT_TRUE(made) << made.error().message;
    const std::vector<std::byte> bytes(kBodyBytes, std::byte{static_cast<unsigned char>(row.id.value)});
    const std::span<const std::byte> piece(bytes);
    EXPECT_TRUE(made->file->write({&piece, 1}, 0));
    row.body = {.size_bytes = kBodyBytes, .version = 1, .place = {PlaceKind::kSolo, made->id, 0, kBodyBytes}, .checksums = {checksum(bytes)}, .inline_bytes = {}};
    append({PutRecord{row}, NameRecord{kRootId, name, row.id}});
    return row;
  }
  std::string path_of(const ObjectRecord& row) { return extents->path(row.body.place.extent, PlaceKind::kSolo); }

  // --- the next start
  Recovered start() {
    journal.reset();
    dead.clear();
    auto recovered = recover({volume, identity, directory.path() + "/index", stamps, pool, counters, dead, orphans, [this](uint32_t epoch) {
                                EXPECT_FALSE(std::filesystem::exists(directory.path() + "/index.damaged")) << "first that is noted";
                                noted_epoch = epoch;
                                return note_fails ? fail(Code::kNoSpace, "no room for a mark") : Status();
                              }});
    if (note_fails) return {};
    EXPECT_TRUE(recovered) << recovered.error().message;
    return recovered ? std::move(*recovered) : Recovered{};
  }
  static bool has_name(const Index& index, const std::string& name) {
    auto entry = index.find_name(kRootId, name);
    return entry && entry->has_value();
  }

  std::function<Fault(const VolumeCall&)> on_read, on_sync;
  std::shared_ptr<SimVolume> sim = make_sim_volume({.direct_io = false});
  std::shared_ptr<Volume> volume = make_fault_volume(sim, [this](const VolumeCall& call) {
    const bool syncs = call.kind == VolumeCall::Kind::kSync || call.kind == VolumeCall::Kind::kSyncEverything;
    if (syncs && on_sync) return on_sync(call);
    return call.kind == VolumeCall::Kind::kRead && on_read ? on_read(call) : Fault{};
  });
  test::TestDirectory directory;
  ManualClock clock{1'700'000'000'000'000'000};
  HybridClock stamps{clock};
  FileIdentity identity;
  std::unique_ptr<JournalWriter> journal;
  std::optional<Extents> extents;
  uint64_t number = 0;
  std::optional<uint32_t> noted_epoch;  // up to which records are lost
  bool note_fails = false;
  Space space;
  DeadSpace dead{space};
  OrphanNotes orphans{dead, space};
  MemoryPool pool{8 * kMiB, 3 * kUnitBytes};
  Counters counters;
};

TEST_F(RecoveryTest, AnEmptyVolumeHasAnEmptyIndex) {
  const Recovered recovered = start();
  ASSERT_NE(recovered.index, nullptr);
  EXPECT_FALSE(recovered.index_rebuilt);
  EXPECT_FALSE(recovered.unclean);
  EXPECT_EQ(recovered.journal_files, 1u);
}

TEST_F(RecoveryTest, TheJournalsAreReplayedIntoANewIndex) {
  begin_life();
  make_root();
  const ObjectRecord body = put_body("a");
  mark_synced();
  const Recovered recovered = start();
  EXPECT_TRUE(recovered.index_rebuilt);
  EXPECT_TRUE(has_name(*recovered.index, "a"));
  EXPECT_EQ(recovered.index->totals().solo_bodies, 1u);
  EXPECT_EQ(recovered.journal_files, 2u);
  EXPECT_GT(recovered.older_journals_bytes, 0u);
  EXPECT_EQ(counters.verified_bodies, 0u) << "it was synced";
}

TEST_F(RecoveryTest, AnIndexThatWasClosedIsTakenAsItIsAndOneThatWasNotTellsOfAnUncleanEnd) {
  begin_life();
  make_root();
  put_body("a");
  mark_synced();
  {
    const Recovered first = start();
    ASSERT_TRUE(first.index->close_clean());
  }
  {
    const Recovered second = start();
    EXPECT_FALSE(second.index_rebuilt);
    EXPECT_FALSE(second.unclean);
    EXPECT_EQ(counters.replayed_batches, 0u);
    EXPECT_TRUE(has_name(*second.index, "a"));
  }
  const Recovered third = start();
  EXPECT_FALSE(third.index_rebuilt);
  EXPECT_TRUE(third.unclean) << "the second did not close it";
  EXPECT_TRUE(third.judged_tail);
}

// As syncfs() reports it to who opens the file system later. A second call would succeed whatever happened.
TEST_F(RecoveryTest, WhereTheFileSystemReportsAnOldErrorEachFileIsAsked) {
  begin_life();
  make_root();
  const ObjectRecord body = put_body("a");
  std::vector<std::string> synced;
  bool fails = true;
  on_sync = [&](const VolumeCall& call) {
    if (call.kind == VolumeCall::Kind::kSync) synced.push_back(call.path);
    const bool of_body = call.kind == VolumeCall::Kind::kSync && call.path.ends_with(".solo");
    return Fault{.sys_errno = call.kind == VolumeCall::Kind::kSyncEverything || (of_body && fails) ? ENOSPC : 0};
  };
  journal.reset();
  {
    const auto refused = recover({volume, identity, directory.path() + "/index", stamps, pool, counters, dead, orphans, [](uint32_t) { return Status(); }});
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find(path_of(body)), std::string::npos) << refused.error().message;
  }
  fails = false;
  synced.clear();
  const Recovered recovered = start();
  EXPECT_TRUE(has_name(*recovered.index, "a"));
  for (const std::string& path : {path_of(body), journal_path(identity.node, identity.epoch, 0)})
    EXPECT_TRUE(std::ranges::any_of(synced, [&](const std::string& each) { return each.ends_with(path); })) << path;
}

TEST_F(RecoveryTest, AnIndexHasWhatLostJournalsLack) {
  begin_life();
  make_root();
  put_body("a");
  mark_synced();
  ASSERT_TRUE(start().index->close_clean());
  for (const std::string& path : sim->all_files())
    if (path.find("/journal/") != std::string::npos) static_cast<void>(sim->remove_file(path));
  begin_life();
  put_body("b");
  mark_synced();
  const Recovered recovered = start();
  EXPECT_FALSE(recovered.index_rebuilt);
  EXPECT_TRUE(has_name(*recovered.index, "a"));
  EXPECT_TRUE(has_name(*recovered.index, "b"));
  EXPECT_TRUE(recovered.records_lost) << "nothing goes because no record names it";
  EXPECT_EQ(noted_epoch, identity.epoch);
  EXPECT_TRUE(recovered.judged_tail) << "a checkpoint comes";
}

// What it has was synced before it was committed, and nothing of that goes before the next commit.
TEST_F(RecoveryTest, SoHasOneThatWasNotClosed) {
  begin_life();
  make_root();
  put_body("a");
  mark_synced();
  ASSERT_TRUE(start().index->commit());
  ASSERT_TRUE(sim->remove_file(journal_path(identity.node, 1, 0)));
  begin_life();
  put_body("b");
  mark_synced();
  const Recovered recovered = start();
  EXPECT_FALSE(recovered.index_rebuilt);
  EXPECT_TRUE(has_name(*recovered.index, "a"));
  EXPECT_TRUE(has_name(*recovered.index, "b"));
  EXPECT_TRUE(recovered.records_lost);
  EXPECT_TRUE(recovered.journals_lost);
  EXPECT_TRUE(recovered.unclean) << "what came behind it is lost";
  EXPECT_TRUE(recovered.judged_tail);
  EXPECT_FALSE(std::filesystem::exists(directory.path() + "/index.damaged"));
}

TEST_F(RecoveryTest, WhatComesInTheNextFileOfTheEpochIsReplayed) {
  begin_life();
  make_root();
  put_body("a");
  mark_synced();
  auto kept = std::move(journal);
  ASSERT_TRUE(start().index->commit());
  journal = std::move(kept);
  put_body("between");
  ASSERT_TRUE(journal->rotate());
  put_body("b");
  mark_synced();
  ASSERT_TRUE(sim->remove_file(journal_path(identity.node, 1, 0)));
  const Recovered recovered = start();
  EXPECT_TRUE(has_name(*recovered.index, "a"));
  EXPECT_FALSE(has_name(*recovered.index, "between"));
  EXPECT_TRUE(has_name(*recovered.index, "b"));
  EXPECT_TRUE(recovered.records_lost);
}

TEST_F(RecoveryTest, AnEpochOfWhichTheDirectoryIsGoneIsNotTakenAgain) {
  begin_life();
  make_root();
  put_body("a");
  mark_synced();
  begin_life();
  append({PutRecord{object(next_id(), S_IFREG | 0644)}});
  mark_synced();
  ASSERT_TRUE(start().index->close_clean());
  for (const std::string& path : sim->all_files())
    if (path.find("/journal/") != std::string::npos) static_cast<void>(sim->remove_file(path));
  for (const char* below : {"/journal", ""}) ASSERT_TRUE(sim->remove_directory(epoch_directory(identity.node, 2) + below));
  identity.epoch = 1;  // as a start lists them
  const Recovered recovered = start();
  EXPECT_FALSE(recovered.index_rebuilt) << "there is nothing else";
  EXPECT_TRUE(has_name(*recovered.index, "a"));
  EXPECT_EQ(recovered.last_epoch, 2u);
}

TEST_F(RecoveryTest, AnIndexOfAnotherTimeIsSetAsideAndBuiltAnew) {
  begin_life();
  make_root();
  const ObjectRecord body = put_body("a");
  mark_synced();
  ASSERT_TRUE(start().index->close_clean());
  for (const std::string& path : sim->all_files())
    if (path.find("/journal/") != std::string::npos || path == path_of(body)) static_cast<void>(sim->remove_file(path));
  begin_life();
  make_root();
  put_body("b");
  mark_synced();
  note_fails = true;
  start();
  EXPECT_TRUE(std::filesystem::exists(directory.path() + "/index/data.mdb")) << "or the next start would know nothing of it";
  EXPECT_FALSE(std::filesystem::exists(directory.path() + "/index.damaged"));
  note_fails = false;
  noted_epoch.reset();
  const Recovered recovered = start();
  EXPECT_EQ(noted_epoch, identity.epoch);
  EXPECT_TRUE(recovered.index_rebuilt);
  EXPECT_FALSE(has_name(*recovered.index, "a"));
  EXPECT_TRUE(has_name(*recovered.index, "b"));
  EXPECT_TRUE(recovered.records_lost);
  EXPECT_TRUE(std::filesystem::exists(directory.path() + "/index.damaged/data.mdb"));
}

// A checkpoint was made without this index, where records were lost: the index may have them.
TEST_F(RecoveryTest, AnOlderIndexIsKeptIfItMayHaveWhatIsLost) {
  for (const bool lost : {false, true}) {
    SCOPED_TRACE(lost);
    begin_life();
    make_root();
    put_body("a");
    mark_synced();
    ASSERT_TRUE(start().index->close_clean());
    if (lost) {
      ASSERT_TRUE(note_lost_records(*volume, identity.node, identity.epoch));
    }
    begin_life();
    auto checkpoint = CheckpointWriter::create(volume, identity, 1, {.covers = {identity.epoch, 0, 0}, .stamp = stamps.next()});
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    ASSERT_TRUE((*checkpoint)->add(PutRecord{object(kRootId, S_IFDIR | 0755)}));
    ASSERT_TRUE((*checkpoint)->finish());
    const Recovered recovered = start();
    EXPECT_TRUE(recovered.index_rebuilt);
    EXPECT_FALSE(has_name(*recovered.index, "a"));
    EXPECT_EQ(std::filesystem::exists(directory.path() + "/index.damaged/data.mdb"), lost);
  }
}

// The index has no need of it: nothing is lost, and another one takes its place.
TEST_F(RecoveryTest, ADamagedCheckpointBesideAnIndexIsNoLoss) {
  begin_life();
  make_root();
  put_body("a");
  mark_synced();
  ASSERT_TRUE(start().index->close_clean());
  ASSERT_TRUE(sim->make_directories(epoch_directory(identity.node, 1) + "/checkpoint"));
  const auto damaged = sim->open(checkpoint_path(identity.node, 1, 1), {.writable = true, .create_exclusive = true});
  ASSERT_TRUE(damaged) << damaged.error().message;
  const std::vector<std::byte> bytes(8192, std::byte{7});
  const std::span<const std::byte> piece(bytes);
  ASSERT_TRUE((*damaged)->write({&piece, 1}, 0));
  {
    const Recovered recovered = start();
    EXPECT_TRUE(recovered.checkpoint_damaged);
    EXPECT_FALSE(recovered.records_lost);
    EXPECT_EQ(noted_epoch, std::nullopt);
    EXPECT_TRUE(has_name(*recovered.index, "a"));
  }
  std::filesystem::remove_all(directory.path() + "/index");
  const Recovered anew = start();
  EXPECT_TRUE(anew.records_lost) << "it may have had more than the journals";
  EXPECT_EQ(noted_epoch, identity.epoch);
}

TEST_F(RecoveryTest, PlacesThatTheJournalGaveUpAreDead) {
  begin_life();
  make_root();
  const ObjectRecord body = put_body("a");
  append({UnnameRecord{kRootId, "a", body.id}});
  mark_synced();
  const Recovered recovered = start();
  EXPECT_FALSE(has_name(*recovered.index, "a"));
  const std::vector<FreedPlace> places = dead.take();
  ASSERT_EQ(places.size(), 1u);
  EXPECT_EQ(places[0].place.extent, body.body.place.extent);
}

TEST_F(RecoveryTest, AfterAnotherBootOnlyWholeBodiesAreBelieved) {
  begin_life("another boot of the machine");
  make_root();
  const ObjectRecord synced = put_body("synced");
  mark_synced();
  const ObjectRecord whole = put_body("whole"), torn = put_body("torn"), silent = put_body("silent");
  ASSERT_TRUE(sim->corrupt(path_of(torn), 17, std::byte{1}));
  ASSERT_TRUE(sim->corrupt(path_of(synced), 17, std::byte{1}));
  on_read = [path = path_of(silent)](const VolumeCall& call) { return Fault{.sys_errno = call.path == path ? EIO : 0}; };
  const Recovered recovered = start();
  EXPECT_TRUE(has_name(*recovered.index, "synced")) << "before the mark: not looked at";
  EXPECT_TRUE(has_name(*recovered.index, "whole"));
  EXPECT_FALSE(has_name(*recovered.index, "torn"));
  EXPECT_TRUE(has_name(*recovered.index, "silent")) << "a volume that does not answer says nothing";
  EXPECT_EQ(recovered.unverified, std::unordered_set<ObjectId>{silent.id});
  EXPECT_EQ(counters.verified_bodies, 3u);
  EXPECT_EQ(counters.dropped_bodies, 1u);
  EXPECT_TRUE(recovered.peers_want_checkpoint) << "the journals name it, to whoever reads them";
  EXPECT_TRUE(recovered.unclean);
  EXPECT_TRUE(recovered.judged_tail);
}

TEST_F(RecoveryTest, WithinTheSameBootThePageCacheIsTrusted) {
  begin_life();
  make_root();
  put_body("a");
  const Recovered recovered = start();
  EXPECT_TRUE(has_name(*recovered.index, "a"));
  EXPECT_TRUE(recovered.unclean);
  EXPECT_EQ(counters.verified_bodies, 0u);
}

TEST_F(RecoveryTest, TheRootIsMadeOnceAndObjectsWithoutANameAreDropped) {
  begin_life();
  append({PutRecord{object(next_id(), S_IFREG | 0644)}});
  Recovered recovered = start();
  begin_life();
  FirstRecords first({*recovered.index, dead, clock, stamps, counters, [this](const Batch& batch) { return journal->append(batch); }});
  ASSERT_TRUE(first.make_root());
  const JournalPosition after = journal->position();
  ASSERT_TRUE(first.make_root());
  EXPECT_EQ(journal->position(), after);
  ASSERT_TRUE(first.drop_nameless());
  EXPECT_EQ(counters.swept_files, 1u);
  EXPECT_EQ(recovered.index->totals().objects, 0u);
}

// It is what the next epoch may begin with: nobody who followed the journals has gone beyond it, and what comes late does.
TEST_F(RecoveryTest, TheEndIsBehindAllThatCounts) {
  EXPECT_EQ(start().end, JournalPosition{});
  begin_life();
  make_root();
  put_body("a");
  const JournalPosition last = append({SyncedRecord{}});
  EXPECT_EQ(start().end, last);
  EXPECT_EQ(start().end, last) << "of an index that has it all";
  EXPECT_FALSE(start().tail_cut);
  EXPECT_FALSE(start().peers_want_checkpoint);
  begin_life("another boot");
  const JournalPosition begun = journal->position();
  EXPECT_EQ(start().end, begun) << "its header was read, perhaps";
  EXPECT_TRUE(start().other_boot);
  ++identity.epoch;
  ASSERT_TRUE(volume->make_directory(epoch_directory(identity.node, identity.epoch)));
  EXPECT_EQ(start().end, (JournalPosition{identity.epoch, 0, 0}));
}

class RecoveryOfRot : public RecoveryTest {
 protected:
  void rot_at(JournalPosition position) { ASSERT_TRUE(sim->corrupt(journal_path(identity.node, position.epoch, position.seq), position.offset + 9, std::byte{1})); }
};

// Within one boot of the machine nothing is torn that anybody had read; what rots behind the last mark looks the same.
TEST_F(RecoveryOfRot, BehindTheLastMarkTheEndIsWhereItBegins) {
  begin_life();
  make_root();
  put_body("a");
  mark_synced();
  put_body("b");
  const JournalPosition end = journal->position();
  put_body("c");
  put_body("d");
  rot_at(end);
  const Recovered recovered = start();
  EXPECT_TRUE(has_name(*recovered.index, "b"));
  EXPECT_FALSE(has_name(*recovered.index, "c"));
  EXPECT_FALSE(recovered.other_boot);
  EXPECT_TRUE(recovered.tail_cut);
  EXPECT_EQ(recovered.end, end);
  EXPECT_FALSE(recovered.peers_want_checkpoint) << "whoever reads up to there reads what is left";
}

// Whoever has come to the beginning of the next file has read the end of the one before.
TEST_F(RecoveryOfRot, TheNextFileIsBehindThatToo) {
  begin_life();
  make_root();
  const JournalPosition end = journal->position();
  put_body("a");
  ASSERT_TRUE(journal->rotate());
  rot_at(end);
  const Recovered recovered = start();
  EXPECT_TRUE(recovered.tail_cut);
  EXPECT_EQ(recovered.end, end);
  EXPECT_FALSE(recovered.peers_want_checkpoint);
}

TEST_F(RecoveryOfRot, BeforeAMarkPeersTakeACheckpoint) {
  begin_life();
  make_root();
  const JournalPosition before = journal->position();
  put_body("a");
  put_body("b");
  mark_synced();
  rot_at(before);
  const Recovered recovered = start();
  EXPECT_FALSE(has_name(*recovered.index, "a"));
  EXPECT_TRUE(has_name(*recovered.index, "b"));
  EXPECT_TRUE(recovered.records_lost);
  EXPECT_TRUE(recovered.peers_want_checkpoint);
  EXPECT_FALSE(recovered.tail_cut);
}

// The beginning of an epoch says where those before it end, and not that something is missing before that.
TEST_F(RecoveryOfRot, InAnEpochBeforeTheLastPeersTakeACheckpoint) {
  begin_life();
  make_root();
  const JournalPosition before = journal->position();
  put_body("a");
  begin_life();
  put_body("b");
  rot_at(before);
  const Recovered recovered = start();
  EXPECT_FALSE(has_name(*recovered.index, "a"));
  EXPECT_TRUE(has_name(*recovered.index, "b"));
  EXPECT_TRUE(recovered.peers_want_checkpoint);
  EXPECT_FALSE(recovered.tail_cut);
}

// Its life ended before there was one.
TEST_F(RecoveryTest, ACheckpointThatAnEpochAnnouncedIsWantedUntilItIsThere) {
  begin_life();
  make_root();
  const JournalPosition end = append({SyncedRecord{}});
  begin_life();
  append({EndsRecord{end, true}});
  const JournalPosition covers = append({SyncedRecord{}});
  ASSERT_TRUE(start().index->close_clean());
  EXPECT_TRUE(start().peers_want_checkpoint);
  auto writer = CheckpointWriter::create(volume, identity, 0, {.covers = covers, .stamp = stamps.next(), .next_number = 1});
  ASSERT_TRUE(writer) << writer.error().message;
  ASSERT_TRUE((*writer)->finish());
  EXPECT_FALSE(start().peers_want_checkpoint);
}

TEST_F(RecoveryTest, WhatALostDaemonAppendsLaterDoesNotCount) {
  begin_life();
  make_root();
  put_body("before");
  const std::unique_ptr<JournalWriter> lost = std::move(journal);
  const std::unique_ptr<Index> index = std::move(start().index);
  const JournalPosition end = lost->position();
  begin_life();
  FirstRecords first({*index, dead, clock, stamps, counters, [this](const Batch& batch) { return journal->append(batch); }});
  ASSERT_TRUE(first.end_earlier(end, false));
  put_body("after");
  const ObjectId late = ObjectId::make(0, 1, 50);
  ASSERT_TRUE(lost->append(Batch{stamps.next(), {PutRecord{object(late, S_IFREG | 0644)}, NameRecord{kRootId, "late", late}}}));
  ASSERT_TRUE(remove_index(directory.path() + "/index"));
  const Recovered recovered = start();
  EXPECT_TRUE(has_name(*recovered.index, "before"));
  EXPECT_TRUE(has_name(*recovered.index, "after"));
  EXPECT_FALSE(has_name(*recovered.index, "late"));
}

TEST_F(RecoveryTest, ANodeThatLeavesHasNoNamesAndPeersMayReadOn) {
  begin_life();
  make_root();
  uint64_t bodies = 0;
  ObjectId above = kRootId;
  for (int level = 0; level < 4; ++level) {
    const ObjectRecord directory_row = object(next_id(), S_IFDIR | 0755);
    append({PutRecord{directory_row}, NameRecord{above, "d", directory_row.id}});
    above = directory_row.id;
    const ObjectRecord row = put_body("body" + std::to_string(level));
    append({NameRecord{above, "link", row.id}});
    ++bodies;
  }
  for (int i = 0; i < 5000; ++i) {
    const ObjectId id = next_id();
    append({PutRecord{object(id, S_IFREG | 0644)}, NameRecord{above, "empty" + std::to_string(i), id}});
  }
  mark_synced();
  const Recovered recovered = start();
  begin_life();
  FirstRecords first({*recovered.index, dead, clock, stamps, counters, [this](const Batch& batch) { return journal->append(batch); }});
  ASSERT_TRUE(first.remove_all_names([this] { return journal->sync(); }));
  EXPECT_EQ(recovered.index->totals().objects, 0u);
  EXPECT_EQ(recovered.index->totals().directories, 1u) << "the root";
  EXPECT_TRUE(recovered.index->list(kRootId, 0, 10).value().empty());
  uint64_t given_up = 0;
  dead.for_each([&](const FreedPlace& freed) {
    ++given_up;
    EXPECT_EQ(freed.given_up_at.epoch, identity.epoch) << "held until they have read that";
  });
  EXPECT_EQ(given_up, bodies);
}

}  // namespace recovery_test
}  // namespace kvcachefs

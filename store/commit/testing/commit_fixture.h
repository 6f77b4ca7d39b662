// The base of a committer test: a journal and extents on a volume in memory, an index of maps that takes batches, the tree and the cache.
// No lanes, no store; no thread unless a test starts the committer's.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/base/checksum.h"
#include "store/base/mutex.h"
#include "store/base/units.h"
#include "store/commit/committer.h"
#include "store/commit/quarantine.h"
#include "store/index/testing/fake_index.h"
#include "store/tree/rename.h"
#include "store/tree/tree.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {

// Keeps the rows that batches make: objects with their links, names, and freed places.
class BatchIndex : public FakeIndex {
 public:
  uint64_t batches = 0, frozen = 0;
  bool fails = false, gave_up = false, commit_fails = false;
  std::function<void()> on_apply;  // called when a batch is in the journal; no lock is held
  Stamp newest;

  Result<std::vector<FreedPlace>> apply(const Batch& batch, JournalPosition) override {
    if (fails) return fail(Code::kCorrupt, "the index is damaged");
    if (on_apply) on_apply();
    ++batches;
    newest = std::max(newest, batch.stamp);
    std::vector<FreedPlace> freed;
    for (const Record& record : batch.records) {
      if (const auto* put = std::get_if<PutRecord>(&record)) take_in(put->object, freed);
      if (const auto* row = std::get_if<AttributesRecord>(&record)) objects.at(row->id).attributes = row->attributes;
      if (const auto* touch = std::get_if<TouchRecord>(&record))
        for (const auto& [id, atime_ns] : touch->atimes_ns) objects.at(id).attributes.atime_ns = atime_ns;
      if (const auto* name = std::get_if<NameRecord>(&record); name != nullptr && objects.contains(name->child)) {
        unname(name->parent, name->name, freed);
        put_name(name->parent, name->name, name->child, objects.at(name->child).attributes.mode & S_IFMT);
        ++objects.at(name->child).nlink;
      }
      if (const auto* name = std::get_if<UnnameRecord>(&record)) unname(name->parent, name->name, freed);
    }
    totals_told.live_bytes = 0;
    for (const auto& [id, row] : objects)
      if (is_on_volume(row.body.place)) totals_told.live_bytes += align_up(row.body.place.length, kBlockBytes);
    return freed;
  }
  Stamp stamp() const override { return newest; }
  bool damaged() const override { return fails; }
  void give_up_commits() override { gave_up = true; }
  void freeze() override { ++frozen; }
  Status commit() override { return commit_fails ? fail(Code::kNoSpace, "the index cannot be written") : Status(); }
  Status scan_objects(const std::function<bool(ObjectRecord&&)>& row) const override {
    for (const auto& [id, object] : objects)
      if (!row(ObjectRecord(object))) break;
    return {};
  }
  Status scan_names(const std::function<bool(NameRecord&&)>& row) const override {
    for (const auto& [key, entry] : names)
      if (!row(NameRecord{key.first, entry.name, entry.child})) break;
    return {};
  }
  Status scan_successors(const std::function<bool(SuccessorsRecord&&)>&) const override { return {}; }
  Status scan_peer_records(const std::function<bool(Record&&)>&) const override { return {}; }

 private:
  static bool is_on_volume(const Place& place) { return place.kind == PlaceKind::kPacked || place.kind == PlaceKind::kSolo; }
  void take_in(const ObjectRecord& record, std::vector<FreedPlace>& freed) {
    ObjectRecord& row = objects[record.id];
    if (is_on_volume(row.body.place) && row.body.place != record.body.place) freed.push_back({record.id, row.body.place});
    const uint32_t nlink = row.nlink;
    row = record;
    row.nlink = nlink;
  }
  void unname(ObjectId parent, const std::string& name, std::vector<FreedPlace>& freed) {
    auto found = names.find({parent, name_cookie(name)});
    if (found == names.end()) return;
    auto row = objects.find(found->second.child);
    names.erase(found);
    if (row == objects.end() || --row->second.nlink > 0) return;
    if (is_on_volume(row->second.body.place)) freed.push_back({row->first, row->second.body.place});
    objects.erase(row);
  }
};

class CommitFixture : public ::testing::Test {
 protected:
  explicit CommitFixture(StoreOptions given = {}) : options(std::move(given)) {
    space.configure(kGiB, 0);
    ObjectRecord root;
    root.id = kRootId;
    root.attributes.mode = S_IFDIR | 0755;
    root.nlink = 2;
    index.put_object(std::move(root));
    EXPECT_TRUE(volume->make_directories("nodes/test/1"));
    auto made = JournalWriter::create(volume, identity, "boot", 64 * kMiB);
    EXPECT_TRUE(made) << made.error().message;
    journal = std::move(*made);
    room.set_extents(extents);
    dirty.set_seal_ended([this] { ++seals_ended; });
    committer.emplace(Committer::Parts{
        queue, *journal, room, extents, resumer, health, counters,
        {tree, index, accesses, dirty, changes, space, records, dead, stamps, read_times},
        {tree, index, cache, dirty, changes, space, records, waiters, dead, discards, unmarked,
         [this](ObjectId id, uint64_t size_bytes) { told_sizes[id] = size_bytes; }},
        [this]() -> Status {
          ++rebuilds;
          if (!rebuilt) return fail(Code::kCorrupt, "no checkpoint");
          index.fails = false;
          return {};
        }});
    calls.clear();
  }
  ~CommitFixture() override {
    committer.reset();
    static_cast<void>(queue.take());
    cache.clear();
    dirty.clear();  // gives the blocks of the rest back before the pool goes
    tree.clear();
  }

  // --- what clients do ---
  ObjectPtr make(const std::string& name) {
    Attributes attributes;
    attributes.mode = S_IFREG | 0644;
    auto object = std::make_shared<Object>(ObjectId{next_id++}, attributes);
    Tree::Write names = tree.write();
    EXPECT_TRUE(names.check_new_name(kRootId, name));
    auto directory = names.directory_for_entry(kRootId);
    EXPECT_TRUE(directory && names.make_entry(*directory, name, object));
    return object;
  }
  // Only as far as the journal sees it; there are no bytes in RAM.
  void write(const ObjectPtr& object, uint64_t size_bytes) {
    const auto lock = object->lock();
    object->size_bytes = size_bytes;
    EXPECT_TRUE(changes.reserve_space(*object, size_bytes));
    changes.content_changed(object);
  }
  void rename(const std::string& from, const std::string& to) {
    Rename asked{kRootId, from, kRootId, to, RenameMode::kReplace};
    Tree::Write names = tree.write();
    ASSERT_TRUE(names.resolve_rename(asked));
    {
      const auto lock = asked.source->lock();
      asked.source->named_version = asked.source->content_version;
    }
    ASSERT_TRUE(names.rename(asked));
  }
  // Another writer of a temporary name, which `older` has, begins.
  void add_version(const std::string& name, const ObjectPtr& older, const ObjectPtr& newer) {
    Tree::Write names = tree.write();
    auto state = names.names().edit(kRootId, name);
    ASSERT_TRUE(state);
    names.add_version(*state, kRootId, name, older, newer);
  }
  void unlink(const std::string& name) { ASSERT_TRUE(tree.write().unlink(kRootId, name, 0)); }

  // --- what a lane does ---
  // The current body, written to an extent of its own.
  SealedBody seal(const ObjectPtr& object) {
    SealedBody sealed;
    {
      const auto lock = object->lock();
      sealed.snapshot = object->begin_seal(object);
    }
    auto made = extents.make(PlaceKind::kSolo);
    EXPECT_TRUE(made) << made.error().message;
    const std::vector<std::byte> bytes(align_up(sealed.snapshot.size_bytes, kBlockBytes), std::byte{7});
    const std::span<const std::byte> piece(bytes);
    EXPECT_TRUE(made->file->write({&piece, 1}, 0));
    extents.note_unsynced(made->id, PlaceKind::kSolo, made->file, sealed.snapshot.size_bytes);
    sealed.extent = made->id;
    sealed.body.size_bytes = sealed.snapshot.size_bytes;
    sealed.body.version = sealed.snapshot.base.version + 1;
    sealed.body.place = {PlaceKind::kSolo, made->id, 0, sealed.snapshot.size_bytes};
    sealed.body.checksums = {checksum(std::span(bytes).first(sealed.snapshot.size_bytes))};
    return sealed;
  }
  struct Answer {
    int count = 0;
    Status status;
    bool is_good() const { return count == 1 && status.has_value(); }
    bool is_error(Code code) const { return count == 1 && !status && status.error().code == code; }
  };
  CommitRequest request(std::vector<SealedBody> bodies, Answer* answer = nullptr) {
    CommitRequest made;
    made.bodies = std::move(bodies);
    if (answer != nullptr)
      made.done = [answer](Status status) {
        ++answer->count;
        answer->status = std::move(status);
      };
    return made;
  }
  CommitRequest request_of(const ObjectPtr& object, Answer* answer = nullptr) {
    std::vector<SealedBody> bodies;
    bodies.push_back(seal(object));
    return request(std::move(bodies), answer);
  }
  // Makes a journaled chunk.
  ObjectPtr put(const std::string& name, uint64_t size_bytes = 5000) {
    const ObjectPtr object = make(name);
    write(object, size_bytes);
    queue.add(request_of(object));
    EXPECT_TRUE(committer->step());
    EXPECT_TRUE(is_journaled(object));
    return object;
  }

  // --- what is checked afterwards ---
  std::vector<Batch> journaled_batches() {
    std::vector<Batch> batches;
    auto read = replay_journals(*volume, identity, {}, [&](const Batch& batch, JournalPosition, bool) -> Status {
      batches.push_back(batch);
      return {};
    });
    EXPECT_TRUE(read) << read.error().message;
    return batches;
  }
  static std::string text_of(const Batch& batch) {
    std::string text;
    for (const Record& record : batch.records) {
      if (const auto* put = std::get_if<PutRecord>(&record)) text += "put " + std::to_string(put->object.id.value) + "; ";
      if (const auto* row = std::get_if<AttributesRecord>(&record)) text += "attributes " + std::to_string(row->id.value) + "; ";
      if (const auto* name = std::get_if<NameRecord>(&record)) text += "name " + name->name + " " + std::to_string(name->child.value) + "; ";
      if (const auto* name = std::get_if<UnnameRecord>(&record)) text += "unname " + name->name + "; ";
      if (std::holds_alternative<SyncedRecord>(record)) text += "synced; ";
    }
    return text;
  }
  std::string last_batch() {
    const std::vector<Batch> batches = journaled_batches();
    return batches.empty() ? "" : text_of(batches.back());
  }
  bool is_journaled(const ObjectPtr& object) {
    const auto lock = object->lock();
    return !object->content_dirty() && !object->sealing && object->durable;
  }
  ObjectId named_in_index(const std::string& name) {
    auto found = index.find_name(kRootId, name);
    return found && *found ? (*found)->child : ObjectId{};
  }
  bool is_queued(const ObjectPtr& object) {
    for (const ObjectPtr& each : dirty.content())
      if (each == object) return true;
    return false;
  }

  uint64_t next_id = 100;
  int seals_ended = 0, rebuilds = 0;
  bool rebuilt = true;
  std::map<ObjectId, uint64_t> told_sizes;
  InnerMutex calls_mutex;
  std::vector<std::string> calls;  // syncs and writes, with their paths
  std::function<Fault(const VolumeCall&)> on_call;
  std::shared_ptr<SimVolume> sim = make_sim_volume({.direct_io = false});
  std::shared_ptr<Volume> volume = make_fault_volume(sim, [this](const VolumeCall& call) {
    std::lock_guard lock(calls_mutex);
    if (call.kind == VolumeCall::Kind::kSync || call.kind == VolumeCall::Kind::kWrite)
      calls.push_back(call_kind_name(call.kind) + (" " + call.path));
    return on_call ? on_call(call) : Fault{};
  });

  ManualClock clock{1'000'000'000'000};
  HybridClock stamps{clock};
  const FileIdentity identity{.volume_uuid = {}, .node = "test", .epoch = 1};
  BatchIndex index;
  Space space;
  DeadSpace dead{space};
  RecordSpace records{space, 64 * kMiB};
  AccessTracker accesses{[](ObjectId) { return std::nullopt; }, 0, 0};
  Wakeup wakeup;
  WorkQueue work{wakeup};
  Extents extents{volume, identity, 8};
  Discards discards{{space, dead, work, extents}};
  DirtyQueue dirty;
  LiveOptions options;
  BodyChanges changes{{clock, space, records, dirty, discards, options}};
  MemoryPool pool{16 * kMiB, kSealingBytes};
  MemoryFiles files{pool};
  Tree tree{{index, clock, accesses, space, records, discards, dirty, pool, true}};
  Counters counters;
  Resumer resumer{{clock, [] {}}};
  PageWarmer warmer{{pool, files, [] {}}};
  BodyCache cache{{pool, files, tree, accesses, resumer, warmer, counters, false}};
  Health health{clock};
  Backoff upkeep{1, 1};
  SpaceWaiters space_waiters{space, counters.errors_no_space, clock, [] {}};
  RecordWaiters waiters{{records, space, space_waiters, dirty, resumer, wakeup, health, upkeep, clock}};
  CommitQueue queue;
  UnsavedReadTimes read_times;
  UnmarkedBodies unmarked;
  Quarantine quarantine{{tree, queue, extents, space, counters}};
  Reserve reserve{volume, "nodes/test/RESERVE"};
  JournalRoom room{reserve, counters};
  std::unique_ptr<JournalWriter> journal;
  std::optional<Committer> committer;
};

}  // namespace kvcachefs

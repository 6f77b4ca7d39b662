// The keeper with all its parts, over lanes and a committer without threads, on a volume in memory. No store.
#include "store/upkeep/keeper.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "store/journal/memory_volume.h"
#include "store/tree/writer_processes.h"
#include "store/writeback/testing/writeback_fixture.h"

namespace kvcachefs {
namespace keeper_test {

class KeeperTest : public WritebackFixture {
 protected:
  ~KeeperTest() override {
    space_waiters.stop();
    space_waiters.answer_all();
    ahead.finish();
  }

  // A journaled chunk in a file of its own.
  ObjectPtr put_solo(const std::string& name) {
    const ObjectPtr object = write_new(name, kPackBelow + 1);
    run();
    return object;
  }
  // Replaces it by a file while a body is in the journal, and lets the keeper notice. Returns the journal's position at that time.
  JournalPosition replace_journal_directory() {
    begin();
    put_solo("a");
    const JournalPosition at = journal->position();
    EXPECT_TRUE(volume->rename(journals, "elsewhere"));
    EXPECT_TRUE(volume->open(journals, {.writable = true, .create_exclusive = true}));
    checkpointer->look_for_journal();
    EXPECT_FALSE(journal->sync());
    return at;
  }
  bool is_on_volume(const Place& place) { return extents.info(place.extent, place.kind).has_value(); }
  Place place_of(const ObjectPtr& object) { return journaled(object).place; }
  bool has_synced_since(size_t batches) {
    const std::vector<Batch> all = journaled_batches();
    for (size_t i = batches; i < all.size(); ++i)
      if (text_of(all[i]).find("synced") != std::string::npos) return true;
    return false;
  }

  GoneNames gone;
  StaleOpens stale_opens{clock};
  ProbeCounts probes{clock.monotonic_ns()};
  RawSpace raw_space{space, false};
  Evictor evictor{clock};
  IndexRebuild index_rebuild{*volume, identity, clock};
  OrphanNotes orphans{dead, space};
  MemoryFilePolicy policy{{files, options, clock}};
  Opener opener;
  Loader loader{{*volume, extents, tree, cache, policy, quarantine, opener, work, counters, clock}};
  UnverifiedBodies unverified{{index, tree, reader, quarantine}, {}};
  FileMover mover{{pool, files, policy, clock, counters, false, [](uint64_t) { return false; }}};
  BackingFiles backing{{*volume, extents, tree, files, policy, accesses, unverified, counters, clock, false}};
  RequestClock request_clock{clock};
  ReadAhead ahead{{accesses, tree, loader, extents, pool, files, policy, cache, mover, backing, counters, request_clock, false}};
  Reclaimer reclaimer{dead, extents, index, counters, clock, {[this](const FreedPlace& freed) { return tree.read().still_needed(freed); }, [this] { return !queue.idle(); }}, true, 0};

  const std::string index_directory = "/nowhere";
  const std::string journals = epoch_directory(identity.node, identity.epoch) + "/journal";
  std::atomic<uint64_t> next_number{7};
  Drainer drainer{{bulk, urgent, *committer}};
  Eviction eviction{{evictor, tree, index, space, refusals, gone, counters, options, clock, wakeup,
                     [this] { drainer.journal_names(); }, [this] { drainer.drain(true); }, [] { return false; }, false}};
  OrphanSweep sweep{{*volume, identity, extents, index, dead, orphans, counters, clock, [this] { return checkpointer->sync_point(); }, false, 0}};
  std::optional<Checkpointer> checkpointer;
  std::optional<VolumeWatch> watch;
  std::optional<Keeper> keeper;

  void begin(const Checkpointer::Found& found = {}) {
    checkpointer.emplace(Checkpointer::Parts{volume, identity, index_directory, index, index_rebuild, *journal, room, reserve, extents, *committer,
                                             relocator, drainer, tree, accesses, space, dead, raw_space, records, orphans, sweep, reclaimer, eviction,
                                             health, counters, clock, options, next_number},
                         found);
    watch.emplace(VolumeWatch::Parts{*volume, identity, extents, index, space, raw_space, dead, reserve, *checkpointer, refusals, health, dirty, options, clock,
                                     [](const SpaceInfo& now) {
                                       return OptionDefaults{.backing_bytes = now.total_bytes, .memory_bytes = kGiB, .network_volume = false};
                                     },
                                     false, false, true},
                  *volume->space());
    keeper.emplace(Keeper::Parts{*checkpointer, eviction, sweep, *watch, drainer, work, wakeup, space_waiters, waiters, dead, space, index,
                                 index_rebuild, tree, stale_opens, queue, read_times, unverified, sealer, ahead, resumer, cache, warmer, files, pool, probes,
                                 health, upkeep, counters, clock});
    keeper->begin();
  }
};

TEST_F(KeeperTest, ReadTimesAreJournaledWithWhatComesOrAfterAWhile) {
  begin();
  const ObjectPtr object = put_solo("a");
  const auto index_time = [&] { return index.objects.at(object->id).attributes.atime_ns; };
  keeper->step(false);
  read_times.note(object->id, 1'000, 0);
  keeper->step(false);
  run();
  EXPECT_NE(index_time(), 1'000) << "not for each read";
  clock.advance_ns(UnsavedReadTimes::kWaitNs);
  keeper->step(false);
  run();
  EXPECT_EQ(index_time(), 1'000);
  read_times.note(object->id, 2'000, 0);
  put_solo("b");
  EXPECT_EQ(index_time(), 2'000);
  // a time set later counts
  read_times.note(object->id, 3'000, 0);
  {
    const auto lock = object->lock();
    object->attributes.atime_ns = 1'500;
    mark_attributes_dirty(object, records, dirty);
  }
  run();
  EXPECT_EQ(index_time(), 1'500);
}

TEST_F(KeeperTest, ReadTimesTakeNothingOfAFullVolume) {
  begin();
  const ObjectPtr object = put_solo("a");
  clock.advance_ns(UnsavedReadTimes::kWaitNs);
  keeper->step(true);  // nothing else is left to do
  run();
  space.configure(1, 0);
  ASSERT_EQ(space.room_bytes(), 0u);
  read_times.note(object->id, 1'000, 0);
  clock.advance_ns(UnsavedReadTimes::kWaitNs);
  keeper->step(false);
  run();
  EXPECT_NE(index.objects.at(object->id).attributes.atime_ns, 1'000);
  space.configure(kGiB, 0);
  keeper->step(false);
  run();
  EXPECT_EQ(index.objects.at(object->id).attributes.atime_ns, 1'000);
}

TEST_F(KeeperTest, WhatWasRemovedIsGivenBackOnceItsRecordIsSynced) {
  begin();
  const ObjectPtr object = put_solo("a");
  const Place place = place_of(object);
  unlink("a");
  queue.add(request({}));
  run();
  EXPECT_TRUE(dead.any());
  EXPECT_TRUE(is_on_volume(place)) << "journaled is not synced";
  const size_t batches = journaled_batches().size();
  EXPECT_EQ(counters.syncs, 0u);
  bool synced_first = false;
  on_call = [&](const VolumeCall& call) {
    if (call.kind == VolumeCall::Kind::kRemoveFile) synced_first = counters.syncs > 0;
    return Fault{};
  };
  keeper->want_reclaim();
  EXPECT_TRUE(keeper->step(false));
  on_call = {};
  EXPECT_TRUE(has_synced_since(batches));
  EXPECT_TRUE(synced_first);
  EXPECT_FALSE(is_on_volume(place));
  EXPECT_FALSE(dead.any());
  EXPECT_EQ(counters.index_commits, 1u);
}

TEST_F(KeeperTest, WithNothingToDoAStepWritesNothing) {
  begin();
  keeper->step(true);
  calls.clear();
  EXPECT_FALSE(keeper->step(false));
  EXPECT_TRUE(calls.empty()) << calls.front();
}

TEST_F(KeeperTest, ACallThatWaitsForRoomTriesAgainAfterARound) {
  begin();
  const Place place = place_of(put_solo("a"));
  unlink("a");
  SpaceWaiters::Turn turn;
  bool tried = false, was_back = false;
  EXPECT_TRUE(space_waiters.wait(turn, [&] {
    tried = true;
    was_back = !is_on_volume(place);
  }));
  EXPECT_TRUE(keeper->step(false));
  EXPECT_TRUE(tried);
  EXPECT_TRUE(was_back) << "the name was journaled, that synced, and the file removed before";
}

// For instance the file of a body that was spilled and given up.
TEST_F(KeeperTest, ACallThatWaitsForRoomGetsWhatWorkOfOthersReleases) {
  begin();
  const uint64_t bytes = space.room_bytes();
  space.reserve(bytes);
  work.add([&] { space.release(bytes); });
  SpaceWaiters::Turn turn;
  uint64_t room = 0;
  EXPECT_TRUE(space_waiters.wait(turn, [&] { room = space.room_bytes(); }));
  EXPECT_TRUE(keeper->step(false));
  EXPECT_GT(room, 0u);
}

// A version of a temporary name that the journal gave to another one is dead on the volume, and comes back when it cannot be renamed any more.
TEST_F(KeeperTest, ACallThatWaitsForRoomGetsWhatAVersionOfAnEndedProcessKeeps) {
  constexpr uint32_t kEnded = 1'000'000'000;  // more than any process has
  begin();
  const auto version = [&](const ObjectPtr& object, uint32_t thread_id) {
    note_writer(*object, thread_id);
    object->temporary = true;
    object->last_write_ns = clock.monotonic_ns();
  };
  const ObjectPtr older = put_solo("x.tmp");
  version(older, kEnded);
  const Place place = place_of(older);
  auto newer = std::make_shared<Object>(ObjectId{next_id++}, older->attributes);
  add_version("x.tmp", older, newer);
  write_at(newer, 0, bytes_of(kPackBelow + 1, 1));
  version(newer, static_cast<uint32_t>(getppid()));
  run();
  ASSERT_EQ(named_in_index("x.tmp"), newer->id);
  ASSERT_EQ(dead.bytes(), align_up(place.length, kBlockBytes));
  SpaceWaiters::Turn turn;
  bool tried = false;
  EXPECT_TRUE(keeper->step(true));
  ASSERT_TRUE(is_on_volume(place)) << "no call waits";
  ASSERT_TRUE(space_waiters.wait(turn, [&] { tried = true; }));
  EXPECT_TRUE(keeper->step(false));
  EXPECT_TRUE(tried);
  EXPECT_FALSE(is_on_volume(place));
}

TEST_F(KeeperTest, ACallDoesNotWaitForAVersionThatIsOpen) {
  begin();
  const ObjectPtr older = put_solo("x.tmp");
  note_writer(*older, static_cast<uint32_t>(getpid()));
  older->last_write_ns = clock.monotonic_ns();
  older->add_handle();
  auto newer = std::make_shared<Object>(ObjectId{next_id++}, older->attributes);
  add_version("x.tmp", older, newer);
  SpaceWaiters::Turn turn;
  bool tried = false;
  ASSERT_TRUE(space_waiters.wait(turn, [&] { tried = true; }));
  EXPECT_TRUE(keeper->step(false));
  EXPECT_TRUE(tried);
  older->drop_handle();
}

TEST_F(KeeperTest, AnIndexThatCannotBeWrittenDoesNotKeepSpace) {
  begin();
  const Place place = place_of(put_solo("a"));
  unlink("a");
  queue.add(request({}));
  run();
  index.commit_fails = true;
  keeper->index_now();
  EXPECT_EQ(counters.errors_index, 1u);
  EXPECT_FALSE(health.state().reason.empty());
  EXPECT_FALSE(is_on_volume(place)) << "the journal says it, synced";
  index.commit_fails = false;
  keeper->index_now();
  EXPECT_EQ(counters.index_commits, 1u);
}

TEST_F(KeeperTest, AfterAStartThatJudgedTheJournalsACheckpointComesFirst) {
  begin({.judged_tail = true});
  const Place place = place_of(put_solo("a"));
  unlink("a");
  queue.add(request({}));
  run();
  index.commit_fails = true;
  keeper->index_now();
  EXPECT_TRUE(is_on_volume(place)) << "the next start would judge by journals that name it";
  EXPECT_FALSE(volume->info(checkpoint_path("test", 1, 0)));
  index.commit_fails = false;
  EXPECT_TRUE(keeper->step(false));
  EXPECT_EQ(counters.checkpoints, 1u);
  EXPECT_TRUE(volume->info(checkpoint_path("test", 1, 0)));
  EXPECT_FALSE(checkpointer->judged_tail());
  EXPECT_FALSE(is_on_volume(place));
}

TEST_F(KeeperTest, WorkOfOthersIsDone) {
  begin();
  bool done = false;
  work.add([&] { done = true; });
  EXPECT_TRUE(keeper->step(false));
  EXPECT_TRUE(done);
}

TEST_F(KeeperTest, ItsThreadDoesWhatIsAskedForAndEnds) {
  begin();
  const Place place = place_of(put_solo("a"));
  unlink("a");
  queue.add(request({}));
  run();
  keeper->start();
  keeper->want_reclaim();
  while (dead.any()) std::this_thread::yield();
  keeper->stop();
  EXPECT_FALSE(is_on_volume(place));
}

TEST_F(KeeperTest, AVolumeThatIsGoneIsNoticedAndAcceptedAgain) {
  begin();
  keeper->step(true);
  EXPECT_FALSE(refusals.is_gone());
  ASSERT_TRUE(volume->rename("nodes/test/1", "nodes/test/elsewhere"));
  keeper->step(false);
  EXPECT_TRUE(refusals.is_gone());
  EXPECT_NE(health.state().reason.find("removed"), std::string::npos);
  ASSERT_TRUE(volume->rename("nodes/test/elsewhere", "nodes/test/1"));
  keeper->step(false);
  EXPECT_FALSE(refusals.is_gone());
}

// Asking a network volume for its free space, or for its existence, is a call to a server.
TEST_F(KeeperTest, AVolumeOnANetworkIsMeasuredSeldomWhileNothingIsStored) {
  begin();
  const auto remote = make_sim_volume({.direct_io = false, .network = true});
  VolumeWatch there(VolumeWatch::Parts{*remote, identity, extents, index, space, raw_space, dead, reserve, *checkpointer, refusals, health, dirty, options, clock,
                                       [](const SpaceInfo&) { return OptionDefaults{}; }, false, false, true},
                    *remote->space());
  const auto seconds_until_gone = [&](bool stores) {
    EXPECT_TRUE(remote->make_directories("nodes/test/1"));
    there.measure();
    there.measure_when_due(clock.monotonic_ns());
    EXPECT_FALSE(refusals.is_gone());
    EXPECT_TRUE(remote->rename("nodes/test", "nodes/elsewhere"));
    int seconds = 0;
    for (; seconds < 20 && !refusals.is_gone(); ++seconds) {
      clock.advance_ns(1'000'000'000);
      if (stores) space.reserve(4096);
      there.measure_when_due(clock.monotonic_ns());
    }
    EXPECT_TRUE(remote->remove_directory("nodes/elsewhere/1"));
    EXPECT_TRUE(remote->remove_directory("nodes/elsewhere"));
    return seconds;
  };
  EXPECT_EQ(seconds_until_gone(/*stores=*/false), 5);
  EXPECT_EQ(seconds_until_gone(/*stores=*/true), 1);
  space.release(4096);
}

TEST_F(KeeperTest, TheFreeSpaceOfANetworkVolumeIsAskedForOnceInTenSecondsWhileNothingIsStored) {
  struct Remote final : MemoryVolume {
    int asked = 0;
    Result<SpaceInfo> space() override {
      ++asked;
      return SpaceInfo{.total_bytes = kGiB, .available_bytes = kGiB};
    }
  } remote;
  remote.set_network(true);
  ASSERT_TRUE(remote.make_directories("nodes/test/1"));
  begin();
  VolumeWatch there(VolumeWatch::Parts{remote, identity, extents, index, space, raw_space, dead, reserve, *checkpointer, refusals, health, dirty, options, clock,
                                       [](const SpaceInfo&) { return OptionDefaults{}; }, false, false, true},
                    *remote.space());
  const auto asked_in = [&](int seconds) {
    const int before = remote.asked;
    for (; seconds > 0; --seconds) {
      clock.advance_ns(1'000'000'000);
      if (seconds % 5 == 0) there.refill_reserve();
      there.measure_when_due(clock.monotonic_ns());
    }
    return remote.asked - before;
  };
  asked_in(20);
  const uint64_t held = reserve.held_bytes();
  EXPECT_GT(held, 0u);
  EXPECT_EQ(asked_in(40), 4);
  ASSERT_TRUE(reserve.give(kBlockBytes));
  EXPECT_EQ(asked_in(10), 2) << "the reserve is filled again";
  EXPECT_EQ(reserve.held_bytes(), held);
}

// Another file has taken its name: everything appended would go into a file that cannot be found again.
TEST_F(KeeperTest, AJournalThatIsReplacedOrCutIsWrittenAnew) {
  begin();
  put_solo("a");
  keeper->step(false);
  checkpointer->look_for_journal();
  EXPECT_FALSE(checkpointer->wants_checkpoint());
  for (const std::string how : {"replaced", "moved", "cut", "a directory"}) {
    const JournalPosition at = journal->position();
    const std::string path = journal_path(identity.node, at.epoch, at.seq);
    if (how == "cut") {
      ASSERT_TRUE((*volume->open(path, {.writable = true}))->truncate(at.offset - 1));
    } else {
      ASSERT_TRUE(how == "replaced" ? volume->remove_file(path) : volume->rename(path, path + ".moved"));
    }
    if (how == "a directory") {
      ASSERT_TRUE(volume->make_directory(path));
    } else if (how != "cut") {
      auto other = volume->open(path, {.writable = true, .create_exclusive = true});
      ASSERT_TRUE(other);
      ASSERT_TRUE((*other)->truncate(at.offset));
    }
    checkpointer->look_for_journal();
    EXPECT_TRUE(checkpointer->wants_checkpoint()) << how;
    EXPECT_GT(journal->position().seq, at.seq) << how;
    ASSERT_TRUE(checkpointer->index_point()) << how;
    EXPECT_FALSE(checkpointer->wants_checkpoint()) << how;
    checkpointer->look_for_journal();
    EXPECT_FALSE(checkpointer->wants_checkpoint()) << how;
    put_solo(how);
  }
}

// A record that could not be found again is not accepted, and files that others put there stay.
TEST_F(KeeperTest, AJournalOfWhichTheDirectoryIsReplacedFailsUntilThatIsUndone) {
  const JournalPosition at = replace_journal_directory();
  EXPECT_FALSE(journal->append({}));
  EXPECT_FALSE(checkpointer->index_point());
  EXPECT_TRUE(checkpointer->wants_checkpoint());
  EXPECT_FALSE(volume->info(journals)->is_directory);
  ASSERT_TRUE(volume->remove_file(journals));
  checkpointer->look_for_journal();
  EXPECT_GT(journal->position().seq, at.seq);
  EXPECT_TRUE(checkpointer->index_point());
  EXPECT_FALSE(checkpointer->wants_checkpoint());
}

// No other record has to be journaled for that.
TEST_F(KeeperTest, AJournalOfWhichTheDirectoryIsPutBackGoesOn) {
  const JournalPosition at = replace_journal_directory();
  ASSERT_TRUE(volume->remove_file(journals));
  ASSERT_TRUE(volume->rename("elsewhere", journals));
  checkpointer->look_for_journal();
  EXPECT_TRUE(journal->sync());
  EXPECT_EQ(journal->position().seq, at.seq + 1) << "one file";
  EXPECT_TRUE(checkpointer->index_point());
  EXPECT_FALSE(checkpointer->wants_checkpoint());
}

TEST_F(KeeperTest, AVolumeOfWhichADirectoryIsReplacedIsGone) {
  begin();
  ASSERT_TRUE(volume->rename("nodes/test/1", "nodes/test/elsewhere"));
  ASSERT_TRUE(volume->open("nodes/test/1", {.writable = true, .create_exclusive = true}));
  keeper->step(false);
  EXPECT_TRUE(refusals.is_gone());
}

}  // namespace keeper_test
}  // namespace kvcachefs

// The lanes, the spiller and the relocator over the committer, without a store.
#include <gtest/gtest.h>

#include <cerrno>
#include <future>
#include <thread>

#include "store/writeback/testing/writeback_fixture.h"

namespace kvcachefs {
namespace lanes_test {

constexpr int64_t kSecondNs = 1'000'000'000;

class LanesTest : public WritebackFixture {
 protected:
  static Fault fail_writes_of(const VolumeCall& each, const char* ending, int sys_errno) {
    return {.sys_errno = each.kind == VolumeCall::Kind::kWrite && each.path.ends_with(ending) ? sys_errno : 0};
  }
};

TEST_F(LanesTest, TheBulkLaneSealsWhatIsFinishedAndLeavesWhatIsBeingWritten) {
  const ObjectPtr finished = write_new("a", 5000), open = write_new("b", 5000), quiet = write_new("c", 5000);
  for (const ObjectPtr& each : {open, quiet}) {
    const auto lock = each->lock();
    each->write_handles = 1;
  }
  {
    const auto lock = open->lock();
    open->unflushed_handles = 1;
  }
  run();
  EXPECT_TRUE(is_journaled(finished));
  EXPECT_FALSE(is_journaled(open));
  EXPECT_FALSE(is_journaled(quiet));
  clock.advance_ns(2 * kSecondNs);
  run();
  EXPECT_TRUE(is_journaled(quiet)) << "left alone for a second";
  EXPECT_FALSE(is_journaled(open)) << "more of it is expected";
  EXPECT_EQ(dirty.content().size(), 1u);
}

TEST_F(LanesTest, ADrainIsAnsweredWhenAllThatWasDirtyIsJournaledAndMarkedIfAsked) {
  const ObjectPtr body = write_new("a", 5000);
  Answer answer;
  bulk.drain(/*sync=*/true, into(answer));
  EXPECT_TRUE(bulk.step(false));
  EXPECT_EQ(answer.count, 0);
  run();
  EXPECT_TRUE(answer.is_good());
  EXPECT_TRUE(is_journaled(body));
  EXPECT_EQ(last_batch(), "synced; ");
}

TEST_F(LanesTest, ADrainHearsOfAJournalThatTakesNothingForLong) {
  write_new("a", 5000);
  on_call = [](const VolumeCall& each) { return fail_writes_of(each, ".log", EIO); };
  Answer answer;
  bulk.drain(/*sync=*/false, into(answer));
  int turns = 0;
  for (; turns < 200 && answer.count == 0; ++turns) {
    clock.advance_ns(3 * kSecondNs);  // beyond every pause
    bulk.step(false);
    committer->step();
  }
  EXPECT_TRUE(answer.is_error(Code::kIo));
  EXPECT_GT(turns, 40) << "not at the first failure";
}

// A drain for room that waits for what waits for room ends never, and with it all calls that wait.
TEST_F(LanesTest, ADrainForRoomDoesNotWaitForABodyThatPromisesMoreThanThereIs) {
  const ObjectPtr body = write_new("a", 5000);
  ASSERT_TRUE(bulk.step(false));  // sealed, and not committed
  write_at(body, 0, bytes_of(6000, 2));
  Answer answer;
  bulk.drain_for_room(into(answer));
  bulk.step(false);
  EXPECT_EQ(answer.count, 0) << "its older version is on its way";
  {
    const auto lock = body->lock();
    body->write_handles = 1;
    body->note_allocated(0, 2 * space.limit_bytes());  // by fallocate() meanwhile
  }
  run();
  EXPECT_TRUE(answer.is_good());
}

TEST_F(LanesTest, NamesThatWaitAloneAreCommitted) {
  write_new("a", 5000);
  run();
  unlink("a");
  run();
  EXPECT_FALSE(named_in_index("a").valid());
}

TEST_F(LanesTest, NamesThatTheJournalDoesNotTakeAreTriedAgainAfterPausesThatGrow) {
  write_new("a", 5000);
  run();
  unlink("a");
  int tries = 0;
  on_call = [&](const VolumeCall& each) {
    if (!each.path.ends_with(".log")) return Fault{};
    tries += each.kind == VolumeCall::Kind::kCreate ? 1 : 0;
    return Fault{.sys_errno = EIO};
  };
  for (int milliseconds = 0; milliseconds < 10'000; ++milliseconds) {
    bulk.step(false);
    committer->step();
    clock.advance_ns(kSecondNs / 1000);
  }
  EXPECT_GE(tries, 50) << "calls may wait for it";
  EXPECT_LE(tries, 110);
  EXPECT_TRUE(named_in_index("a").valid());
  on_call = nullptr;
  clock.advance_ns(kSecondNs / 1000);
  run();
  EXPECT_TRUE(named_in_index("a").valid()) << "a pause";
  refusals.try_soon();
  run();
  EXPECT_FALSE(named_in_index("a").valid());
  EXPECT_EQ(journal->position().seq, 1u) << "none of the files that could not be made took a number";
}

TEST_F(LanesTest, AVolumeThatIsFullIsTriedAgainAfterAPauseAndNothingIsAcceptedMeanwhile) {
  const ObjectPtr body = write_new("a", 5000);
  on_call = [](const VolumeCall& each) { return fail_writes_of(each, ".pack", ENOSPC); };
  EXPECT_FALSE(bulk.step(false));
  committer->step();
  EXPECT_TRUE(refusals.is_failing());
  EXPECT_EQ(space.room_bytes(), 0u);
  EXPECT_TRUE(health.error(Health::Of::kData));
  on_call = nullptr;
  EXPECT_FALSE(bulk.step(false)) << "a pause";
  EXPECT_FALSE(is_journaled(body));
  refusals.try_soon();
  run();
  EXPECT_TRUE(is_journaled(body));
  EXPECT_FALSE(refusals.is_failing());
  EXPECT_GT(space.room_bytes(), 0u);
  EXPECT_FALSE(health.error(Health::Of::kData));
}

TEST_F(LanesTest, TheUrgentLaneSealsWhatIsAskedForAndOnlyThat) {
  const ObjectPtr wanted = write_new("a", 5000), other = write_new("b", 5000);
  Answer answer;
  urgent.make_durable(wanted, /*sync=*/true, into(answer));
  EXPECT_TRUE(urgent.step());
  EXPECT_EQ(answer.count, 0);
  EXPECT_TRUE(committer->step());
  EXPECT_TRUE(answer.is_good());
  EXPECT_TRUE(is_journaled(wanted));
  EXPECT_FALSE(is_journaled(other));
  EXPECT_FALSE(urgent.step());
}

TEST_F(LanesTest, ACallWaitsForTheSealOfTheOtherLaneAndForWhatWasWrittenSince) {
  const ObjectPtr body = write_new("a", 5000, 1);
  ASSERT_TRUE(bulk.step(false));  // sealed, and not committed
  write_at(body, 0, bytes_of(6000, 2));
  Answer answer;
  urgent.make_durable(body, /*sync=*/false, into(answer));
  EXPECT_TRUE(urgent.step());
  EXPECT_FALSE(urgent.step()) << "deferred";
  EXPECT_TRUE(committer->step());
  EXPECT_EQ(answer.count, 0) << "an older version is journaled";
  EXPECT_TRUE(urgent.step());
  EXPECT_TRUE(committer->step());
  EXPECT_TRUE(answer.is_good());
  EXPECT_TRUE(holds(body, bytes_of(6000, 2)));
}

// A batch with a newer version of its name takes its record, though it was renamed since that batch was made.
TEST_F(LanesTest, ACallWaitsUntilWhatLostItsRecordMeanwhileIsJournaledAgain) {
  const ObjectPtr older = write_new("x.tmp", 5000, 1), newer = std::make_shared<Object>(ObjectId{next_id++}, older->attributes);
  older->add_handle();  // a reader, so that the table keeps it
  run();
  ASSERT_TRUE(is_journaled(older));
  older->writer_thread = 7;
  newer->writer_thread = 8;
  add_version("x.tmp", older, newer);
  write_at(newer, 0, bytes_of(5000, 2));
  Answer answer;
  int batches = 0;
  index.on_apply = [&] {
    if (batches++ > 0) return;
    Rename asked{kRootId, "x.tmp", kRootId, "x", RenameMode::kReplace, older->writer_thread};
    {
      Tree::Write names = tree.write();
      ASSERT_TRUE(names.resolve_rename(asked));
      ASSERT_EQ(asked.source, older);
      ASSERT_TRUE(names.rename(asked));
    }
    urgent.make_all_durable(std::move(asked.unsealed), /*sync=*/false, into(answer));
    EXPECT_TRUE(urgent.step());
  };
  ASSERT_TRUE(bulk.step(false));
  EXPECT_TRUE(committer->step());
  ASSERT_EQ(named_in_index("x.tmp"), newer->id);
  EXPECT_EQ(answer.count, 0);
  for (int round = 0; round < 10 && answer.count == 0; ++round) {
    committer->step();
    if (answer.count == 0) urgent.step();
  }
  EXPECT_TRUE(answer.is_good());
  EXPECT_EQ(named_in_index("x"), older->id);
  EXPECT_TRUE(holds(older, bytes_of(5000, 1)));
}

TEST_F(LanesTest, SeveralAreAnsweredTogetherAndWithTheFirstError) {
  const ObjectPtr good = write_new("a", 5000), bad = write_new("b", 5000);
  {
    const auto lock = bad->lock();
    bad->note_failed_write({Code::kIo, EIO, "a write failed"}, 0, 100);
  }
  Answer answer;
  urgent.make_all_durable({good, bad}, /*sync=*/false, into(answer));
  run();
  EXPECT_TRUE(answer.is_error(Code::kIo));
  EXPECT_TRUE(is_journaled(good));
  urgent.make_all_durable({}, /*sync=*/false, into(answer = {}));
  run();
  EXPECT_TRUE(answer.is_good());
}

TEST_F(LanesTest, WhenMemoryIsShortABodyThatIsNotFinishedIsSpilledAndItsSealGoesOnInThatFile) {
  const uint64_t bytes = 14 * kMiB;  // of 16
  const ObjectPtr body = write_new("a", bytes, 1);
  {
    const auto lock = body->lock();
    body->write_handles = body->unflushed_handles = 1;
  }
  ASSERT_TRUE(pool.under_pressure());
  EXPECT_TRUE(bulk.step(false));
  ExtentId spill;
  {
    const auto lock = body->lock();
    ASSERT_TRUE(body->spill);
    EXPECT_FALSE(body->in_ram());
    EXPECT_FALSE(body->sealing);
    spill = body->spill_extent;
    body->write_handles = body->unflushed_handles = 0;
  }
  run();
  EXPECT_TRUE(is_journaled(body));
  EXPECT_EQ(journaled(body).place.extent, spill);
  EXPECT_TRUE(holds(body, bytes_of(bytes, 1)));
}

TEST_F(LanesTest, ARoundThatSpillsABodyCommitsNamesToo) {
  write_new("a", 5000);
  run();
  const ObjectPtr body = write_new("b", 14 * kMiB, 1);
  {
    const auto lock = body->lock();
    body->write_handles = body->unflushed_handles = 1;
  }
  ASSERT_TRUE(pool.under_pressure());
  unlink("a");  // calls wait for that to be journaled, and nothing else wakes the lane
  EXPECT_TRUE(bulk.step(false));
  {
    const auto lock = body->lock();
    ASSERT_TRUE(body->spill);
  }
  committer->step();
  EXPECT_FALSE(named_in_index("a").valid());
}

TEST_F(LanesTest, BodiesMoveOutOfAnExtentThatCouldNotBeSynced) {
  const ObjectPtr body = write_new("a", 5000, 1);
  run();
  const ExtentId lost = journaled(body).place.extent;
  on_call = [](const VolumeCall& each) { return Fault{.sys_errno = each.kind == VolumeCall::Kind::kSync && each.path.ends_with(".pack") ? EIO : 0}; };
  EXPECT_FALSE(extents.sync_all());
  on_call = nullptr;
  ASSERT_TRUE(extents.is_lost(lost));
  relocator.rescue([this] { run(); });
  EXPECT_FALSE(relocator.is_in_vain());
  EXPECT_TRUE(is_journaled(body));
  EXPECT_NE(journaled(body).place.extent, lost);
  EXPECT_TRUE(holds(body, bytes_of(5000, 1)));
  EXPECT_FALSE(relocator.move_all());
}

TEST_F(LanesTest, WhereWhatWasMovedIsLostAgainOneBodyIsTriedNowAndThen) {
  std::vector<ObjectPtr> bodies;
  for (int i = 0; i < 3; ++i) bodies.push_back(write_new(std::to_string(i), 5000));
  run();
  on_call = [](const VolumeCall& each) { return Fault{.sys_errno = each.kind == VolumeCall::Kind::kSync && each.path.ends_with(".pack") ? EIO : 0}; };
  EXPECT_FALSE(extents.sync_all());
  int rounds = 0;
  const auto drain_and_sync = [&] {
    ++rounds;
    run();
    EXPECT_FALSE(extents.sync_all());
  };
  relocator.rescue(drain_and_sync);
  EXPECT_TRUE(relocator.is_in_vain());
  EXPECT_EQ(rounds, 1);
  relocator.rescue(drain_and_sync);
  EXPECT_EQ(rounds, 1) << "a pause";
  clock.advance_ns(6 * kSecondNs);
  on_call = nullptr;
  relocator.rescue([&] {
    ++rounds;
    run();
    EXPECT_TRUE(extents.sync_all());
  });
  EXPECT_EQ(rounds, 3) << "one body, then the others";
  EXPECT_FALSE(relocator.is_in_vain());
  for (const ObjectPtr& body : bodies) EXPECT_FALSE(extents.is_lost(journaled(body).place.extent));
}

TEST_F(LanesTest, WithTheirThreadsEachOfManyCallsIsAnsweredAndEverythingIsJournaled) {
  constexpr size_t kClients = 3, kEach = 30;
  ASSERT_TRUE(options.set("flush_interval_ms", "1", {}));
  std::vector<std::vector<ObjectPtr>> bodies(kClients);
  for (size_t client = 0; client < kClients; ++client)  // before the threads: the index of this test is for one
    for (size_t i = 0; i < kEach; ++i) bodies[client].push_back(make(std::to_string(client) + "-" + std::to_string(i)));
  bulk.start();
  urgent.start();
  committer->start();
  std::vector<std::thread> clients;
  for (size_t client = 0; client < kClients; ++client)
    clients.emplace_back([&, client] {
      for (size_t i = 0; i < kEach; ++i) {
        write_at(bodies[client][i], 0, bytes_of(5000, i));
        if (i % 3 != 0) continue;
        std::promise<Status> done;
        urgent.make_durable(bodies[client][i], i % 2 == 0, [&](Status status) { done.set_value(std::move(status)); });
        EXPECT_TRUE(done.get_future().get());
      }
    });
  for (std::thread& client : clients) client.join();
  std::promise<Status> drained;
  bulk.drain(/*sync=*/true, [&](Status status) { drained.set_value(std::move(status)); });
  EXPECT_TRUE(drained.get_future().get());
  bulk.stop();
  urgent.stop();
  committer->stop();
  for (const auto& mine : bodies)
    for (size_t i = 0; i < kEach; ++i) EXPECT_TRUE(is_journaled(mine[i]) && holds(mine[i], bytes_of(5000, i)));
}

}  // namespace lanes_test
}  // namespace kvcachefs

// Bodies read into RAM from a volume in memory, without a store.
#include "store/load/loader.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <future>
#include <thread>

#include "store/load/testing/load_fixture.h"

namespace kvcachefs {
namespace loader_test {

class LoaderTest : public LoadFixture {
 protected:
  std::string path_of(ObjectId id) { return extents.path(object(id)->base.place.extent, PlaceKind::kSolo); }
  bool is_named(ObjectId id) { return tree.read().find_name(kRootId, "body-" + std::to_string(id.value))->has_value(); }
  void expect_unreadable(ObjectId id) {
    Answer answer;
    load(object(id), answer);
    while (work.run()) {
    }
    EXPECT_EQ(answer.count, 1);
    EXPECT_FALSE(answer.is_good());
  }
};

TEST_F(LoaderTest, ABodyIsReadVerifiedAndPlacedAndItsReaderIsCalledOnce) {
  const ObjectPtr body = object(put_body(5 * kUnitBytes + 100));
  Answer answer;
  load(body, answer);
  EXPECT_TRUE(answer.is_good());
  EXPECT_TRUE(is_right_in_ram(body));
  EXPECT_EQ(reads.size(), 2u) << "four units at a time";
  EXPECT_EQ(loader.loading_bytes(), 0u);
  Answer again;
  load(body, again);
  EXPECT_TRUE(again.is_good());
  EXPECT_EQ(reads.size(), 2u) << "nothing is missing";
}

TEST_F(LoaderTest, OnlyTheWantedUnitsAreHeldAndThoseBehindAreReadAhead) {
  const ObjectPtr body = object(put_body(4 * kUnitBytes));
  auto pin = std::make_shared<WantedUnits>();
  Answer answer;
  loader.load(body, {0, 1, 3}, MemoryFor::kReader, pin, into(answer));
  EXPECT_TRUE(answer.is_good());
  {
    const auto lock = body->lock();
    EXPECT_TRUE(body->is_wanted(0));
    EXPECT_FALSE(body->is_wanted(1));
    EXPECT_FALSE(body->needs_load(2));
    EXPECT_TRUE(body->needs_load(3));
  }
  pin->release();
}

TEST_F(LoaderTest, NeighboursOfAPackComeWithOneRead) {
  LoadJobs jobs;
  std::vector<ObjectPtr> bodies;
  auto waiter = std::make_shared<LoadWaiter>();
  Answer answer;
  waiter->done = into(answer);
  for (ObjectId id : put_bodies(PlaceKind::kPacked, {5000, 70'000, 4096})) bodies.push_back(object(id));
  for (const size_t each : {size_t{2}, size_t{0}, size_t{1}}) {  // as different readers asked for them
    LoadMemory memory;
    while (!loader.plan(bodies[each], all_of(bodies[each]), memory, waiter, false, jobs)) ASSERT_TRUE(loader.get_memory(memory));
  }
  EXPECT_GT(loader.loading_bytes(), 0u);
  loader.submit(std::move(jobs));
  EXPECT_EQ(answer.count, 0) << "the caller that set it up still counts";
  waiter->finish_one({});
  EXPECT_TRUE(answer.is_good());
  EXPECT_EQ(reads.size(), 1u);
  for (const ObjectPtr& body : bodies) EXPECT_TRUE(is_right_in_ram(body));
}

TEST_F(LoaderTest, OneBadPlaceSpoilsOnlyTheBodyThatLiesThere) {
  const std::vector<ObjectId> ids = put_bodies(PlaceKind::kPacked, {5000, 5000});
  const uint64_t bad = index.objects.at(ids[1]).body.place.offset;
  on_read = [&](const VolumeCall& call) { return Fault{.sys_errno = call.offset + call.length > bad ? EIO : 0}; };
  LoadJobs jobs;
  std::vector<Answer> answers(2);
  for (size_t i = 0; i < 2; ++i) {
    auto waiter = std::make_shared<LoadWaiter>();
    waiter->done = into(answers[i]);
    LoadMemory memory;
    while (!loader.plan(object(ids[i]), {0, 1, 1}, memory, waiter, true, jobs)) ASSERT_TRUE(loader.get_memory(memory));
    waiter->finish_one({});
  }
  loader.submit(std::move(jobs));
  EXPECT_TRUE(answers[0].is_good());
  EXPECT_TRUE(answers[1].is_error(Code::kIo));
  EXPECT_EQ(counters.errors_volume_read, 1u);
  EXPECT_TRUE(quarantined().empty());
}

TEST_F(LoaderTest, BytesThatDoNotMatchTwiceGoIntoQuarantine) {
  const ObjectId id = put_body(kUnitBytes + 5000);
  const ObjectPtr body = object(id);
  flip(id, kUnitBytes + 17);
  Answer answer;
  load(body, answer);
  EXPECT_EQ(answer.count, 0) << "they are looked at again first";
  while (work.run()) {
  }
  EXPECT_TRUE(answer.is_error(Code::kCorrupt));
  EXPECT_EQ(counters.errors_checksum, 1u);
  EXPECT_TRUE(tree.has_quarantined());
  EXPECT_EQ(commits.take().size(), 1u) << "it is journaled";
  EXPECT_EQ(*tree.read().find_name(kRootId, "body-" + std::to_string(id.value)), std::nullopt);
}

// Its node has given the space back, for it does not know of a reader that was silent for too long: no damage.
TEST_F(LoaderTest, OfAFileThatAnotherNodeReplacedBytesThatAreGoneAreNoDamage) {
  const ObjectId id = put_body(5000), solo = put_body(5000, PlaceKind::kSolo);
  flip(id, 17);
  ASSERT_TRUE(volume->remove_file(path_of(solo)));
  for (const ObjectId each : {id, solo}) {
    const auto body = std::make_shared<Object>(ObjectId::make(1, 1, each.number()), index.objects.at(each).attributes);
    body->base = index.objects.at(each).body;
    body->size_bytes = body->base_valid_bytes = body->base.size_bytes;
    body->nlink = 1;
    body->outdated = ObjectId{77};
    Answer answer;
    load(body, answer);
    while (work.run()) {
    }
    EXPECT_TRUE(answer.is_error(Code::kIo));
  }
  EXPECT_EQ(counters.errors_checksum, 0u);
  EXPECT_EQ(counters.errors_volume_read, 0u);
  EXPECT_FALSE(tree.has_quarantined());
}

TEST_F(LoaderTest, ABodyWhoseExtentWasRemovedIsAbsentOnThisMount) {
  const ObjectId id = put_body(5000, PlaceKind::kSolo);
  ASSERT_TRUE(volume->remove_file(path_of(id)));
  expect_unreadable(id);
  EXPECT_TRUE(tree.has_quarantined());
  EXPECT_FALSE(is_named(id));
  EXPECT_TRUE(commits.take().empty()) << "it may be put back";
}

TEST_F(LoaderTest, ABodyWhoseDirectoryIsMissingIsKept) {
  const ObjectId id = put_body(5000, PlaceKind::kSolo);
  const std::string path = path_of(id);
  ASSERT_TRUE(volume->remove_file(path));
  ASSERT_TRUE(volume->remove_directory(path.substr(0, path.rfind('/'))));
  expect_unreadable(id);
  EXPECT_FALSE(tree.has_quarantined()) << "the directory may be away for a moment";
  EXPECT_TRUE(is_named(id));
  EXPECT_TRUE(commits.take().empty());
}

TEST_F(LoaderTest, BytesThatMatchAtTheSecondLookAreServed) {
  const ObjectId id = put_body(5000);
  const ObjectPtr body = object(id);
  flip(id, 17);
  Answer answer;
  load(body, answer);
  flip(id, 17);  // a cache lied
  while (work.run()) {
  }
  EXPECT_TRUE(answer.is_good());
  EXPECT_TRUE(is_right_in_ram(body));
  EXPECT_FALSE(tree.has_quarantined());
  EXPECT_EQ(counters.errors_checksum, 0u);
}

TEST_F(LoaderTest, ADeadDescriptorIsReplaced) {
  const ObjectId id = put_body(5000);
  const ObjectPtr body = object(id);
  on_read = [&](const VolumeCall&) { return Fault{.sys_errno = reads.size() == 1 ? ESTALE : 0}; };
  Answer answer;
  load(body, answer);
  while (work.run()) {
  }
  EXPECT_TRUE(answer.is_good());
  EXPECT_TRUE(is_right_in_ram(body));
}

TEST_F(LoaderTest, WhatWasReplacedMeanwhileIsNotPutInPlaceAndItsReaderLooksAgain) {
  const ObjectPtr body = object(put_body(5000));
  on_read = [&](const VolumeCall&) {
    const auto lock = body->lock();
    ++body->base.version;
    return Fault{};
  };
  Answer answer;
  load(body, answer);
  EXPECT_TRUE(answer.is_good());
  const auto lock = body->lock();
  EXPECT_TRUE(body->needs_load(0));
  EXPECT_TRUE(body->loading.empty());
}

TEST_F(LoaderTest, NothingIsLoadedIntoABodyThatWasForgotten) {
  const ObjectId id = put_body(5000);
  const ObjectPtr body = object(id);
  tree.forget_when_idle(body);
  ASSERT_EQ(tree.find(id), nullptr);
  Answer answer;
  load(body, answer);
  EXPECT_TRUE(answer.is_error(Code::kStale));
  EXPECT_TRUE(reads.empty());
}

TEST_F(LoaderTest, WithoutMemoryALoadWaitsAndHoldsNothing) {
  const ObjectPtr body = object(put_body(4 * kUnitBytes));
  Reservation all = pool.try_reserve(pool.limit_bytes() - kSealingBytes - kUnitBytes);
  ASSERT_GT(all.bytes(), 0u);
  const uint64_t used = pool.used_bytes();
  Answer answer;
  load(body, answer);
  EXPECT_EQ(answer.count, 0);
  EXPECT_EQ(pool.used_bytes(), used);
  EXPECT_FALSE(resumer.resume());
  all = Reservation();
  EXPECT_TRUE(resumer.resume());
  EXPECT_TRUE(answer.is_good());
  EXPECT_TRUE(is_right_in_ram(body));
}

TEST_F(LoaderTest, CleanBodiesMakeRoomForOthers) {
  std::vector<ObjectPtr> bodies;
  for (int i = 0; i < 6; ++i) bodies.push_back(object(put_body(4 * kMiB, PlaceKind::kSolo)));  // more than the memory
  for (const ObjectPtr& body : bodies) {
    Answer answer;
    load(body, answer);
    EXPECT_TRUE(answer.is_good());
    EXPECT_TRUE(is_right_in_ram(body));
  }
  EXPECT_LE(pool.used_bytes(), pool.limit_bytes());
  EXPECT_FALSE(is_right_in_ram(bodies.front()));
}

TEST_F(LoaderTest, AThreadThatMustNotBlockLeavesTheOpeningToAnother) {
  const ObjectId id = put_body(5000);
  const ObjectPtr body = object(id);
  extents.close_cached(index.objects.at(id).body.place.extent);
  opener.start();
  std::thread::id opened_by = std::this_thread::get_id();
  on_open = [&] { opened_by = std::this_thread::get_id(); };
  std::promise<void> done;
  {
    const MustNotBlock others_wait;
    loader.load(body, all_of(body), MemoryFor::kReader, std::make_shared<WantedUnits>(), [&](Status status) {
      EXPECT_TRUE(status);
      done.set_value();
    });
  }
  done.get_future().get();
  opener.stop();
  EXPECT_NE(opened_by, std::this_thread::get_id());
  EXPECT_TRUE(is_right_in_ram(body));
}

// Keeps what came until it is told to have it taken in.
class LateSink final : public ArrivalSink {
 public:
  explicit LateSink(Loader& loader) : loader_(loader) { loader.set_arrivals(*this); }
  void arrived(std::unique_ptr<ArrivedRead> read) override { reads.push_back(std::move(read)); }
  void ahead_ended(uint64_t bytes) override { ended_bytes += bytes; }
  void take_in_one() {
    loader_.take_in_next(*reads.front());
    if (reads.front()->all_taken_in()) reads.erase(reads.begin());
  }
  std::vector<std::unique_ptr<ArrivedRead>> reads;
  uint64_t ended_bytes = 0;

 private:
  Loader& loader_;
};

TEST_F(LoaderTest, BodiesOfAReadAreTakenInOneByOneAndTheOwnerOfReadsAheadIsTold) {
  LateSink sink(loader);
  LoadJobs jobs;
  std::vector<Answer> answers(2);
  const std::vector<ObjectId> ids = put_bodies(PlaceKind::kPacked, {5000, 5000});
  for (size_t i = 0; i < 2; ++i) {
    auto waiter = std::make_shared<LoadWaiter>();
    waiter->done = into(answers[i]);
    LoadMemory memory;
    memory.who = MemoryFor::kReadAhead;
    while (!loader.plan(object(ids[i]), {0, 1, 1}, memory, waiter, false, jobs)) ASSERT_TRUE(loader.get_memory(memory));
    jobs.back()->ahead = AheadBytes(sink, jobs.back()->memory_bytes());
    waiter->finish_one({});
  }
  loader.submit(std::move(jobs));
  ASSERT_EQ(sink.reads.size(), 1u);
  sink.take_in_one();
  EXPECT_TRUE(answers[0].is_good());
  EXPECT_EQ(answers[1].count, 0);
  EXPECT_EQ(sink.ended_bytes, 8192u);
  sink.take_in_one();
  EXPECT_TRUE(answers[1].is_good());
  EXPECT_EQ(sink.ended_bytes, 16384u);
  EXPECT_TRUE(sink.reads.empty());
}

}  // namespace loader_test
}  // namespace kvcachefs

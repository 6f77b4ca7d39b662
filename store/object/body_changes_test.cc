// Tests the bookkeeping of a change of a body: times, the queue of dirty objects, and space of the volume.
#include "store/object/body_changes.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "store/base/units.h"
#include "store/extent/extents.h"
#include "store/object/snapshot.h"

namespace kvcachefs {
namespace body_changes_test {

class BodyChangesTest : public testing::Test {
 protected:
  BodyChangesTest() { space.configure(kMiB, 0); }

  static ObjectPtr make() {
    Attributes attributes;
    attributes.mode = S_IFREG | 0644;
    return std::make_shared<Object>(ObjectId{7}, attributes);
  }
  void write(uint64_t size_bytes) {
    const auto lock = object->lock();
    ASSERT_TRUE(changes.reserve_space(*object, size_bytes));
    object->size_bytes = size_bytes;
    changes.content_changed(object);
  }
  // The body is journaled as it is.
  void journal() {
    const auto lock = object->lock();
    const Snapshot snapshot = object->begin_seal(object);
    object->base.size_bytes = object->base_valid_bytes = snapshot.size_bytes;
    object->base.place = {PlaceKind::kSolo, {1, 1}, 0, snapshot.size_bytes};
    object->sealed_version = snapshot.content_version;
    object->durable = true;
    space.release(std::exchange(object->sealing_reserved_bytes, 0));
    object->sealing = object->in_dirty_queue = false;
    static_cast<void>(dirty.take_content());
  }
  void fail_a_write() {
    const auto lock = object->lock();
    object->note_failed_write({Code::kNoSpace, 0, "full"}, 4096, 8192);
  }

  ManualClock clock{1'000'000'000};
  Space space;
  DeadSpace dead{space};
  RecordSpace records{space, 64 * kMiB};
  Wakeup wakeup;
  WorkQueue work{wakeup};
  Extents extents{nullptr, {}, 1};
  Discards discards{{space, dead, work, extents}};
  DirtyQueue dirty;
  LiveOptions options{StoreOptions{}};
  BodyChanges changes{{clock, space, records, dirty, discards, options}};
  ObjectPtr object = make();
};

TEST_F(BodyChangesTest, AChangeOfBytesQueuesTheBodyOnceAndSetsItsTimes) {
  clock.advance_ns(5);
  write(5000);
  write(6000);
  EXPECT_EQ(dirty.content().size(), 1u);
  EXPECT_EQ(object->attributes.mtime_ns, 1'000'000'005);
  EXPECT_EQ(object->attributes.ctime_ns, 1'000'000'005);
  EXPECT_EQ(object->last_write_ns, 1'000'000'005);
  EXPECT_EQ(object->content_version, 2u);
  EXPECT_FALSE(dirty.has_attributes()) << "they go with the body";
}

TEST_F(BodyChangesTest, AChangeOfTimesAloneIsARecordOfAttributes) {
  const auto lock = object->lock();
  changes.note_modified(object);
  EXPECT_FALSE(object->content_dirty());
  EXPECT_TRUE(dirty.has_attributes());
}

TEST_F(BodyChangesTest, SpaceIsReservedInWholeBlocksAndOnlyWhatIsLacking) {
  const auto lock = object->lock();
  EXPECT_TRUE(changes.reserve_space(*object, 5000));
  EXPECT_EQ(space.reserved_bytes(), 8192u);
  EXPECT_TRUE(changes.reserve_space(*object, 8000));
  EXPECT_EQ(space.reserved_bytes(), 8192u);
  EXPECT_FALSE(changes.reserve_space(*object, 2 * kMiB));
  EXPECT_EQ(space.reserved_bytes(), 8192u) << "all of it or nothing";
}

TEST_F(BodyChangesTest, WhatFallocatePromisedIsKeptBesideASealAndServesTheNextWrite) {
  write(5000);
  const auto lock = object->lock();
  object->write_handles = 1;
  object->note_allocated(0, 16384);
  EXPECT_TRUE(changes.keep_room(*object));
  EXPECT_EQ(space.reserved_bytes(), 8192u + 16384u);
  const Snapshot snapshot = object->begin_seal(object);
  EXPECT_TRUE(changes.reserve_space(*object, 12000));
  EXPECT_EQ(space.reserved_bytes(), 8192u + 16384u) << "of what was kept";
  EXPECT_EQ(object->kept_bytes, 16384u - 12288u);
  changes.give_room_up(*object);
  EXPECT_EQ(space.reserved_bytes(), 8192u + 12288u);
}

TEST_F(BodyChangesTest, ASealThatCameToNothingKeepsTheLargerReservationAndIsTriedAgain) {
  int ended = 0;
  dirty.set_seal_ended([&] { ++ended; });
  write(5000);
  {
    const auto lock = object->lock();
    static_cast<void>(object->begin_seal(object));
    object->in_dirty_queue = false;
    static_cast<void>(dirty.take_content());
    EXPECT_TRUE(changes.reserve_space(*object, 3000));
  }
  EXPECT_EQ(space.reserved_bytes(), 8192u + 4096u);
  changes.abandon_seal(object);
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(object->reserved_bytes, 8192u);
  EXPECT_EQ(object->sealing_reserved_bytes, 0u);
  EXPECT_EQ(space.reserved_bytes(), 8192u);
  EXPECT_FALSE(object->sealing);
  EXPECT_EQ(dirty.content().size(), 1u);
}

TEST_F(BodyChangesTest, ABodyThatDidNotFitIsTheJournaledOneAgainWhenItsLastWriterIsDone) {
  write(5000);
  journal();
  object->written_anew = false;
  write(8000);
  fail_a_write();
  const auto lock = object->lock();
  changes.undo_what_did_not_fit(object, /*last_writer=*/false);
  EXPECT_EQ(object->size_bytes, 8000u) << "others may write still";
  changes.undo_what_did_not_fit(object, /*last_writer=*/true);
  EXPECT_EQ(object->size_bytes, 5000u);
  EXPECT_EQ(object->base_valid_bytes, 5000u);
  EXPECT_FALSE(object->content_dirty());
  EXPECT_EQ(space.reserved_bytes(), 0u);
  EXPECT_TRUE(object->write_error->undone) << "its rename fails";
}

TEST_F(BodyChangesTest, OneThatWasNeverJournaledIsEmptied) {
  write(5000);
  fail_a_write();
  const auto lock = object->lock();
  changes.undo_what_did_not_fit(object, /*last_writer=*/false);
  EXPECT_EQ(object->size_bytes, 0u);
  EXPECT_TRUE(object->content_dirty());
  EXPECT_EQ(space.reserved_bytes(), 0u);
}

TEST_F(BodyChangesTest, ItIsUndoneAtTheEndOfASealIfItsWriterClosedMeanwhile) {
  write(5000);
  const auto lock = object->lock();
  static_cast<void>(object->begin_seal(object));
  object->note_failed_write({Code::kNoSpace, 0, "full"}, 4096, 8192);
  changes.undo_what_did_not_fit(object, /*last_writer=*/true);
  EXPECT_EQ(object->size_bytes, 5000u) << "it is being written";
  changes.end_seal(object);
  EXPECT_EQ(object->size_bytes, 0u);
}

}  // namespace body_changes_test
}  // namespace kvcachefs

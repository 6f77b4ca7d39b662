// One body in RAM, with a pool and nothing else of a store.
#include "store/object/object.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "store/base/checksum.h"
#include "store/object/data_and_holes.h"
#include "store/object/snapshot.h"
#include "store/object/wanted_units.h"

namespace kvcachefs {
namespace object_test {

class ObjectTest : public testing::Test {
 protected:
  static Attributes regular() {
    Attributes attributes;
    attributes.mode = 0100644;
    return attributes;
  }
  template <class Call>
  auto locked(Call call) {
    const auto lock = object->lock();
    return call();
  }
  // As a write does it: memory first, then the lock.
  void write(uint64_t offset, std::string_view text) {
    const uint64_t end = offset + text.size();
    const auto lock = object->lock();
    for (size_t index = unit_of(offset); index <= unit_of(end - 1); ++index) {
      const uint64_t start = index * kUnitBytes, begin = std::max(offset, start) - start, stop = std::min(end - start, kUnitBytes);
      Reservation memory = pool.try_reserve(std::max<uint64_t>(object->memory_for_piece(index, begin, stop), 1));
      object->place_piece(index, begin, stop, reinterpret_cast<const std::byte*>(text.data()) + (start + begin - offset), memory);
    }
    object->size_bytes = std::max(object->size_bytes, end);
    ++object->content_version;
  }
  std::string read(uint64_t offset, size_t length) {
    ReadPlan plan = locked([&] { return object->plan_read(offset, length); });
    EXPECT_FALSE(plan.lacks_units);
    return text_of(plan.reply);
  }
  static std::string text_of(const ReadReply& reply) {
    std::string text;
    for (const iovec& piece : reply.pieces) text.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    return text;
  }
  // The body is on the volume as it is, and clean.
  void seal() {
    const auto lock = object->lock();
    const Snapshot snapshot = object->begin_seal(object);
    object->base.place = {PlaceKind::kPacked, {}, 0, snapshot.size_bytes};
    object->base.size_bytes = object->base_valid_bytes = snapshot.size_bytes;
    object->sealed_version = snapshot.content_version;
    object->settle_units(snapshot);
    object->sealing = false;
  }

  MemoryPool pool{64 * kMiB};
  ObjectPtr object = std::make_shared<Object>(ObjectId{7}, regular());
};

TEST_F(ObjectTest, ReadsWhatWasWrittenHolesAsZerosAndNothingBehindTheEnd) {
  write(0, "begin");
  write(2 * kUnitBytes - 2, "over");
  EXPECT_EQ(read(0, 8), std::string("begin\0\0\0", 8));
  EXPECT_EQ(read(kUnitBytes, 4), std::string(4, '\0'));  // a unit without a block
  EXPECT_EQ(read(2 * kUnitBytes - 2, 100), "over");
  EXPECT_EQ(read(2 * kUnitBytes + 2, 100), "");
  EXPECT_EQ(object->read_bytes, 8u + 4 + 4);
}

TEST_F(ObjectTest, AWriteLeavesWhatASnapshotHolds) {
  write(0, "first");
  const Snapshot snapshot = locked([&] { return object->begin_seal(object); });
  EXPECT_TRUE(locked([&] { return object->clones_a_block(0, 0, 5); }));
  write(0, "other");
  EXPECT_EQ(std::memcmp(snapshot.units[0].block->data(), "first", 5), 0);
  EXPECT_EQ(read(0, 5), "other");
}

TEST_F(ObjectTest, AReadReplyStaysValidWhileTheBodyIsWrittenAnewAndCut) {
  write(0, std::string(1000, 'a'));
  const ReadPlan plan = locked([&] { return object->plan_read(0, 1000); });
  write(0, std::string(1000, 'b'));
  Reservation memory = pool.try_reserve(kUnitBytes);
  locked([&] {
    object->zero_tail(10, memory);
    object->size_bytes = 10;
    return 0;
  });
  EXPECT_EQ(text_of(plan.reply), std::string(1000, 'a'));
  EXPECT_EQ(read(0, 100), std::string(10, 'b'));
}

TEST_F(ObjectTest, ACutUnitReadsAsZerosWhenTheBodyGrowsAgain) {
  write(0, "0123456789");
  Reservation memory = pool.try_reserve(kUnitBytes);
  locked([&] {
    object->zero_tail(4, memory);
    object->size_bytes = 8;
    return 0;
  });
  EXPECT_EQ(read(0, 8), std::string("0123\0\0\0\0", 8));
}

TEST_F(ObjectTest, CleanBlocksGoDirtyAndWantedOnesStay) {
  write(0, std::string(3 * kUnitBytes, 'x'));
  EXPECT_TRUE(locked([&] { return object->drop_clean(); }).blocks.empty());  // all dirty
  seal();
  write(2 * kUnitBytes, "newer");  // that unit is dirty again
  {
    WantedUnits pin;
    locked([&] {
      pin.hold(object, 0, 1);
      return 0;
    });
    DroppedBlocks dropped = locked([&] { return object->drop_clean(); });
    EXPECT_EQ(dropped.blocks.size(), 1u);
    EXPECT_EQ(dropped.bytes, kUnitBytes);
    EXPECT_TRUE(dropped.keeps_some);
  }
  DroppedBlocks dropped = locked([&] { return object->drop_clean(); });
  EXPECT_EQ(dropped.blocks.size(), 1u);
  EXPECT_FALSE(dropped.keeps_some);
  EXPECT_TRUE(locked([&] { return object->needs_load(0) && object->needs_load(1) && !object->needs_load(2); }));
  EXPECT_TRUE(locked([&] { return object->plan_read(0, 10); }).lacks_units);
}

TEST_F(ObjectTest, ALoadedUnitIsZerosBehindWhatTruncationLeft) {
  write(0, std::string(1000, 'x'));
  seal();
  locked([&] { return object->drop_clean(); });
  locked([&] {
    object->base_valid_bytes = 600;  // cut, and grown again
    Reservation memory = pool.try_reserve(kUnitBytes);
    BlockPtr block = memory.make_block(1000);
    std::memset(block->data(), 'x', block->capacity_bytes());
    object->place_loaded(0, std::move(block), 1000, false);
    return 0;
  });
  EXPECT_EQ(read(0, 1000), std::string(600, 'x') + std::string(400, '\0'));
}

TEST_F(ObjectTest, AUnitThatIsWrittenWhileItIsSpilledStays) {
  write(0, std::string(2 * kUnitBytes, 'x'));
  size_t next = 0;
  std::vector<SpillPiece> pieces = locked([&] { return object->spill_pieces(next, 16); });
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(next, 2u);
  write(kUnitBytes, "newer");
  const std::vector<BlockPtr> dropped = locked([&] { return object->settle_spilled(pieces); });
  EXPECT_EQ(dropped.size(), 1u);
  EXPECT_TRUE(object->units[0].spilled);
  EXPECT_FALSE(object->units[1].spilled);
  EXPECT_EQ(read(kUnitBytes, 5), "newer");
  EXPECT_TRUE(locked([&] { return object->needs_load(0); }));
}

TEST_F(ObjectTest, AFailedWriteIsOverOnceItsBytesAreWritten) {
  const Error full{Code::kNoSpace, 0, "full"};
  object->size_bytes = 100;
  object->note_failed_write(full, 100, 200);
  EXPECT_TRUE(object->lacks_a_write());
  EXPECT_FALSE(object->sealable());
  object->note_written(100, 150);
  EXPECT_TRUE(object->lacks_a_write());
  object->note_written(150, 200);
  EXPECT_FALSE(object->lacks_a_write());
  // Bytes that the kernel cuts after the failure are missing like the rest; a caller that empties the body starts anew.
  object->note_failed_write(full, 100, 200);
  object->note_cut(50, Resize::kAfterFailedWrite);
  EXPECT_EQ(object->write_error->from, 50u);
  object->note_cut(0, Resize::kExactly);
  EXPECT_FALSE(object->lacks_a_write());
}

TEST_F(ObjectTest, FindsDataAndHolesAndSaysWhatItHasToReadFirst) {
  write(0, std::string(100, 'x'));
  write(kUnitBytes + 3 * kBlockBytes, std::string(100, 'x'));
  write(3 * kUnitBytes - 1, std::string(1, 'x'));
  const auto find = [&](SeekFor what, uint64_t from) { return locked([&] { return DataAndHoles(*object, what, false).find(from); }); };
  EXPECT_EQ(find(SeekFor::kData, 0), 0u);
  EXPECT_EQ(find(SeekFor::kHole, 0), kBlockBytes);
  EXPECT_EQ(find(SeekFor::kData, kBlockBytes), kUnitBytes + 3 * kBlockBytes);
  EXPECT_EQ(find(SeekFor::kHole, kUnitBytes + 3 * kBlockBytes), kUnitBytes + 4 * kBlockBytes);
  EXPECT_EQ(find(SeekFor::kData, kUnitBytes + 4 * kBlockBytes), 3 * kUnitBytes - kBlockBytes);
  seal();
  locked([&] { return object->drop_clean(); });
  object->base.checksums = {1, 1, 1};  // none of them that of zeros
  const auto lock = object->lock();
  DataAndHoles search(*object, SeekFor::kHole, false);
  EXPECT_FALSE(search.find(0));
  EXPECT_EQ(search.unread(), 0u);
  EXPECT_EQ(DataAndHoles(*object, SeekFor::kData, true).find(0), 0u);
}

}  // namespace object_test
}  // namespace kvcachefs

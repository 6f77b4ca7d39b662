// What room there is, and what has happened to it meanwhile: others who fill the backing file system and leave it again, raw
// files that are removed while they are open, and what grows without bytes.
#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <gtest/gtest.h>

#include "store/base/log.h"
#include "tests/fault/rig.h"

namespace kvcachefs::testing {
namespace room_test {

constexpr uint64_t kDiskBytes = 256 * kMiB;
constexpr int64_t kUpkeepNs = 6'000'000'000;

class Room : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log::set_level(tracing() ? log::Level::kInfo : log::Level::kOff); }
  void SetUp() override {
    const Status mounted = rig_.mount();
    ASSERT_TRUE(mounted) << mounted.error().message;
  }
  static StoreOptions options() {
    StoreOptions options = small_options(Durability::kNone);
    options.raw_above_bytes = kMiB;
    options.capacity_percent = 100;
    return options;
  }
  static Code code(const Status& status) { return status ? Code::kNoData : status.error().code; }
  template <class T>
  static Code code(const Result<T>& result) {
    return result ? Code::kNoData : result.error().code;
  }
  // Others take all of the backing file system but `left_bytes`, and leave it again.
  void others_fill(uint64_t left_bytes) {
    auto file = disk_->open("others", {.create_exclusive = true});
    ASSERT_TRUE(file);
    ASSERT_TRUE((*file)->allocate(0, disk_->space()->available_bytes - left_bytes));
  }
  void others_leave() { ASSERT_TRUE(disk_->remove_file("others")); }
  Code put(const std::string& name, uint64_t bytes) {
    auto handle = rig_.create(name);
    if (!handle) return handle.error().code;
    return code(rig_.write(*handle, 0, std::string(bytes, 'x')));
  }
  size_t raw_files() const {
    const auto files = disk_->all_files();
    return static_cast<size_t>(std::ranges::count_if(files, [](const std::string& path) { return path.ends_with(".raw"); }));
  }

  std::shared_ptr<SimVolume> disk_ = make_sim_volume({.capacity_bytes = kDiskBytes});
  Rig rig_{options(), disk_};
};

TEST_F(Room, ThatOthersTookAndLeftIsThereAgain) {
  others_fill(kMiB);
  for (int i = 0; i < 3; ++i) {
    rig_.settle();
    EXPECT_EQ(put("a", 1), Code::kNoSpace);
  }
  EXPECT_EQ(rig_.store().space().blocks_free, 0u);
  others_leave();
  rig_.settle();
  EXPECT_GT(rig_.store().space().blocks_free, 0u);
  EXPECT_EQ(put("a", kMiB), Code::kNoData);
}

TEST_F(Room, ThatOthersTookMeanwhileIsNotPromised) {
  rig_.pass_time(kUpkeepNs);
  others_fill(kDiskBytes / 10);
  rig_.settle();  // nothing else happens here
  EXPECT_EQ(put("a", 32 * kMiB), Code::kNoSpace);
}

TEST_F(Room, ThatWasKeptFreeIsThereAsSoonAsTheOptionIsLowered) {
  others_fill(kDiskBytes / 50);
  rig_.settle();
  ASSERT_EQ(put("a", 1), Code::kNoSpace);
  ASSERT_TRUE(rig_.store().set_option("keep_free", "4K"));
  EXPECT_GT(rig_.store().space().blocks_free, 0u);
  EXPECT_EQ(put("a", 1), Code::kNoData);
}

TEST_F(Room, OfARawFileThatIsRemovedWhileItIsOpenIsTakenUntilItIsClosed) {
  constexpr uint64_t kBytes = 8 * kMiB;
  auto handle = rig_.create("pool");
  ASSERT_TRUE(handle);
  ASSERT_TRUE(rig_.truncate("pool", kBytes));
  ASSERT_TRUE(rig_.write(*handle, 0, std::string(kBytes, 'x')));
  ASSERT_TRUE(rig_.drain());
  rig_.pass_time(kUpkeepNs);
  ASSERT_GE(rig_.store().status().physical_bytes, kBytes);
  ASSERT_TRUE(rig_.unlink("pool"));
  rig_.pass_time(kUpkeepNs);
  rig_.pass_time(kUpkeepNs);
  ASSERT_EQ(raw_files(), 1u);
  EXPECT_GE(rig_.store().status().physical_bytes, kBytes);
  handle->reset();
  rig_.pass_time(kUpkeepNs);
  rig_.pass_time(kUpkeepNs);
  EXPECT_EQ(raw_files(), 0u);
  EXPECT_LT(rig_.store().status().physical_bytes, kBytes);
}

TEST_F(Room, IsAskedForByWhatMakesTheJournalGrow) {
  ASSERT_EQ(put("a", 1), Code::kNoData);
  Store& store = rig_.store();
  const ObjectId id = store.lookup(kRootId, "a", {})->id;
  const auto set = [&](const std::string& name, size_t bytes) {
    return code(store.set_xattr(id, name, std::string(bytes, 'v'), Store::XattrMode::kAny));
  };
  const auto link = [&](const std::string& name) {
    Code answer = Code::kCanceled;
    store.link(id, kRootId, name, {}, [&](const Result<Stat>& stat) { answer = code(stat); });
    rig_.settle();
    return answer;
  };
  ASSERT_EQ(set("user.a", 100), Code::kNoData);
  others_fill(kMiB);
  rig_.settle();
  EXPECT_EQ(set("user.b", 1), Code::kNoSpace);
  EXPECT_EQ(set("user.a", 101), Code::kNoSpace);
  EXPECT_EQ(set("user.a", 99), Code::kNoData) << "does not grow";
  EXPECT_EQ(link("b"), Code::kNoSpace);
  EXPECT_TRUE(rig_.rename("a", "c")) << "takes as much as it gives";
  EXPECT_TRUE(store.remove_xattr(id, "user.a"));
  others_leave();
  rig_.settle();
  EXPECT_EQ(set("user.b", 1), Code::kNoData);
  EXPECT_EQ(link("b"), Code::kNoData);
}

TEST_F(Room, IsNotTakenByWhatCannotBeWritten) {
  auto handle = rig_.create("large");
  ASSERT_TRUE(handle);
  ASSERT_TRUE(rig_.write(*handle, 0, std::string(9 * kMiB, 'x')));
  ASSERT_TRUE(rig_.flush(*handle));
  others_fill(3 * kMiB);
  handle->reset();
  const auto free_bytes = [&] { return disk_->space()->available_bytes; };
  for (int i = 0; i < 20; ++i) rig_.pass_time(1'000'000'000);
  EXPECT_GE(rig_.errors(), 1u);
  EXPECT_GE(free_bytes(), 2 * kMiB) << "given back at once, though nothing can be synced";
  EXPECT_EQ(rig_.store().status().reclaimable_bytes, 0u);
  EXPECT_EQ(rig_.store().status().state, "degraded");
  others_leave();
  for (int i = 0; i < 3; ++i) rig_.pass_time(kUpkeepNs);
  EXPECT_TRUE(rig_.drain());
  EXPECT_EQ(rig_.store().status().objects_solo, 1u);
  EXPECT_EQ(rig_.store().status().state, "ok");
}

TEST_F(Room, ThatWasMissedIsNoTroubleOnceNothingWantsIt) {
  auto handle = rig_.create("large");
  ASSERT_TRUE(handle);
  ASSERT_TRUE(rig_.write(*handle, 0, std::string(9 * kMiB, 'x')));
  others_fill(3 * kMiB);
  ASSERT_TRUE(rig_.flush(*handle));
  handle->reset();
  rig_.pass_time(kUpkeepNs);
  ASSERT_EQ(rig_.store().status().state, "degraded");
  ASSERT_TRUE(rig_.unlink("large"));
  for (int i = 0; i < 3; ++i) rig_.pass_time(kUpkeepNs);
  EXPECT_EQ(rig_.store().status().state, "ok");
}

// No inode or descriptor is left for another file of the volume.
class NoFiles : public Room {
 protected:
  static constexpr uint64_t kLarge = 9 * kMiB;  // not packed as a rule
  void SetUp() override {
    rig_.set_hook([this](const VolumeCall& call) {
      const bool refused = call.kind == VolumeCall::Kind::kCreate && sys_errno_ != 0;
      refusals_ += refused ? 1 : 0;
      return Fault{.sys_errno = refused ? sys_errno_ : 0};
    });
    Room::SetUp();
    ASSERT_EQ(put("first", 64 * kKiB), Code::kNoData);
    ASSERT_TRUE(rig_.drain());
  }
  void stores_and_keeps() {
    const std::string body(kLarge, 'y');
    for (int i = 0; i < 4; ++i) {
      auto handle = rig_.create(fmt::format("large{}", i));
      ASSERT_TRUE(handle);
      ASSERT_TRUE(rig_.write(*handle, 0, body));
      ASSERT_TRUE(rig_.flush(*handle));
    }
    const Status drained = rig_.drain();
    EXPECT_TRUE(drained) << drained.error().message;
    EXPECT_EQ(rig_.store().status().state, "ok");
    sys_errno_ = 0;
    rig_.die();
    ASSERT_TRUE(rig_.mount());
    for (int i = 0; i < 4; ++i) {
      auto content = rig_.read(fmt::format("large{}", i));
      ASSERT_TRUE(content);
    }
  }
  int sys_errno_ = 0;
  uint64_t refusals_ = 0;
};

TEST_F(NoFiles, WhatWouldHaveAFileOfItsOwnIsPacked) {
  sys_errno_ = ENOSPC;
  stores_and_keeps();
}

TEST_F(NoFiles, ThoseOfTheProcessAreNotNeededEither) {
  sys_errno_ = EMFILE;
  stores_and_keeps();
}

// Nothing can be written at all: it is tried now and then, and writers hear of it.
TEST_F(NoFiles, TriesPause) {
  rig_.die();
  ASSERT_TRUE(rig_.mount());  // without a pack
  for (int i = 0; i < 50; ++i) ASSERT_EQ(put(fmt::format("small{}", i), 64 * kKiB), Code::kNoData);
  sys_errno_ = ENOSPC;
  refusals_ = 0;
  for (int i = 0; i < 600; ++i) rig_.pass_time(100'000'000);  // a minute
  EXPECT_GE(refusals_, 5u);
  EXPECT_LE(refusals_, 250u) << "not for each body, and not at each turn";
  EXPECT_EQ(rig_.store().status().state, "degraded");
  EXPECT_EQ(put("more", 64 * kKiB), Code::kNoSpace) << "what cannot be written is not accepted";
  sys_errno_ = 0;
  for (int i = 0; i < 60; ++i) rig_.pass_time(100'000'000);
  EXPECT_EQ(rig_.store().status().state, "ok");
  EXPECT_EQ(put("more", 64 * kKiB), Code::kNoData);
  EXPECT_TRUE(rig_.drain());
}

// What is left dirty is never tried: its writer was refused a part, or it has lost its name. The next writer tries.
TEST_F(NoFiles, WhatCannotBeTriedRefusesNobody) {
  rig_.die();
  ASSERT_TRUE(rig_.mount());  // without a pack
  ASSERT_EQ(put("goes", 64 * kKiB), Code::kNoData);
  auto unlinked = rig_.create("unlinked");
  ASSERT_TRUE(unlinked);
  ASSERT_TRUE(rig_.write(*unlinked, 0, std::string(64 * kKiB, 'u')));
  ASSERT_TRUE(rig_.unlink("unlinked"));
  sys_errno_ = ENOSPC;
  for (int i = 0; i < 50; ++i) rig_.pass_time(100'000'000);
  ASSERT_EQ(put("more", 64 * kKiB), Code::kNoSpace);
  ASSERT_TRUE(rig_.unlink("goes"));
  sys_errno_ = 0;
  for (int i = 0; i < 60; ++i) rig_.pass_time(100'000'000);
  EXPECT_EQ(put("again", 64 * kKiB), Code::kNoData);
  EXPECT_TRUE(rig_.drain());
}

// Raw files are sparse: sizing takes nothing, each write what it allocates.
class RawRoom : public Room {
 protected:
  static constexpr uint64_t kCapacity = 64 * kMiB, kPool = 48 * kMiB;
  static StoreOptions small_capacity() {
    StoreOptions options = Room::options();
    options.capacity_bytes = kCapacity;
    return options;
  }
  void SetUp() override {
    const Status mounted = small_.mount();
    ASSERT_TRUE(mounted) << mounted.error().message;
  }
  Rig::HandlePtr pool(const std::string& name) {
    auto handle = small_.create(name);
    EXPECT_TRUE(handle);
    EXPECT_TRUE(small_.truncate(name, kPool));
    return std::move(*handle);
  }
  uint64_t used_bytes() const { return kDiskBytes - disk_->space()->available_bytes; }
  // Until something is refused; the highest use of the disk is kept.
  uint64_t fill(const Rig::HandlePtr& handle, uint64_t step = kMiB) {
    for (uint64_t at = 0; at < kPool; at += step) {
      if (!small_.write(handle, at, std::string(kMiB, 'x'))) return at;
      most_ = std::max(most_, used_bytes());
    }
    return kPool;
  }
  Status allocate(const Rig::HandlePtr& handle, Store::AllocateMode mode, uint64_t offset, uint64_t length) {
    Status answer = fail(Code::kCanceled, "");
    small_.store().allocate(handle.get(), mode, offset, length, [&](Status status) { answer = std::move(status); });
    small_.settle();
    return answer;
  }

  uint64_t most_ = 0;
  Rig small_{small_capacity(), disk_};
};

TEST_F(RawRoom, IsSetAsideForWritesBelowTheEndOfTheFile) {
  auto first = pool("a"), second = pool("b");
  EXPECT_EQ(fill(first), kPool);
  EXPECT_LT(fill(second), kPool) << "two pools do not fit";
  EXPECT_LE(most_, kCapacity);
  EXPECT_GE(most_, kCapacity * 7 / 8);
  EXPECT_LE(used_bytes(), kCapacity);
}

TEST_F(RawRoom, IsNotTakenByOverwriting) {
  auto first = pool("a"), second = pool("b");
  fill(first);
  const uint64_t end = fill(second);
  ASSERT_LT(end, kPool);
  for (int round = 0; round < 3; ++round) EXPECT_EQ(fill(first), kPool) << "all of it is there";
  ASSERT_GT(end, kMiB);
  EXPECT_TRUE(small_.write(second, 0, std::string(kMiB, 'y'))) << "where it has blocks, though not everywhere";
  EXPECT_EQ(code(small_.write(second, end, std::string(kMiB, 'y'))), Code::kNoSpace);
  EXPECT_LE(used_bytes(), kCapacity);
}

TEST_F(RawRoom, ComesBackByHolesAndBySizing) {
  auto first = pool("a"), second = pool("b");
  fill(first);
  const uint64_t end = fill(second);
  ASSERT_LT(end, kPool);
  ASSERT_TRUE(allocate(first, Store::AllocateMode::kPunchHole, 0, 4 * kMiB));
  EXPECT_TRUE(small_.write(second, end, std::string(kMiB, 'y')));
  fill(second);
  ASSERT_TRUE(small_.truncate("a", 16 * kMiB));
  EXPECT_EQ(fill(second), kPool);
  EXPECT_LE(used_bytes(), kCapacity);
}

TEST_F(RawRoom, IsSetAsideForAllocation) {
  auto first = pool("a"), second = pool("b");
  ASSERT_TRUE(allocate(first, Store::AllocateMode::kExtend, 0, kPool));
  EXPECT_EQ(code(allocate(second, Store::AllocateMode::kExtend, 0, kPool)), Code::kNoSpace);
  EXPECT_TRUE(allocate(first, Store::AllocateMode::kExtend, 0, kPool)) << "it is there";
  EXPECT_EQ(fill(first), kPool);
  EXPECT_LE(used_bytes(), kCapacity);
}

TEST_F(RawRoom, IsSharedWithChunks) {
  auto first = pool("a");
  fill(first);
  auto chunk = small_.create("chunk");
  ASSERT_TRUE(chunk);
  EXPECT_EQ(code(small_.write(*chunk, 0, std::string(kMiB / 2, 'x'))), Code::kNoData);
  auto second = pool("b");
  EXPECT_LT(fill(second), kPool);
  EXPECT_TRUE(small_.flush(*chunk));
  ASSERT_TRUE(small_.drain());
  EXPECT_LE(used_bytes(), kCapacity);
}

// On a full disk the journal takes of what was kept for it.
class FilledByOthers : public Room {
 protected:
  static constexpr int kFiles = 400;
  static constexpr uint64_t kFileBytes = 64 * kKiB;
  static std::string name(int i) { return fmt::format("a-name-that-is-long-enough-to-fill-blocks-of-a-journal-{:04}", i); }
  void SetUp() override {
    Room::SetUp();
    rig_.pass_time(kUpkeepNs);
    for (int i = 0; i < kFiles; ++i) ASSERT_EQ(put(name(i), kFileBytes), Code::kNoData);
    ASSERT_TRUE(rig_.drain());
    rig_.pass_time(kUpkeepNs);
    others_fill(0);
    ASSERT_EQ(free_bytes(), 0u);
  }
  uint64_t free_bytes() { return disk_->space()->available_bytes; }
  void remove_all() {
    for (int i = 0; i < kFiles; ++i) ASSERT_TRUE(rig_.unlink(name(i)));
  }
  void all_comes_back() {
    ASSERT_TRUE(rig_.drain());
    for (int i = 0; i < 3; ++i) rig_.pass_time(kUpkeepNs);
    EXPECT_GT(free_bytes(), kFiles * kFileBytes / 2);
    EXPECT_EQ(put("again", kMiB), Code::kNoData);
    others_leave();
    for (int i = 0; i < 2; ++i) rig_.pass_time(kUpkeepNs);
    EXPECT_EQ(disk_->info("nodes/test/RESERVE")->allocated_bytes, kDiskBytes / 256) << "whole again";
    EXPECT_EQ(put("after", kMiB), Code::kNoData);
  }
};

TEST_F(FilledByOthers, RemovalsGiveRoomBack) {
  remove_all();
  all_comes_back();
}

TEST_F(FilledByOthers, ItCanBeMounted) {
  rig_.die();
  const Status mounted = rig_.mount();
  ASSERT_TRUE(mounted) << mounted.error().message;
  remove_all();
  all_comes_back();
}

}  // namespace room_test
}  // namespace kvcachefs::testing

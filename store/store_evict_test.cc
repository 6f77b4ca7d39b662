// The store as a cache: a volume that is full goes on taking chunks, and what must stay stays.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/journal/journal.h"
#include "store/journal/volume_file.h"
#include "store/testing/settling.h"
#include "store/testing/test_store.h"

namespace kvcachefs {
namespace store_evict_test {

using testing::TestStore;

constexpr uint64_t kCapacity = 48 * kMiB;
constexpr size_t kChunk = 512 * kKiB;

StoreOptions small_volume(uint64_t lease_ms = 0) {
  StoreOptions options;
  options.capacity_bytes = kCapacity;
  options.keep_free_bytes = 1;
  options.lease_ms = lease_ms;
  options.flush_interval_ms = 1;
  options.policy = "lru";
  return options;
}

uint64_t bytes_on(const std::string& root) {
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    struct stat info {};
    if (::stat(entry.path().c_str(), &info) == 0 && S_ISREG(info.st_mode)) bytes += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

std::string name_of(int number) { return fmt::format("{:016x}{:016x}.bin", static_cast<uint64_t>(number) * 0x9E3779B97F4A7C15, number); }

class StoreEvict : public ::testing::Test {
 protected:
  explicit StoreEvict(uint64_t lease_ms = 0) : store_(small_volume(lease_ms)) {}
  // Under a temporary name and renamed, as clients do. Each by a thread of its own: what one thread writes would be taken for a chain.
  bool put(int number, size_t bytes = kChunk, const std::string& directory = "") {
    const std::string name = directory + name_of(number);
    const auto thread = static_cast<uint32_t>(number + 1);
    return store_.write_file(name + ".tmp", store_.payload(number, bytes), thread) && store_.rename(name + ".tmp", name, thread);
  }
  bool there(int number, const std::string& directory = "") { return store_.exists(directory + name_of(number)); }
  void expect_whole(int number, size_t bytes = kChunk, const std::string& directory = "") {
    EXPECT_TRUE(store_.read_file(directory + name_of(number)) == store_.payload(number, bytes)) << number;
  }
  void within_capacity() {
    EXPECT_LE(store_->status().physical_bytes, kCapacity);
    EXPECT_LE(bytes_on(store_.root()), kCapacity);
  }
  // Ten times what fits. Not all at once: the clock has to move.
  void write_much(int first, int count) {
    for (int i = first; i < first + count; ++i) {
      ASSERT_TRUE(put(i)) << i;
      within_capacity();
    }
  }
  static constexpr int kTenTimes = static_cast<int>(10 * kCapacity / kChunk);
  TestStore store_;
};

// Those of directories, which are not evicted, would displace all chunks.
TEST_F(StoreEvict, ExtendedAttributesLeaveRoomForChunks) {
  constexpr int kChunks = static_cast<int>(kCapacity / kChunk);
  for (int i = 0; i < kChunks; ++i) ASSERT_TRUE(put(i)) << i;
  store_.drain();
  const std::string value(60 * kKiB, 'v');
  Status set;
  uint64_t bytes = 0;
  for (int i = 0; set && i < kChunks; ++i) {
    const std::string directory = fmt::format("d{}", i);
    store_.mkdir(directory);
    for (const char* name : {"user.a", "user.b", "user.c", "user.d"}) {
      set = store_->set_xattr(store_->lookup(kRootId, directory, {})->id, name, value, XattrMode::kAny);
      if (!set) break;
      bytes += value.size();
    }
    store_.settle();
    within_capacity();
  }
  ASSERT_FALSE(set);
  EXPECT_EQ(set.error().code, Code::kNoSpace);
  EXPECT_NE(set.error().message.find("remove attributes of directories"), std::string::npos) << set.error().message;
  EXPECT_GE(bytes, kCapacity / 32);
  EXPECT_GE(store_->status().live_bytes, kCapacity / 4);
  for (int i = kChunks; i < kChunks + 20; ++i) EXPECT_TRUE(put(i)) << i;
  store_.drain();
  expect_whole(kChunks + 19);
}

TEST_F(StoreEvict, AFullVolumeGoesOnTakingChunks) {
  write_much(0, kTenTimes);
  store_.drain();
  within_capacity();
  EXPECT_EQ(store_->status().errors_no_space, 0u);
  EXPECT_GT(store_->status().eviction_objects, static_cast<uint64_t>(kTenTimes) / 2);
  EXPECT_GE(store_->status().live_bytes, kCapacity / 2);
  int there_now = 0;
  for (int i = 0; i < kTenTimes; ++i)
    if (there(i)) {
      ++there_now;
      expect_whole(i);
    }
  EXPECT_GT(there_now, 40);
  for (int i = kTenTimes - 20; i < kTenTimes; ++i) EXPECT_TRUE(there(i)) << "written last: " << i;
}

// A node that follows the journals may keep an evicted name visible for a while, but not a name that a client removed.
TEST_F(StoreEvict, TheJournalTellsEvictionFromRemoval) {
  write_much(0, 200);
  ASSERT_TRUE(there(199));
  ASSERT_TRUE(store_.unlink(name_of(199)));
  store_.die();  // with its journals as they are
  size_t evicted = 0, removed = 0;
  auto volume = open_posix_volume(store_.root(), {});
  ASSERT_TRUE(volume);
  FileIdentity identity;
  const auto content = read_file(**volume, kVolumeFileName, kVolumeFileBytes);
  ASSERT_TRUE(content);
  identity.volume_uuid = decode_volume_file(*content)->uuid;
  identity.node = (*volume)->list("nodes")->front().name;
  ASSERT_TRUE(replay_journals(**volume, identity, {}, [&](const Batch& batch, JournalPosition, bool) -> Status {
    for (const Record& record : batch.records)
      if (const auto* gone = std::get_if<UnnameRecord>(&record); gone != nullptr && !gone->name.ends_with(".tmp")) {
        (gone->evicted ? evicted : removed) += 1;
        EXPECT_EQ(gone->evicted, gone->name != name_of(199)) << gone->name;
      }
    return {};
  }));
  EXPECT_GT(evicted, 50u);
  EXPECT_LE(removed, 1u);  // it may not be journaled yet
  store_.mount();
}

TEST_F(StoreEvict, WithoutItIsFull) {
  ASSERT_TRUE(store_->set_option("evict", "off"));
  int stored = 0;
  while (stored < kTenTimes && put(stored)) ++stored;
  EXPECT_LT(stored, kTenTimes / 9);
  EXPECT_EQ(store_->status().eviction_objects, 0u);
  expect_whole(0);
  ASSERT_TRUE(store_->set_option("evict", "on"));  // live; what is there becomes known
  for (int i = stored + 1; i < stored + 200; ++i) ASSERT_TRUE(put(i)) << i;
  EXPECT_FALSE(there(0));
}

TEST_F(StoreEvict, WhatIsOpenPinnedOrInPlaceStays) {
  put(0), put(1), put(2), put(3);
  store_.mkdir("kept");
  ASSERT_TRUE(put(4, kChunk, "kept/"));
  Handle* open = store_.open(name_of(0), {});
  const auto id = [&](const std::string& name) { return store_->lookup(kRootId, name, {})->id; };
  ASSERT_TRUE(store_->set_pinned(id(name_of(1)), true));
  ASSERT_TRUE(store_->set_pinned(id("kept"), true));
  ASSERT_TRUE(put(5, kChunk, "kept/"));  // later
  Handle* locked = store_.open(name_of(2), {});
  store_->note_locked(locked);
  store_->release(locked);
  write_much(10, kTenTimes);
  for (int i : {0, 1, 2}) EXPECT_TRUE(there(i)) << i;
  EXPECT_TRUE(there(4, "kept/") && there(5, "kept/"));
  EXPECT_FALSE(there(3));
  expect_whole(1);
  store_->release(open);
  ASSERT_TRUE(store_->set_pinned(id(name_of(1)), false));
  write_much(1000, kTenTimes / 2);
  EXPECT_FALSE(there(0) || there(1));
  EXPECT_TRUE(there(4, "kept/"));
  EXPECT_EQ(store_->status().pinned_bytes, 2 * kChunk);
}

TEST_F(StoreEvict, AFileThatACallWaitsForStaysUntilItWasMade) {
  put(0), put(1);
  std::shared_ptr<void> kept = store_->keep(store_->lookup(kRootId, name_of(0), {})->id);
  ASSERT_TRUE(kept);
  write_much(10, kTenTimes);
  EXPECT_TRUE(there(0));
  EXPECT_FALSE(there(1));
  expect_whole(0);
  kept.reset();
  write_much(1000, kTenTimes);
  EXPECT_FALSE(there(0));
  EXPECT_FALSE(store_->keep(ObjectId::make(0, 1, 99'999))) << "there is none";
}

// Engines that do not remember what they stored write a chunk again under its name, some over the old bytes.
TEST_F(StoreEvict, AChunkThatIsStoredAgainGoesAsOthersDo) {
  constexpr int kAgain = 20;
  for (int i = 0; i < kAgain; ++i) ASSERT_TRUE(put(i));
  store_.settle();
  for (int times = 0; times < 3; ++times) {
    for (int i = 0; i < kAgain; ++i) {
      const bool over = i % 2 == 0;
      Handle* handle = over ? store_.open(name_of(i), {.write = true}) : store_.open_for_rewrite(name_of(i), 1);
      ASSERT_NE(handle, nullptr);
      const std::string bytes = store_.payload(i, kChunk);
      for (const size_t at : {kChunk / 2, size_t{0}}) store_.pwrite(handle, at, bytes.substr(at, kChunk / 2));
      ASSERT_TRUE(store_.close(handle));
    }
    store_.settle();
    if (times == 1) store_.remount();
  }
  for (int i : {0, 1}) expect_whole(i);
  write_much(100, kTenTimes / 2);
  for (int i = 0; i < kAgain; ++i) EXPECT_FALSE(there(i)) << i;
}

TEST_F(StoreEvict, WhatIsChangedInPartStays) {
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(put(i));
  store_.settle();
  const auto change = [&](int number, uint64_t offset, size_t bytes, bool append = false) {
    Handle* handle = store_.open(name_of(number), {.write = true, .append = append});
    ASSERT_NE(handle, nullptr);
    store_.pwrite(handle, offset, store_.payload(number, bytes));
    ASSERT_TRUE(store_.close(handle));
  };
  change(0, 8192, 100);
  change(1, 0, kChunk - 1);
  change(2, kChunk, 100, true);
  change(3, 0, kChunk);  // all of it, and then a part
  change(3, 4096, 1);
  store_.settle();
  write_much(100, kTenTimes / 2);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(there(i)) << i;
  store_.remount();
  write_much(2000, kTenTimes / 2);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(there(i)) << i;
}

// One rank's file of each unit is open, and they fill the volume: the other ranks' files go before a write is refused.
TEST_F(StoreEvict, WhatIsOpenKeepsTheRestOfItsUnitOnlyAsLongAsThereIsElse) {
  static constexpr int kRanks = 8, kUnits = 10;
  const auto name = [](int unit, int rank) { return fmt::format("model@{}@{}@{:016x}.pt", kRanks, rank, 0x9E3779B97F4A7C15 * static_cast<uint64_t>(unit + 1)); };
  std::vector<Handle*> open;
  for (int unit = 0; unit < kUnits; ++unit) {
    for (int rank = 0; rank < kRanks; ++rank) ASSERT_TRUE(store_.write_file(name(unit, rank), store_.payload(unit, kChunk)));
    open.push_back(store_.open(name(unit, 0), {}));
  }
  store_.settle();
  std::vector<Handle*> written;  // and not closed: nothing of it may go
  for (int i = 0; i < 60; ++i) {
    written.push_back(store_.create(fmt::format("other{}", i)));
    ASSERT_EQ(store_.try_pwrite(written.back(), 0, store_.payload(i, kChunk)), Code::kNoData) << i;
    within_capacity();
  }
  for (int unit = 0; unit < kUnits; ++unit) {
    EXPECT_TRUE(store_.exists(name(unit, 0))) << unit;
    store_->release(open[static_cast<size_t>(unit)]);
    EXPECT_TRUE(store_.read_file(name(unit, 0)) == store_.payload(unit, kChunk)) << unit;
  }
  for (Handle* handle : written) ASSERT_TRUE(store_.close(handle));
}

// A file that is sized first is known not to fit: the cache does not go for it.
TEST_F(StoreEvict, NothingGoesForWhatCannotFit) {
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(put(i));
  store_.drain();
  Handle* sized = store_.create("sized");
  EXPECT_EQ(testing::truncate(store_, "sized", 2 * kCapacity), Code::kNoSpace);
  const auto allocated = testing::await<void>(store_, [&](auto reply) {
    store_->allocate(sized, Store::AllocateMode::kKeepSize, kCapacity, kCapacity, std::move(reply));
  });
  EXPECT_EQ(allocated.error().code, Code::kNoSpace);
  EXPECT_EQ(store_.try_pwrite(sized, 2 * kCapacity, "x"), Code::kNoSpace);
  store_->release(sized);
  EXPECT_EQ(store_->status().eviction_objects, 0u);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(there(i)) << i;
}

// A writer that has closed what it wrote renames it next.
TEST_F(StoreEvict, WhatIsAboutToBeRenamedStays) {
  const std::vector<std::string> names = {"a.bin.tmp1a2b3c4d", "b.tmp140243", "tmpx3k9", ".c.bin.Xy12Zq", "d.tmp"};
  for (const std::string& name : names) ASSERT_TRUE(store_.write_file(name, store_.payload(1, kChunk), 7));
  ASSERT_TRUE(store_.write_file("plain.bin", store_.payload(1, kChunk), 7));
  ASSERT_TRUE(store_.write_file("job.lock", store_.payload(1, 6), 7));
  store_.drain();
  for (int i = 10; i < kTenTimes / 4; ++i)  // in place: none of what is there was renamed
    ASSERT_TRUE(store_.write_file(name_of(i), store_.payload(i, kChunk), static_cast<uint32_t>(i + 1))) << i;
  EXPECT_FALSE(store_.exists("plain.bin"));
  EXPECT_TRUE(store_.exists("job.lock"));
  for (const std::string& name : names) EXPECT_TRUE(store_.rename(name, "whole-" + name, 7)) << name;
}

TEST_F(StoreEvict, PinsAreKeptOverARemount) {
  store_.mkdir("kept");
  ASSERT_TRUE(put(0));
  ASSERT_TRUE(put(1, kChunk, "kept/"));
  ASSERT_TRUE(store_->set_pinned(store_->lookup(kRootId, name_of(0), {})->id, true));
  ASSERT_TRUE(store_->set_pinned(store_->lookup(kRootId, "kept", {})->id, true));
  store_.remount();
  EXPECT_EQ(store_->list_xattrs(store_->lookup(kRootId, name_of(0), {})->id)->size(), 0u);
  write_much(10, kTenTimes / 2);
  EXPECT_TRUE(there(0) && there(1, "kept/"));
  EXPECT_EQ(store_->status().pinned_objects, 2u);
}

TEST_F(StoreEvict, WhereEverythingIsPinnedOrOpenItIsFullAtOnce) {
  std::vector<Handle*> open;
  int stored = 0;
  for (; stored < 1000; ++stored) {
    if (!put(stored)) break;
    open.push_back(store_.open(name_of(stored), {}));
  }
  EXPECT_GT(stored, 60);
  EXPECT_LT(stored, 100);
  EXPECT_EQ(store_->status().eviction_objects, 0u);
  for (Handle* handle : open) store_->release(handle);
  usleep(1'100'000);
  EXPECT_TRUE(put(2000)) << "what was closed can go";
}

TEST_F(StoreEvict, MoreThanHalfIsNotPinned) {
  store_.mkdir("kept");
  int number = 0;
  for (; number < 60; ++number) ASSERT_TRUE(put(number, kChunk, "kept/"));
  const Status refused = store_->set_pinned(store_->lookup(kRootId, "kept", {})->id, true);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kNoSpace);
  EXPECT_EQ(store_->status().pinned_bytes, 0u);
}

TEST_F(StoreEvict, FilesWrittenUnderTheirNamesGoAsWell) {
  for (int i = 0; i < kTenTimes; ++i) {
    ASSERT_TRUE(store_.write_file(name_of(i), store_.payload(i, kChunk))) << i;
    if (static_cast<size_t>(i) * kChunk <= kCapacity) continue;
    EXPECT_GE(store_->status().live_bytes, kCapacity / 2) << "no more goes than is needed, at " << i;
  }
  within_capacity();
  expect_whole(kTenTimes - 1);
}

TEST_F(StoreEvict, MissesAreToldByTheirReason) {
  write_much(0, kTenTimes / 2);
  for (const std::string name : {"new.tmp", "new"})  // as the kernel does before a create and a rename
    EXPECT_FALSE(store_->lookup(kRootId, name, {.thread_id = 9}) || (name == "new.tmp" && !store_.write_file(name, "x", 9)));
  ASSERT_TRUE(store_.rename("new.tmp", "new", 9));
  const StoreStatus before = store_->status();
  EXPECT_EQ(before.probe_misses, 0u) << "what is looked up to be made is not probed for";
  EXPECT_EQ(before.lookups_before_store, 2u);
  uint64_t gone = 0;
  for (int i = 0; i < kTenTimes / 2; ++i) gone += there(i) ? 0 : 1;
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(there(100'000 + i));
  const StoreStatus after = store_->status();
  EXPECT_EQ(after.probe_hits - before.probe_hits, static_cast<uint64_t>(kTenTimes / 2) - gone);
  EXPECT_EQ(after.probe_misses_evicted, gone);
  EXPECT_EQ(after.probe_misses_never_seen, 10u);
  EXPECT_EQ(after.probe_misses, gone + 10);
  ASSERT_TRUE(after.evicted_ratio_minute && after.hit_ratio_day);
  EXPECT_DOUBLE_EQ(*after.evicted_ratio_minute, static_cast<double>(gone) / static_cast<double>(gone + 10));
}

TEST_F(StoreEvict, WhyAndHowOldIsCounted) {
  write_much(0, kTenTimes / 2);
  const StoreStatus status = store_->status();
  EXPECT_EQ(status.evicted_ahead.objects + status.evicted_waited_for.objects + status.evicted_lease_broken.objects, status.eviction_objects);
  EXPECT_EQ(status.evicted_ahead.bytes + status.evicted_waited_for.bytes, status.eviction_bytes);
  EXPECT_EQ(status.evicted_below_minute.bytes, status.eviction_bytes);
  EXPECT_GE(status.coldest_age_ms, 0);
  EXPECT_EQ(status.leased_objects, 0u);
  EXPECT_EQ(status.evicted_waited_for.objects > 0, status.room_waits > 0);
}

TEST_F(StoreEvict, WhatKeepsAFileIsDescribed) {
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(put(i));
  store_.drain();
  store_.mkdir("kept");
  const auto id = [&](int i) { return store_->lookup(kRootId, name_of(i), {.thread_id = 77})->id; };
  const auto kept_by = [&](int i) {
    const auto facts = store_->describe(id(i), {.thread_id = 77});
    for (const auto& [key, value] : *facts)
      if (key == "kept_by") return value;
    return std::string();
  };
  EXPECT_EQ(kept_by(0), "nothing");
  Handle* open = store_.open(name_of(1), {});
  EXPECT_EQ(kept_by(1), "open");
  store_->release(open);
  ASSERT_TRUE(store_->set_pinned(id(2), true));
  EXPECT_EQ(kept_by(2), "pinned");
  Handle* locked = store_.open(name_of(3), {});
  store_->note_locked(locked);
  store_->release(locked);
  EXPECT_EQ(kept_by(3), "locked");
  ASSERT_TRUE(put(6));
  EXPECT_EQ(kept_by(6), "not settled");
  ASSERT_TRUE(store_->set_option("lease_ms", "60000"));
  EXPECT_TRUE(there(4));  // by another thread
  EXPECT_EQ(kept_by(4), "leased");
  const auto facts = *store_->describe(id(4), {});
  EXPECT_TRUE(std::any_of(facts.begin(), facts.end(), [](const auto& fact) { return fact.first == "last_used" && fact.second.starts_with("0 s ago; "); }));
  ASSERT_TRUE(store_->set_option("evict", "off"));
  EXPECT_EQ(kept_by(4), "evict=off");
}

TEST_F(StoreEvict, SpaceThatCanBeMadeMayBeShownAsFree) {
  const auto used = [&] {
    const FileSystemSpace space = store_->space();
    return 1 - static_cast<double>(space.blocks_free) / static_cast<double>(space.blocks);
  };
  ASSERT_TRUE(store_->set_option("evict", "off"));
  ASSERT_TRUE(store_->set_option("statfs", "headroom"));
  EXPECT_FALSE(store_->set_option("statfs", "more"));
  EXPECT_LT(used(), 0.5);
  for (int i = 0; put(i); ++i) {
  }
  EXPECT_GT(used(), 0.9) << "nothing can be given back";
  ASSERT_TRUE(store_->set_option("statfs", "exact"));
  ASSERT_TRUE(store_->set_option("evict", "on"));
  ASSERT_TRUE(store_->set_option("statfs", "headroom"));
  EXPECT_NEAR(used(), 0.7, 0.005);
}

TEST_F(StoreEvict, NoSpaceIsShownAsFreeThatPinnedFilesTakeAfterTheCapacityBecameSmaller) {
  for (int i = 0; i < 80; ++i) ASSERT_TRUE(put(i));
  store_.drain();
  ASSERT_TRUE(store_->set_option("statfs", "headroom"));
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(store_->set_pinned(store_->lookup(kRootId, name_of(i), {})->id, true));
  EXPECT_GT(store_->space().blocks_free, 0u);
  ASSERT_TRUE(store_->set_option("capacity", "16M"));
  EXPECT_EQ(store_->space().blocks_free, 0u) << "20 MiB are pinned";
  ASSERT_TRUE(store_->set_option("capacity", "24M"));
  EXPECT_LE(store_->space().blocks_free * store_->space().block_bytes, 4 * kMiB);
}

TEST_F(StoreEvict, AFileWithTwoNamesKeepsBoth) {
  ASSERT_TRUE(put(0));
  ASSERT_TRUE(put(1));
  store_.drain();
  std::optional<Result<Stat>> linked;
  store_->link(store_->lookup(kRootId, name_of(0), {})->id, kRootId, "second", {}, [&](Result<Stat> result) { linked = std::move(result); });
  ASSERT_TRUE(linked && *linked);
  write_much(10, kTenTimes / 2);
  EXPECT_TRUE(there(0) && store_.exists("second"));
  EXPECT_FALSE(there(1));
}

TEST_F(StoreEvict, GoesByTimesAfterARemount) {
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(put(i));
  store_.drain();
  store_.remount();
  write_much(100, 70);
  int left = 0;
  for (int i = 0; i < 40; ++i) left += there(i);
  EXPECT_LT(left, 40) << "what was there goes before what came";
  int came_and_went = 0;
  for (int i = 100; i < 170; ++i) came_and_went += !there(i);
  EXPECT_LT(came_and_went, 4) << "victims are the best of a sample";
}

TEST_F(StoreEvict, NamesThatWentAreTold) {
  std::set<std::string> gone;
  store_->set_names_gone([&](std::vector<GoneName> names) {
    for (GoneName& name : names) {
      EXPECT_EQ(name.parent, kRootId);
      gone.insert(std::move(name.name));
    }
  });
  write_much(0, kTenTimes / 3);
  EXPECT_EQ(gone.size(), store_->status().eviction_objects);
  for (int i = 0; i < kTenTimes / 3; ++i) EXPECT_NE(there(i), gone.contains(name_of(i)));
  store_->set_names_gone({});
}

TEST_F(StoreEvict, WhatWentStaysGoneAndWhatStayedIsWholeAfterACrash) {
  write_much(0, kTenTimes / 2);
  std::set<int> before;
  for (int i = 0; i < kTenTimes / 2; ++i)
    if (there(i)) before.insert(i);
  store_.drain();
  store_.crash();
  for (int i = 0; i < kTenTimes / 2; ++i) {
    EXPECT_LE(there(i), before.contains(i)) << i;
    if (there(i)) expect_whole(i);
  }
  write_much(5000, 50);
  within_capacity();
}

// With leases: without any a body may go before its sidecar is there.
class StoreEvictSidecars : public StoreEvict {
 protected:
  StoreEvictSidecars() : StoreEvict(1'000) {}
};

TEST_F(StoreEvictSidecars, BodyAndSidecarGoTogether) {
  std::vector<int> pairs;  // a body may go before its sidecar is there, where all that there is was written a moment ago
  for (int i = 0; i < kTenTimes / 2; ++i) {
    ASSERT_TRUE(put(i));
    const std::string sidecar = name_of(i) + ".metadata";
    ASSERT_TRUE(store_.write_file(sidecar + ".tmp", "m") && store_.rename(sidecar + ".tmp", sidecar));
    if (there(i)) pairs.push_back(i);
    for (size_t n = 0; n < pairs.size(); n += 7) EXPECT_LE(store_.exists(name_of(pairs[n]) + ".metadata"), there(pairs[n])) << pairs[n];
  }
  store_.drain();
  EXPECT_GT(pairs.size(), kTenTimes / 2 - 20u);
  int bodies = 0;
  for (int i : pairs) {
    EXPECT_EQ(store_.exists(name_of(i) + ".metadata"), there(i)) << i;
    bodies += there(i);
  }
  EXPECT_GT(bodies, 40);
}

class StoreEvictLeases : public StoreEvict {
 protected:
  StoreEvictLeases() : StoreEvict(60'000) {}
};

TEST_F(StoreEvictLeases, WhatWasProbedIsThereWhenItIsOpened) {
  write_much(100, kTenTimes / 4);
  std::vector<int> probed;
  for (int i = 100; i < 100 + kTenTimes / 4 && probed.size() < 20; i += 3)
    if (there(i)) probed.push_back(i);
  EXPECT_GT(probed.size(), 10u);
  write_much(10'000, kTenTimes / 2);
  for (int i : probed) expect_whole(i);
  EXPECT_EQ(store_->status().eviction_leases_broken, 0u);
  EXPECT_EQ(store_->status().errors_no_space, 0u);
}

TEST(StoreEvictWriters, WhatIsFilledForLongIsUsedUntilItsClose) {
  ManualClock clock(int64_t{1'000'000} * 1'000'000'000);
  TestStore store(small_volume(5'000), clock);
  Handle* pool = store.create("pool");
  store.pwrite(pool, 0, TestStore::payload(1, kChunk));
  clock.advance_ns(60'000'000'000);
  EXPECT_TRUE(store.close(pool));
  store.settle();
  const auto facts = store->describe(store->lookup(kRootId, "pool", {.thread_id = 77})->id, {.thread_id = 77});
  EXPECT_TRUE(std::ranges::any_of(*facts, [](const auto& fact) { return fact.first == "last_used" && fact.second.starts_with("0 s ago; "); }));
}

TEST_F(StoreEvictLeases, WhereLeasesFillTheVolumeTheOldestBreak) {
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(put(i)) << i;
    ASSERT_TRUE(there(i));  // which leases it
  }
  EXPECT_GT(store_->status().eviction_leases_broken, 100u);
  EXPECT_TRUE(there(299));
}

}  // namespace store_evict_test
}  // namespace kvcachefs

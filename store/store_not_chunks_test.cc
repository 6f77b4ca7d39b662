// Which files a full volume keeps, for they were not written as chunks are; and that no way of writing a chunk is taken for one of
// them, or the volume would fill with what may not go.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "store/object/handle.h"
#include "store/testing/settling.h"
#include "store/testing/test_store.h"

namespace kvcachefs {
namespace store_not_chunks_test {

using testing::TestStore;

constexpr uint64_t kSmallCapacity = 24 * kMiB;
constexpr size_t kOneChunk = 512 * kKiB, kHeader = 4096;

StoreOptions volume_without_leases() {
  StoreOptions options;
  options.capacity_bytes = kSmallCapacity;
  options.keep_free_bytes = 1;
  options.flush_interval_ms = 1;
  options.lease_ms = 0;
  options.policy = "lru";
  return options;
}

class StoreNotChunks : public ::testing::Test {
 protected:
  // Pieces of `bytes` written through one open, in this order.
  struct Piece {
    size_t offset = 0, bytes = 0;
  };
  void write(Handle* handle, std::initializer_list<Piece> pieces, int seed = 1) {
    ASSERT_NE(handle, nullptr);
    for (const Piece& piece : pieces) store_.pwrite(handle, piece.offset, store_.payload(seed++, piece.bytes));
  }
  Handle* create(const std::string& name, bool append = false) {
    OpenRequest how{.write = true, .append = append};
    auto created = store_->create(kRootId, name, 0644, how, {.thread_id = 1});
    return created ? created->second : nullptr;
  }
  void fill(int rounds = 5) {
    for (int i = 0; i < rounds * static_cast<int>(kSmallCapacity / kOneChunk); ++i) {
      const std::string name = fmt::format("{:016x}.bin", 0x9E3779B97F4A7C15 * static_cast<uint64_t>(++filled_));
      ASSERT_TRUE(store_.write_file(name, store_.payload(filled_, kOneChunk), static_cast<uint32_t>(filled_ + 10))) << filled_;
    }
  }
  std::string kept_by(const std::string& name) {
    store_.settle();
    const auto facts = store_->describe(store_->lookup(kRootId, name, {.thread_id = 77})->id, {.thread_id = 77});
    for (const auto& [key, value] : *facts)
      if (key == "kept_by") return value;
    return {};
  }
  TestStore store_{volume_without_leases()};
  int filled_ = 0;
};

// Each of them in its first life, under its own name: nothing but the way in which it is written tells.
TEST_F(StoreNotChunks, WhatIsPatchedOrAppendedToByThoseWhoFillItStays) {
  Handle* patched = create("sound.wav");  // the length is known, and put into the header, last
  write(patched, {{0, 44}, {44, kOneChunk}, {4, 4}, {40, 4}});
  ASSERT_TRUE(store_.close(patched));
  Handle* log = create("service.log", true);
  write(log, {{0, kOneChunk}});
  ASSERT_TRUE(store_.close(log));
  Handle* database = create("small.db");
  write(database, {{0, kHeader}, {kHeader, 20 * kHeader}, {0, kHeader}, {3 * kHeader, 2 * kHeader}, {21 * kHeader, kHeader}, {0, kHeader}});
  ASSERT_TRUE(store_.close(database));
  Handle* later = create("later.db");
  write(later, {{0, kOneChunk}});
  ASSERT_TRUE(store_.close(later));
  write(later = store_.open("later.db", {.write = true}), {{kHeader, 100}});  // at once: it is in RAM as it was made
  ASSERT_TRUE(store_.close(later));
  Handle* anew = create("again.wav");
  write(anew, {{0, kOneChunk}});
  ASSERT_TRUE(store_.close(anew));
  write(anew = store_.open_for_rewrite("again.wav", 1), {{0, 44}, {44, kOneChunk}, {4, 4}});
  ASSERT_TRUE(store_.close(anew));
  const auto all = {"sound.wav", "service.log", "small.db", "later.db", "again.wav"};
  for (const char* name : all) EXPECT_EQ(kept_by(name), "changed in part") << name;
  fill();
  for (const char* name : all) EXPECT_TRUE(store_.exists(name)) << name;
  store_.remount();
  fill();
  for (const char* name : all) EXPECT_TRUE(store_.exists(name)) << name;
  EXPECT_FALSE(store_.exists(fmt::format("{:016x}.bin", 0x9E3779B97F4A7C15))) << "nothing had to go";
}

// A client that writes its chunks so fills the volume with them: they go rather than that calls are refused.
TEST_F(StoreNotChunks, WhereThereIsNothingElseTheyGo) {
  for (int i = 0; i < 3 * static_cast<int>(kSmallCapacity / kOneChunk); ++i) {
    Handle* handle = create(fmt::format("{:016x}.npz", 0x9E3779B97F4A7C15 * static_cast<uint64_t>(i + 1)));
    ASSERT_NE(handle, nullptr) << i;
    for (const Piece& piece : {Piece{0, kOneChunk}, Piece{14, 12}})
      ASSERT_EQ(store_.try_pwrite(handle, piece.offset, store_.payload(i, piece.bytes)), Code::kNoData) << i;
    ASSERT_TRUE(store_.close(handle)) << i;
  }
  EXPECT_EQ(store_->status().errors_no_space, 0u);
}

// As real clients write: header and payload by two opens, sized beforehand, out of order, twice, by two writers at once, through a
// mapping, and again after a write that failed.
TEST_F(StoreNotChunks, NoWayToWriteAChunkIsTakenForOne) {
  std::vector<std::string> names;
  const auto begin = [&](const std::string& name) {
    names.push_back(name);
    return create(name);
  };
  Handle* one = begin("header, then payload");
  write(one, {{0, kHeader}, {kHeader, kOneChunk}});
  ASSERT_TRUE(store_.close(one));

  one = begin("header and payload by two opens");
  write(one, {{0, kHeader}});
  ASSERT_TRUE(store_.close(one));
  write(one = store_.open(names.back(), {.write = true}), {{kHeader, kOneChunk}});
  ASSERT_TRUE(store_.close(one));

  one = begin("sized, then out of order");
  store_.truncate(names.back(), kOneChunk);
  write(one, {{kOneChunk / 2, kOneChunk / 2}, {kOneChunk / 4, kOneChunk / 4}, {0, kOneChunk / 4}});
  ASSERT_TRUE(store_.close(one));

  one = begin("twice by one open");
  write(one, {{0, kOneChunk / 2}, {kOneChunk / 2, kOneChunk / 2}, {0, kOneChunk / 2}, {kOneChunk / 2, kOneChunk / 2}});
  ASSERT_TRUE(store_.close(one));

  one = begin("by two writers at once");
  Handle* second = store_.open(names.back(), {.write = true}, 2);
  write(one, {{0, kOneChunk / 2}});
  write(second, {{0, kOneChunk / 2}, {kOneChunk / 2, kOneChunk / 2}});
  write(one, {{kOneChunk / 2, kOneChunk / 2}});
  ASSERT_TRUE(store_.close(one) && store_.close(second));

  one = begin("through a mapping");
  for (const size_t at : {size_t{0}, size_t{0}, kHeader}) {
    store_->note_page_written(one);
    write(one, {{at, kHeader}});
  }
  write(one, {{0, kHeader / 2}});
  ASSERT_TRUE(store_.close(one));

  one = begin("again after a failed write");
  write(one, {{0, kHeader}});
  EXPECT_EQ(store_.try_pwrite(one, kHeader, store_.payload(1, 2 * kSmallCapacity)), Code::kNoSpace);
  write(one, {{0, kHeader}, {kHeader, 2 * kSmallCapacity / 1024}});
  static_cast<void>(store_.close(one));

  one = begin("appended under another name.tmp");
  ASSERT_TRUE(store_.close(one));
  write(one = store_.open(names.back(), {.write = true, .append = true}), {{0, kOneChunk}});
  ASSERT_TRUE(store_.close(one) && store_.rename(names.back(), "whole"));
  names.back() = "whole";

  for (const std::string& name : names) EXPECT_FALSE(kept_by(name).starts_with("changed")) << name << ": " << kept_by(name);
  store_.remount();
  fill();
  std::erase(names, "again after a failed write");  // that is empty, and stays
  for (const std::string& name : names) EXPECT_FALSE(store_.exists(name)) << name;
}

// Their writers never closed them when the daemon died.
TEST_F(StoreNotChunks, WhatWasPatchedOrAppendedToStaysAfterACrash) {
  Handle* log = create("service.log", true);
  write(log, {{0, kOneChunk}});
  Handle* database = create("small.db");
  write(database, {{0, kHeader}, {kHeader, 20 * kHeader}, {0, kHeader}});
  Handle* chunk = create("chunk");
  write(chunk, {{0, kOneChunk / 2}, {kOneChunk / 2, kOneChunk / 2}, {0, kOneChunk / 2}, {kOneChunk / 2, kOneChunk / 2}});
  for (Handle* handle : {log, database, chunk}) {
    bool done = false;
    store_->fsync(handle, [&](Status status) { done = status.has_value(); });
    store_.settle();
    ASSERT_TRUE(done);
  }
  for (Handle* handle : {log, database, chunk}) delete handle;  // they are not released: to the store they are open when it dies
  store_.crash();
  for (const char* name : {"service.log", "small.db"}) EXPECT_EQ(kept_by(name), "changed in part") << name;
  EXPECT_FALSE(kept_by("chunk").starts_with("changed")) << "it was stored twice as a whole";
  fill();
  for (const char* name : {"service.log", "small.db"}) EXPECT_TRUE(store_.exists(name)) << name;
}

// What is whole again is one again.
TEST_F(StoreNotChunks, AWholeRewriteMakesItAChunkAgain) {
  Handle* handle = create("c");
  write(handle, {{0, kOneChunk}, {8, 8}});
  ASSERT_TRUE(store_.close(handle));
  EXPECT_EQ(kept_by("c"), "changed in part");
  write(handle = store_.open_for_rewrite("c", 1), {{0, kOneChunk}});
  ASSERT_TRUE(store_.close(handle));
  EXPECT_FALSE(kept_by("c").starts_with("changed"));
  store_.remount();
  EXPECT_FALSE(kept_by("c").starts_with("changed"));
  EXPECT_EQ(store_->list_xattrs(store_->lookup(kRootId, "c", {})->id)->size(), 0u);
}

}  // namespace store_not_chunks_test
}  // namespace kvcachefs

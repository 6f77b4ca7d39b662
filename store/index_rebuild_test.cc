// Rows of the index that are flipped while the store is open: what they hold cannot be answered for a moment, all else is,
// and the index is built anew behind the clients.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "store/base/log.h"
#include "store/index/index.h"
#include "store/store.h"
#include "store/testing/test_store.h"

namespace kvcachefs {
namespace index_rebuild_test {

using testing::TestStore;
namespace fs = std::filesystem;

class IndexRebuildTest : public ::testing::Test {
 protected:
  void SetUp() override {
    log::set_level(log::Level::kOff);
    store_.mkdir("dir");
    for (int i = 0; i < kFiles; ++i) ASSERT_TRUE(store_.write_file(name(i), store_.payload(i, 3000)));
    store_.remount();  // everything is in LMDB, and nothing in RAM
    store_.write_file("since", store_.payload(1000, 3000));
    store_.drain();  // a journal of this epoch, too
  }
  void TearDown() override { log::set_level(log::Level::kInfo); }

  static std::string name(int i) { return "dir/name-of-a-file-" + std::to_string(1000 + i); }
  std::string index_file() {
    for (const auto& entry : fs::recursive_directory_iterator(store_.root()))
      if (entry.path().filename() == "data.mdb") return entry.path();
    return {};
  }
  // One bit of each place in the index that holds `text`, which the open store has mapped.
  void flip(const std::string& text) {
    const std::string path = index_file();
    std::ifstream in(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(in)), {});
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    int flipped = 0;
    for (size_t at = bytes.find(text); at != std::string::npos; at = bytes.find(text, at + 1), ++flipped) {
      const char wrong = static_cast<char>(bytes[at] ^ 1);
      ASSERT_EQ(pwrite(fd, &wrong, 1, static_cast<off_t>(at)), 1);
    }
    close(fd);
    ASSERT_GT(flipped, 0) << text << " is not in the index";
  }
  void expect_all() {
    for (int i = 0; i < kFiles; ++i) EXPECT_EQ(store_.read_file(name(i)), store_.payload(i, 3000)) << name(i);
    EXPECT_EQ(store_.read_file("since"), store_.payload(1000, 3000));
  }

  static constexpr int kFiles = 50;
  TestStore store_;
};

TEST_F(IndexRebuildTest, ABadRowCondemnsNoOtherAndIsMended) {
  flip(name(7).substr(4));
  EXPECT_FALSE(store_.exists(name(7)));
  EXPECT_EQ(store_->status().state, "degraded");
  EXPECT_NE(store_->status().state_reason.find("damaged"), std::string::npos);
  for (int i = 0; i < kFiles; ++i) {
    if (i != 7) {
      EXPECT_EQ(store_.read_file(name(i)), store_.payload(i, 3000)) << name(i);
    }
  }
  store_.settle();
  EXPECT_EQ(store_->status().state, "ok");
  expect_all();
  store_.remount();
  EXPECT_FALSE(fs::exists(fs::path(index_file()).parent_path().string() + ".damaged")) << "the mended one was not trusted";
  expect_all();
}

TEST_F(IndexRebuildTest, WhatIsAcceptedMeanwhileIsKept) {
  flip(name(7).substr(4));
  EXPECT_FALSE(store_.exists(name(7)));
  ASSERT_TRUE(store_.write_file("dir/new", store_.payload(2000, 3000)));
  ASSERT_TRUE(store_.unlink(name(8)));
  ASSERT_TRUE(store_.rename(name(9), "dir/renamed"));
  store_.drain();
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(store_.read_file("dir/new"), store_.payload(2000, 3000));
    EXPECT_EQ(store_.read_file("dir/renamed"), store_.payload(9, 3000));
    EXPECT_FALSE(store_.exists(name(8)));
    EXPECT_FALSE(store_.exists(name(9)));
    EXPECT_EQ(store_.read_file(name(7)), store_.payload(7, 3000));
    store_.remount();
  }
}

// The row is read for the first time by the batch that changes it, behind the journal.
TEST_F(IndexRebuildTest, ABatchThatMeetsABadRowIsAppliedToTheNewOne) {
  ASSERT_TRUE(store_.unlink(name(7)));
  ASSERT_TRUE(store_.write_file("dir/new", store_.payload(2000, 3000)));
  flip(name(7).substr(4));
  store_.drain();
  EXPECT_EQ(store_->status().state, "ok");
  for (int round = 0; round < 2; ++round) {
    EXPECT_FALSE(store_.exists(name(7)));
    EXPECT_EQ(store_.read_file("dir/new"), store_.payload(2000, 3000));
    for (int i = 0; i < kFiles; ++i) {
      if (i != 7) {
        EXPECT_EQ(store_.read_file(name(i)), store_.payload(i, 3000)) << name(i);
      }
    }
    store_.remount();
  }
}

TEST_F(IndexRebuildTest, AnUnmountKeepsWhatWasAcceptedWhereNothingCanBeBuilt) {
  const fs::path first = fs::path(index_file()).parent_path().parent_path() / "1", away = store_.root() + ".away";
  ASSERT_TRUE(fs::exists(first / "journal"));
  fs::rename(first / "journal", away);
  flip(name(7).substr(4));
  EXPECT_FALSE(store_.exists(name(7)));
  ASSERT_TRUE(store_.write_file("dir/new", store_.payload(2000, 3000)));
  ASSERT_TRUE(store_.unlink(name(8)));
  store_.drain();
  EXPECT_EQ(store_->status().state, "degraded");
  EXPECT_EQ(store_.read_file("dir/new"), store_.payload(2000, 3000));
  EXPECT_FALSE(store_.exists(name(8)));
  store_.unmount();  // without an error: the journals have it
  fs::rename(away, first / "journal");
  store_.mount();
  EXPECT_EQ(store_.read_file("dir/new"), store_.payload(2000, 3000));
  EXPECT_FALSE(store_.exists(name(8)));
  ASSERT_TRUE(store_.write_file(name(8), store_.payload(8, 3000)));
  expect_all();
}

// A file with the mark of a clean close is not looked into when it is opened, and its rows may be of another hand.
TEST_F(IndexRebuildTest, ImpossibleRowsBehindACleanMarkAreBuiltAnew) {
  const fs::path directory = fs::path(index_file()).parent_path();
  ASSERT_TRUE(store_.write_file("packed", store_.payload(3000, 700'000)));
  store_.drain();
  const std::string uuid = store_->status().volume_uuid;
  store_.unmount();
  {
    IndexIdentity who;
    who.node = "test";
    for (size_t i = 0; i < who.volume_uuid.size(); ++i)
      who.volume_uuid[i] = static_cast<std::byte>(std::stoul(uuid.substr(2 * i, 2), nullptr, 16));
    Index::Found found{};
    std::string why;
    auto index = Index::open(directory, who, &found, &why);
    ASSERT_TRUE(index) << index.error().message;
    ASSERT_EQ(found, Index::Found::kOpened) << why;
    auto entry = (*index)->find_name(kRootId, "packed");
    ASSERT_TRUE(entry && *entry);
    auto object = (*index)->find_object((*entry)->child);
    ASSERT_TRUE(object && *object);
    ASSERT_EQ((*object)->body.checksums.size(), 3u);
    (*object)->body.checksums.clear();
    (*object)->body.size_bytes = uint64_t{1} << 40;
    Batch batch{(*index)->stamp(), {}};
    batch.records.emplace_back(PutRecord{std::move(**object)});
    ASSERT_TRUE((*index)->apply(batch, (*index)->position()));
    ASSERT_TRUE((*index)->commit());
    ASSERT_TRUE((*index)->close_clean());
  }
  store_.mount();
  const auto packed = store_->lookup(kRootId, "packed", {});
  ASSERT_TRUE(packed);
  EXPECT_EQ(store_->open(packed->id, {}, {}).error().code, Code::kCorrupt);
  store_.settle();
  EXPECT_EQ(store_.read_file("packed"), store_.payload(3000, 700'000));
  expect_all();
}

}  // namespace index_rebuild_test
}  // namespace kvcachefs

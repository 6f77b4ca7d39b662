// Links planted in a volume: neither a mount nor fsck reads or writes anything outside of it, and both say what is in the way.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "store/check/check.h"
#include "store/testing/test_store.h"

namespace kvcachefs {
namespace planted_links_test {

namespace fs = std::filesystem;
using testing::TestStore;

class PlantedLinks : public ::testing::Test {
 protected:
  PlantedLinks() {
    store_.mkdir("d");
    store_.write_file("d/solo", store_.payload(1, 6'000'000));
    store_.write_file("d/packed", store_.payload(2, 300'000));
    store_.drain();
    std::ofstream(victim_) << kSecret;
  }
  ~PlantedLinks() override {
    EXPECT_EQ(content(victim_), kSecret);
    fs::remove(victim_);
  }
  static std::string content(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string in_volume(const std::string& path) const { return store_.root() + "/" + path; }
  std::string extent(const std::string& extension) const {
    for (const auto& entry : fs::recursive_directory_iterator(store_.root()))
      if (entry.path().extension() == extension) return entry.path();
    return {};
  }
  Status mount() { return status_of(open_store_at(store_.root(), options(), system_clock(), "test")); }
  Status fsck(bool repair) { return fsck({}, repair); }
  Status fsck(const std::string& name, bool repair) {
    KVC_ASSIGN(auto node, open_offline_node({.volume = store_.root(), .node = name, .index_directory = {}, .purpose = "test"}));
    KVC_TRY(check_node(node, {.repair = repair, .remove_orphans = false, .journals_only = false, .progress = nullptr}));
    return {};
  }
  template <class T>
  static Status status_of(const Result<T>& result) {
    return result ? Status{} : std::unexpected(result.error());
  }
  static StoreOptions options() {
    StoreOptions options;
    options.background = false;
    options.node = "test";
    options.memory_bytes = 64 << 20;
    return options;
  }
  // All refuse, and name the place.
  void expect_refused(const std::string& path) {
    for (const Status& status : {mount(), fsck(false), fsck(true)}) {
      ASSERT_FALSE(status) << path;
      EXPECT_NE(status.error().message.find(path), std::string::npos) << status.error().message;
    }
  }
  void replace(const std::string& path, const std::function<void(const std::string&)>& plant) {
    fs::rename(in_volume(path), in_volume(path) + ".away");
    plant(in_volume(path));
    expect_refused(path);
    fs::remove(in_volume(path));
    fs::rename(in_volume(path) + ".away", in_volume(path));
  }

  static constexpr const char* kSecret = "root's own";
  TestStore store_;
  const std::string victim_ = store_.root() + ".victim";
};

TEST_F(PlantedLinks, AreNotFollowed) {
  store_.unmount();
  const auto soft = [&](const std::string& path) { fs::create_symlink(victim_, path); };
  const auto hard = [&](const std::string& path) { fs::create_hard_link(victim_, path); };
  const auto fifo = [&](const std::string& path) { ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0); };
  const std::string epoch = "nodes/test/1/journal/0.log";
  for (const std::string path : {"VOLUME", "nodes/test/LOCK", epoch.c_str(), "nodes/test/index/data.mdb"}) {
    SCOPED_TRACE(path);
    if (!fs::exists(in_volume(path))) continue;
    replace(path, soft);
    replace(path, hard);
    replace(path, fifo);
  }
  for (const std::string path : {"nodes", "nodes/test", "nodes/test/index"}) {
    SCOPED_TRACE(path);
    fs::rename(in_volume(path), store_.root() + ".moved");
    fs::create_directory_symlink(store_.root() + ".moved", in_volume(path));
    EXPECT_FALSE(mount());
    EXPECT_FALSE(fsck(true));
    fs::remove(in_volume(path));
    fs::rename(store_.root() + ".moved", in_volume(path));
  }
  store_.mount();
  EXPECT_EQ(store_.read_file("d/packed"), store_.payload(2, 300'000));
}

// Beside the own index, also of a volume that was copied.
TEST_F(PlantedLinks, WhereTheIndexesOfPeersLieAreNotFollowed) {
  {
    TestStore other(testing::node_options("other"), store_);
    other.write_file("of-other", store_.payload(4, 100'000));
    testing::publish(store_, &other);
  }
  store_.unmount();
  const std::string peers = in_volume("nodes/test/index-peers");
  ASSERT_TRUE(fs::exists(peers + "/other"));
  const std::string outside = store_.root() + ".outside";
  fs::create_directories(outside + "/other/0");
  fs::create_directories(outside + "/absent/1");
  const auto expect_untouched = [&] {
    EXPECT_EQ(std::distance(fs::recursive_directory_iterator(outside), {}), 4);
  };
  fs::rename(peers, peers + ".away");
  const std::vector<std::pair<const char*, std::function<void()>>> plants = {
      {"a link", [&] { fs::create_directory_symlink(outside, peers); }},
      {"a link to nothing", [&] { fs::create_directory_symlink(victim_ + ".absent", peers); }},
      {"a FIFO", [&] { ASSERT_EQ(::mkfifo(peers.c_str(), 0600), 0); }},
      {"a file", [&] { std::ofstream(peers) << "x"; }}};
  for (const auto& [what, plant] : plants) {
    SCOPED_TRACE(what);
    plant();
    const Status mounted = mount();
    ASSERT_FALSE(mounted);
    EXPECT_NE(mounted.error().message.find(peers + ": is a"), std::string::npos) << mounted.error().message;
    EXPECT_TRUE(fsck("test", true));
    expect_untouched();
    fs::remove(peers);
  }
  fs::rename(peers + ".away", peers);
  fs::remove_all(peers + "/other");
  fs::create_directory_symlink(outside + "/other", peers + "/other");
  fs::create_directory_symlink(outside + "/absent", peers + "/absent");
  fs::remove(peers + "/.ordinals");
  fs::create_hard_link(victim_, peers + "/.ordinals.tmp");
  store_.mount();
  store_->pump();
  EXPECT_FALSE(store_.exists("of-other"));
  EXPECT_EQ(store_.read_file("d/packed"), store_.payload(2, 300'000));
  store_.unmount();
  expect_untouched();
  for (const char* name : {"/other", "/absent", "/.ordinals.tmp"}) EXPECT_TRUE(fs::remove(peers + name));
  store_.mount();
  store_.refresh();
  EXPECT_EQ(store_.read_file("of-other"), store_.payload(4, 100'000));
  store_.unmount();
  fs::remove_all(outside);
  store_.mount();
}

TEST_F(PlantedLinks, TheReserveIsNotWrittenElsewhere) {
  store_.unmount();
  const std::string reserve = in_volume("nodes/test/RESERVE");
  fs::remove(reserve);
  fs::create_symlink(victim_, reserve);
  store_.mount();  // can do without
  store_.write_file("d/more", store_.payload(3, 300'000));
  store_.unmount();
  EXPECT_EQ(content(victim_), kSecret);
  EXPECT_TRUE(fsck(true));
  store_.mount();
  EXPECT_EQ(store_.read_file("d/more"), store_.payload(3, 300'000));
}

TEST_F(PlantedLinks, ExtentsAreNotReadFromElsewhere) {
  store_.unmount();
  const std::string solo = extent(".solo"), pack = extent(".pack");
  ASSERT_FALSE(solo.empty());
  ASSERT_FALSE(pack.empty());
  fs::rename(solo, victim_ + ".solo");
  fs::create_symlink(victim_ + ".solo", solo);  // with the right bytes, even
  fs::create_hard_link(pack, victim_ + ".pack");
  store_.mount();
  EXPECT_NE(store_.try_read_file("d/solo"), Code::kNoData);
  EXPECT_NE(store_.try_read_file("d/packed"), Code::kNoData);
  Handle* handle = store_.open("d/solo", {.read = true, .write = false});
  if (handle != nullptr) store_.close(handle);
  store_.unmount();
  EXPECT_TRUE(fsck(false));
  fs::remove(solo);
  fs::rename(victim_ + ".solo", solo);
  EXPECT_TRUE(fsck(true));  // what has a second name may be whole
  fs::remove(victim_ + ".pack");
  store_.mount();  // nothing was lost
  EXPECT_EQ(store_.read_file("d/solo"), store_.payload(1, 6'000'000));
  EXPECT_EQ(store_.read_file("d/packed"), store_.payload(2, 300'000));
}

// Whatever is in the place of an extent, or nothing: of the chunk, which its client sees as a file, that is an I/O error.
TEST_F(PlantedLinks, WhatIsNoExtentIsAnIoErrorToWhoReads) {
  ASSERT_TRUE(store_->set_option("raw_above", "1M"));
  store_->release(store_.create("d/raw"));
  store_.truncate("d/raw", 2'000'000);
  store_.drain();
  const std::vector<std::pair<const char*, std::function<void(const std::string&)>>> plants = {
      {"a directory", [](const std::string& path) { fs::create_directory(path); }},
      {"a FIFO", [](const std::string& path) { ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0); }},
      {"a link", [&](const std::string& path) { fs::create_symlink(victim_, path); }},
      {"another name of a file", [&](const std::string& path) { fs::create_hard_link(victim_, path); }},
      {"nothing", [](const std::string&) {}},
  };
  for (const auto& [what, plant] : plants) {
    SCOPED_TRACE(what);
    store_.unmount();
    std::vector<std::string> places;
    for (const char* extension : {".solo", ".pack", ".raw"}) places.push_back(extent(extension));
    for (const std::string& place : places) {
      ASSERT_FALSE(place.empty());
      fs::rename(place, place + ".away");
      plant(place);
    }
    store_.mount();
    for (const char* name : {"d/solo", "d/packed"}) EXPECT_EQ(store_.try_read_file(name), Code::kIo) << name;
    const ObjectId raw = store_->lookup(store_->lookup(kRootId, "d", {})->id, "raw", {})->id;
    const auto opened = store_->open(raw, {.read = true}, {});
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, Code::kIo);
    EXPECT_NE(opened.error().message.find(".raw"), std::string::npos) << opened.error().message;
    store_.unmount();
    for (const std::string& place : places) {
      fs::remove(place);
      fs::rename(place + ".away", place);
    }
    store_.mount();
    EXPECT_TRUE(store_.read_file("d/solo") == store_.payload(1, 6'000'000));
  }
}

}  // namespace planted_links_test
}  // namespace kvcachefs

// Links and FIFOs planted where the indexes of peers lie, which is beside the own index, so perhaps in the volume: nothing outside is read, written
// or removed; anything but a plain directory or file stays as it is, and nothing waits for it.
#include <sys/stat.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "store/journal/memory_volume.h"
#include "store/peers/ordinals_file.h"
#include "store/peers/peers_directory.h"
#include "store/peers/testing/peer_node.h"

namespace kvcachefs {
namespace planted_test {

namespace fs = std::filesystem;
using State = PeerStatus::State;
using Plant = std::function<void(const std::string& path)>;

class PlantedPeers : public ::testing::Test {
 protected:
  PlantedPeers() { fs::create_directory(victims_); }
  std::unique_ptr<PeerNode> start(const std::string& name, uint32_t epoch = 1, const PeerNode* before = nullptr) {
    return std::make_unique<PeerNode>(PeerNode::Where{volume_, volume_, clock_, scratch_.path()}, name, epoch, before);
  }
  void seconds(int count, std::initializer_list<PeerNode*> nodes) {
    for (count *= 4; count > 0; --count) {
      clock_.advance_ns(Peers::kSecondNs / 4);
      for (PeerNode* each : nodes) each->round();
    }
  }
  std::string victim(const std::string& name) const { return victims_ + "/" + name; }
  std::string make_victim() const {
    std::ofstream(victim("file")) << kSecret;
    return victim("file");
  }
  // Everything there, with a hash of its content.
  static std::map<std::string, size_t> all_in(const std::string& directory) {
    std::map<std::string, size_t> all;
    for (const auto& entry : fs::recursive_directory_iterator(directory)) {
      std::ifstream file(entry.is_regular_file() ? entry.path().string() : "/dev/null");
      all[entry.path()] = std::hash<std::string>()({std::istreambuf_iterator<char>(file), {}});
    }
    return all;
  }
  std::vector<std::pair<const char*, Plant>> plants_for_file() const {
    return {{"a link", [this](const std::string& path) { fs::create_symlink(make_victim(), path); }},
            {"a link to nothing", [this](const std::string& path) { fs::create_symlink(victim("absent"), path); }},
            {"another name of a file", [this](const std::string& path) { fs::create_hard_link(make_victim(), path); }},
            {"a FIFO", [](const std::string& path) { ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0); }},
            {"a directory", [](const std::string& path) { ASSERT_TRUE(fs::create_directory(path)); }}};
  }
  std::vector<std::pair<const char*, Plant>> plants_for_directory() const {
    return {{"a link", [this](const std::string& path) { fs::create_directory_symlink(victims_, path); }},
            {"a link to nothing", [this](const std::string& path) { fs::create_symlink(victim("absent"), path); }},
            {"a FIFO", [](const std::string& path) { ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0); }},
            {"a file", [](const std::string& path) { std::ofstream(path) << "x"; }}};
  }
  std::unique_ptr<PeerNode> start_with_file(const std::string& name) {
    auto node = start(name);
    node->make_file("x");
    seconds(1, {node.get()});
    return node;
  }
  // Makes this directory the only thing that a node keeps of its peers.
  void begin_anew(const std::string& directory) const {
    fs::remove_all(scratch_.path(directory.substr(0, directory.find('/'))));
    fs::create_directories(scratch_.path(directory));
  }
  // Directories like those of old loads: an empty one, one with an index in it, one of another program.
  void fill_victims(const std::string& below = {}) const {
    const std::string at = victims_ + below;
    fs::create_directories(at + "/0");
    fs::create_directories(at + "/7");
    index_test::open_index(at + "/8", Index::Found::kFresh);
    std::ofstream(at + "/7/thesis") << kSecret;
    std::ofstream(at + "/own") << kSecret;
  }

  static constexpr const char* kSecret = "root's own";
  std::shared_ptr<MemoryVolume> volume_ = std::make_shared<MemoryVolume>();
  ManualClock clock_{1000 * Peers::kSecondNs};
  index_test::ScratchDirectory scratch_{index_test::ScratchDirectory::kInMemory};
  const std::string victims_ = scratch_.path("victims");
};

TEST_F(PlantedPeers, NumbersAreReadFromAPlainFileOnly) {
  const std::string path = scratch_.path(".ordinals");
  for (const auto& [what, plant] : plants_for_file()) {
    SCOPED_TRACE(what);
    plant(path);
    std::ofstream(victim("file")) << encode_ordinals({{"evil", 7}});
    const auto read = read_ordinals(path);
    ASSERT_FALSE(read);
    EXPECT_NE(read.error().message.find(path), std::string::npos) << read.error().message;
    fs::remove(path);
  }
}

TEST_F(PlantedPeers, NumbersAreWrittenToAPlainFileOnly) {
  const std::string path = scratch_.path(".ordinals");
  for (const std::string& place : {path + ".tmp", path})
    for (const auto& [what, plant] : plants_for_file()) {
      SCOPED_TRACE(place + ": " + what);
      plant(place);
      const auto before = all_in(scratch_.path());
      const Status written = write_ordinals(path, {{"b", 7}});
      ASSERT_FALSE(written);
      EXPECT_NE(written.error().message.find(place), std::string::npos) << written.error().message;
      EXPECT_EQ(all_in(scratch_.path()), before);
      fs::remove(place);
      EXPECT_TRUE(write_ordinals(path, {{"b", 7}}));
      fs::remove(path);
    }
  std::ofstream(path + ".tmp") << std::string(10'000, 'x');  // of a daemon that was killed
  EXPECT_TRUE(write_ordinals(path, {{"b", 7}}));
  EXPECT_EQ(read_ordinals(path).value_or(Ordinals()), (Ordinals{{"b", 7}}));
}

TEST_F(PlantedPeers, WhereNumbersCannotBeKeptThePeersAreFollowedAllTheSame) {
  auto a = start_with_file("a");
  uint32_t epoch = 1;
  for (const char* name : {".ordinals", ".ordinals.tmp"})
    for (const auto& [what, plant] : plants_for_file()) {
      SCOPED_TRACE(std::string(name) + ": " + what);
      begin_anew("b");
      plant(scratch_.path("b/") + name);
      const auto victims = all_in(victims_);
      auto b = start("b", epoch++);
      seconds(2, {a.get(), b.get()});
      EXPECT_EQ(b->status_of("a").value().state, State::kLive);
      EXPECT_TRUE(b->names().contains("/x"));
      EXPECT_NE(b->peers().problem().find(scratch_.path("b/") + name), std::string::npos) << b->peers().problem();
      EXPECT_EQ(all_in(victims_), victims);
      b->die();
    }
}

TEST_F(PlantedPeers, WhatIsInThePlaceOfAPeersDirectoryIsNotEntered) {
  auto a = start_with_file("a");
  fill_victims();
  const auto victims = all_in(victims_);
  uint32_t epoch = 1;
  for (const auto& [what, plant] : plants_for_directory()) {
    SCOPED_TRACE(what);
    begin_anew("b");
    plant(scratch_.path("b/a"));
    plant(scratch_.path("b/gone"));  // of a node that the volume does not have
    auto b = start("b", epoch++);
    seconds(2, {a.get(), b.get()});
    const auto status = b->status_of("a").value();
    EXPECT_EQ(status.state, State::kUnreadable);
    EXPECT_NE(status.reason.find(scratch_.path("b/a")), std::string::npos) << status.reason;
    EXPECT_EQ(all_in(victims_), victims);
    EXPECT_TRUE(fs::exists(fs::symlink_status(scratch_.path("b/gone"))));
    fs::remove(scratch_.path("b/a"));
    seconds(70, {a.get(), b.get()});
    EXPECT_TRUE(b->names().contains("/x")) << "it is tried again";
    b->die();
  }
}

TEST_F(PlantedPeers, WhatIsInThePlaceOfAnIndexOfAPeerStaysAndAnotherIsMade) {
  auto a = start_with_file("a");
  fill_victims();
  const auto victims = all_in(victims_);
  uint32_t epoch = 1;
  for (const char* name : {"5", "5.damaged"})
    for (const auto& [what, plant] : plants_for_directory()) {
      SCOPED_TRACE(std::string(name) + ": " + what);
      begin_anew("b/a");
      const std::string place = scratch_.path("b/a/") + name;
      plant(place);
      fs::create_directory(scratch_.path("b/a/3"));
      auto b = start("b", epoch++);
      seconds(2, {a.get(), b.get()});
      EXPECT_EQ(b->status_of("a").value().state, State::kLive) << b->status_of("a").value().reason;
      EXPECT_TRUE(b->names().contains("/x"));
      EXPECT_EQ(all_in(victims_), victims);
      EXPECT_TRUE(fs::exists(fs::symlink_status(place)));
      b->die();
    }
}

TEST_F(PlantedPeers, WhatIsInThePlaceOfTheDirectoryOfAllIsNotEntered) {
  auto a = start_with_file("a");
  fill_victims("/a");
  fill_victims("/gone");
  const auto victims = all_in(victims_);
  uint32_t epoch = 1;
  for (const auto& [what, plant] : plants_for_directory()) {
    SCOPED_TRACE(what);
    fs::remove_all(scratch_.path("b"));
    plant(scratch_.path("b"));
    EXPECT_FALSE(check_peers_directory(scratch_.path("b")));
    auto b = start("b", epoch++);
    seconds(2, {a.get(), b.get()});
    EXPECT_EQ(b->status_of("a").value().state, State::kUnreadable);
    EXPECT_EQ(all_in(victims_), victims);
    b->die();
  }
  fs::remove_all(scratch_.path("b"));
  EXPECT_TRUE(check_peers_directory(scratch_.path("b"))) << "it is made where it is needed";
}

}  // namespace planted_test
}  // namespace kvcachefs

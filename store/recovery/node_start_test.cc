// Which volume and node a start takes, and its epoch: on a volume in memory.
#include "store/recovery/node_start.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <vector>

#include "store/base/boot_id.h"
#include "store/base/units.h"
#include "store/index/testing/fake_index.h"
#include "store/journal/lost_records.h"
#include "store/peers/slot_writer.h"
#include "store/volume/fault_volume.h"
#include "store/volume/test_directory.h"

namespace kvcachefs {
namespace node_start_test {

class NodeStartTest : public ::testing::Test {
 protected:
  void make_file(const std::string& path) {
    const std::byte content[] = {std::byte{1}};
    ASSERT_TRUE(test::write_file_atomically(*sim, path, content));
  }
  FileIdentity settled(const std::string& name = "one") {
    auto identity = node.settle(name, false, false, true);
    EXPECT_TRUE(identity) << identity.error().message;
    return identity ? *identity : FileIdentity{};
  }
  Result<NodeStart::Epoch> begin(const FileIdentity& identity) {
    KVC_ASSIGN(const uint32_t last, node.last_epoch(identity));
    return node.begin_epoch(identity, last, index, JournalForm::kPacked, [this](const auto& attempt) {
      Status status = attempt();
      for (; !status && status.error().code == Code::kNoSpace && reserves > 0; status = attempt()) --reserves;
      return status;
    });
  }

  bool full = false;
  int reserves = 0;
  std::shared_ptr<SimVolume> sim = make_sim_volume();
  std::shared_ptr<Volume> volume = make_fault_volume(sim, [this](const VolumeCall& call) {
    const bool makes = call.kind == VolumeCall::Kind::kCreate || call.kind == VolumeCall::Kind::kMakeDirectory;
    return Fault{.sys_errno = makes && full && reserves > 0 ? ENOSPC : 0};
  });
  HybridClock stamps{system_clock()};
  FakeIndex index;
  NodeStart node{volume, stamps};
};

TEST_F(NodeStartTest, AnEmptyDirectoryBecomesAVolumeAndStaysTheSame) {
  const FileIdentity first = settled(), second = settled();
  EXPECT_EQ(first.node, "one");
  EXPECT_NE(first.volume_uuid, FileIdentity{}.volume_uuid);
  EXPECT_EQ(first.volume_uuid, second.volume_uuid);
}

TEST_F(NodeStartTest, WhereNoneMayBeMadeAnEmptyDirectoryIsRefusedAndLeftAsItIs) {
  const auto refused = node.settle("one", false, false, false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kNotFound);
  EXPECT_NE(refused.error().message.find("create=off"), std::string::npos) << refused.error().message;
  EXPECT_TRUE(sim->all_files().empty());
  const FileIdentity made = settled();
  const auto found = node.settle("one", false, false, false);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->volume_uuid, made.volume_uuid);
}

TEST_F(NodeStartTest, WithoutTheOptionTheNodeHasTheNameOfTheMachine) { EXPECT_FALSE(settled("").node.empty()); }

TEST_F(NodeStartTest, ADirectoryOfAnotherKindIsRefusedAndLeftAsItIs) {
  make_file("photo.jpg");
  const auto files = sim->all_files();
  auto identity = node.settle("one", false, false, true);
  ASSERT_FALSE(identity);
  EXPECT_EQ(identity.error().code, Code::kExists);
  EXPECT_NE(identity.error().message.find("photo.jpg"), std::string::npos) << identity.error().message;
  EXPECT_EQ(sim->all_files(), files);
}

TEST_F(NodeStartTest, TheVolumeOfAnotherNodeIsTakenOverByItsNameOnly) {
  const FileIdentity first = settled("one");
  auto other = node.settle("two", false, false, true);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::kPermission);
  EXPECT_NE(other.error().message.find("-o node=one"), std::string::npos) << other.error().message;
  EXPECT_EQ(settled("one").volume_uuid, first.volume_uuid);
}

TEST_F(NodeStartTest, EachEpochIsANewOneWithAJournal) {
  const FileIdentity identity = settled();
  for (uint32_t number = 1; number <= 3; ++number) {
    auto epoch = begin(identity);
    ASSERT_TRUE(epoch) << epoch.error().message;
    EXPECT_EQ(epoch->number, number);
    ASSERT_NE(epoch->journal, nullptr);
    EXPECT_TRUE(epoch->journal->append(Batch{Stamp{number}, {}}));
  }
  auto journals = list_journals(*sim, identity);
  ASSERT_TRUE(journals);
  ASSERT_EQ(journals->size(), 3u);
  EXPECT_EQ(journals->front().boot_id, boot_id());
}

TEST_F(NodeStartTest, AnEpochThatTheIndexKnowsIsNotGivenOutAgain) {
  class Knows final : public FakeIndex {
    uint64_t highest_extent(uint32_t epoch) const override { return epoch <= 4 ? 7 : 0; }
  } knows;
  const FileIdentity identity = settled();
  auto epoch = node.begin_epoch(identity, 0, knows, JournalForm::kPacked, [](const auto& attempt) { return attempt(); });
  ASSERT_TRUE(epoch) << epoch.error().message;
  EXPECT_EQ(epoch->number, 5u);
}

TEST_F(NodeStartTest, OnAFullVolumeRoomThatIsKeptIsGivenUpForIt) {
  const FileIdentity identity = settled();
  full = true;
  reserves = 2;
  auto epoch = begin(identity);
  ASSERT_TRUE(epoch) << epoch.error().message;
  EXPECT_EQ(epoch->number, 1u);
  EXPECT_EQ(reserves, 0);
}

TEST_F(NodeStartTest, OneOfTheNameOfANodeThatWasTakenOutBeginsBehindIt) {
  const FileIdentity identity = settled();
  ASSERT_TRUE(sim->make_directories("removed/one/41"));
  auto epoch = begin(identity);
  ASSERT_TRUE(epoch) << epoch.error().message;
  EXPECT_EQ(epoch->number, 42u);
  auto next = begin(identity);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->number, 43u);
}

TEST_F(NodeStartTest, AnEpochOfWhichRecordsWereLostIsNotGivenOutAgain) {
  const FileIdentity identity = settled();
  ASSERT_TRUE(note_lost_records(*sim, "one", 3));
  auto epoch = begin(identity);
  ASSERT_TRUE(epoch) << epoch.error().message;
  EXPECT_EQ(epoch->number, 4u);
}

TEST_F(NodeStartTest, WhereThatCannotBeReadTheDirectoriesTell) {
  const FileIdentity identity = settled();
  make_file("nodes/one/LOST");
  auto epoch = begin(identity);
  ASSERT_TRUE(epoch) << epoch.error().message;
  EXPECT_EQ(epoch->number, 1u);
}

// Of the directory nothing is left: the peers would go on with what they have read of it.
TEST_F(NodeStartTest, AnEpochThatAnotherNodeHasReadIsNotGivenOutAgain) {
  const FileIdentity identity = settled();
  const auto tell = [&](const std::string& node, uint32_t epoch, std::vector<Acks::Peer> peers) {
    FileIdentity other = identity;
    other.node = node;
    other.epoch = epoch;
    ASSERT_TRUE(sim->make_directories(epoch_directory(node, epoch)));
    Acks acks;
    acks.peers = std::move(peers);
    AcksWriter writer(sim, other);
    ASSERT_TRUE(writer.write(std::move(acks)));
  };
  tell("two", 3, {{"one", {5, 0, 700}, {}}});
  tell("two", 4, {{"three", {9, 0, 700}, {}}});  // it has begun and reads "one" just now
  tell("three", 9, {{"one", {4, 2, 900}, {}}, {"two", {4, 0, 700}, {}}});
  make_file("nodes/two/5");
  ASSERT_TRUE(sim->make_directories("nodes/four/1"));
  make_file("nodes/four/1/ACKS");
  auto epoch = begin(identity);
  ASSERT_TRUE(epoch) << epoch.error().message;
  EXPECT_EQ(epoch->number, 6u);
}

}  // namespace node_start_test
}  // namespace kvcachefs

#include "store/peers/discovery.h"

#include <sys/resource.h>

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>

#include "store/journal/memory_volume.h"
#include "store/journal/test_records.h"
#include "store/peers/slot_writer.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {
namespace discovery_test {

using Presence = Discovery::Presence;
constexpr int64_t kSecondNs = Discovery::kSecondNs;

FileIdentity identity_of(const std::string& node, uint32_t epoch) {
  FileIdentity identity = test_identity(epoch);
  identity.node = node;
  return identity;
}

class DiscoveryTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(memory_->make_directories("nodes/own/1")); }
  std::unique_ptr<HeadWriter> start(const std::string& node, uint32_t epoch) {
    EXPECT_TRUE(memory_->make_directories(epoch_directory(node, epoch)));
    return std::make_unique<HeadWriter>(memory_, identity_of(node, epoch));
  }
  static Head head(uint64_t offset) {
    Head head;
    head.journal_end = {0, 2, offset};
    return head;
  }
  Discovery make(std::map<std::string, uint32_t> ordinals = {}) { return {volume_, identity_of("own", 0), clock_, std::move(ordinals), {}}; }
  // Lets a second go by, in which these daemons write.
  void second(Discovery& discovery, std::initializer_list<HeadWriter*> alive) {
    for (HeadWriter* each : alive) EXPECT_TRUE(each->write(head(4096)));
    clock_.advance_ns(kSecondNs);
    discovery.look();
  }
  static const Discovery::Node& node(const Discovery& discovery, const std::string& name) { return discovery.nodes().at(name); }

  std::shared_ptr<MemoryVolume> memory_ = std::make_shared<MemoryVolume>();
  bool fails_ = false;
  int64_t takes_ns_ = 0;
  int opens_ = 0;
  ManualClock clock_{1000 * kSecondNs};
  std::shared_ptr<Volume> volume_ = make_fault_volume(memory_, [this](const VolumeCall& call) -> Fault {
    opens_ += call.kind == VolumeCall::Kind::kOpen ? 1 : 0;
    if (call.kind == VolumeCall::Kind::kRead) clock_.advance_ns(takes_ns_);
    return fails_ && call.kind == VolumeCall::Kind::kRead ? Fault{EIO, -1, 0} : Fault{};
  });
};

TEST_F(DiscoveryTest, WhereDescriptorsAreFewNoneIsKept) {
  auto a = start("a", 3);
  ASSERT_TRUE(a->write(head(4096)));
  Discovery discovery = make();
  second(discovery, {a.get()});
  const int before = opens_;
  second(discovery, {a.get()});
  EXPECT_EQ(opens_, before) << "it is kept open";
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit few{64, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  second(discovery, {a.get()});
  second(discovery, {a.get()});
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(opens_, before + 1);
  EXPECT_EQ(node(discovery, "a").presence, Presence::kLive);
}

TEST_F(DiscoveryTest, ANodeLivesWhileItsHeadMoves) {
  auto a = start("a", 3);
  ASSERT_TRUE(a->write(head(4096)));
  Discovery discovery = make();
  discovery.look();
  ASSERT_EQ(discovery.nodes().size(), 1u) << "not this node itself";
  EXPECT_EQ(node(discovery, "a").presence, Presence::kSilent) << "that it is there tells nothing";
  EXPECT_EQ(node(discovery, "a").epoch, 3u);
  second(discovery, {a.get()});
  EXPECT_EQ(node(discovery, "a").presence, Presence::kLive);
  EXPECT_EQ(node(discovery, "a").outlook().written, (JournalPosition{3, 2, 4096}));
  EXPECT_EQ(node(discovery, "a").outlook().epoch, 3u);
  for (int i = 0; i < 2; ++i) second(discovery, {});
  EXPECT_EQ(node(discovery, "a").presence, Presence::kLive);
  second(discovery, {});
  EXPECT_EQ(node(discovery, "a").presence, Presence::kSilent);
  for (int i = 0; i < 196; ++i) second(discovery, {});
  EXPECT_EQ(node(discovery, "a").presence, Presence::kSilent);
  second(discovery, {});
  EXPECT_EQ(node(discovery, "a").presence, Presence::kAbsent);
  second(discovery, {a.get()});
  EXPECT_EQ(node(discovery, "a").presence, Presence::kLive);
}

TEST_F(DiscoveryTest, WhatCannotBeReadWellMakesNobodyAbsent) {
  auto a = start("a", 1);
  Discovery discovery = make();
  for (int i = 0; i < 3; ++i) second(discovery, {a.get()});
  fails_ = true;
  for (int i = 0; i < 500; ++i) second(discovery, {});
  EXPECT_EQ(node(discovery, "a").presence, Presence::kSilent);
  EXPECT_FALSE(node(discovery, "a").problem.empty());
  fails_ = false;
  takes_ns_ = 2 * kSecondNs;
  for (int i = 0; i < 500; ++i) second(discovery, {});
  EXPECT_EQ(node(discovery, "a").presence, Presence::kSilent);
  EXPECT_TRUE(node(discovery, "a").problem.empty());
  takes_ns_ = 0;
  for (int i = 0; i < 199; ++i) second(discovery, {});
  EXPECT_EQ(node(discovery, "a").presence, Presence::kSilent);
  for (int i = 0; i < 2; ++i) second(discovery, {});
  EXPECT_EQ(node(discovery, "a").presence, Presence::kAbsent);
}

TEST_F(DiscoveryTest, AnEpochThatBeginsIsSeenOnceTheOldHeadStands) {
  auto a = start("a", 1);
  Discovery discovery = make();
  for (int i = 0; i < 3; ++i) second(discovery, {a.get()});
  auto again = start("a", 2);
  for (int i = 0; i < 7; ++i) second(discovery, {again.get()});
  EXPECT_EQ(node(discovery, "a").epoch, 2u);
  EXPECT_EQ(node(discovery, "a").presence, Presence::kLive);
  EXPECT_EQ(node(discovery, "a").outlook().written->epoch, 2u);
}

TEST_F(DiscoveryTest, NodesThatComeAndGoAreListed) {
  auto a = start("a", 1);
  Discovery discovery = make({{"gone", 1}, {"a", 7}});
  discovery.look();
  EXPECT_EQ(node(discovery, "a").ordinal, 7u);
  auto b = start("b", 1);
  memory_->put("nodes/a-file", {});
  ASSERT_TRUE(memory_->make_directories("nodes/.hidden"));
  for (int i = 0; i < 5; ++i) second(discovery, {a.get(), b.get()});
  ASSERT_EQ(discovery.nodes().size(), 2u);
  EXPECT_EQ(node(discovery, "b").ordinal, 1u) << "of one that the volume does not have any more";
  EXPECT_EQ(discovery.ordinals(), (std::map<std::string, uint32_t>{{"a", 7}, {"b", 1}}));
  for (const char* path : {"nodes/b/1/HEAD"}) ASSERT_TRUE(memory_->remove_file(path));
  for (const char* path : {"nodes/b/1", "nodes/b"}) ASSERT_TRUE(memory_->remove_directory(path));
  auto c = start("c", 1);
  for (int i = 0; i < 6; ++i) second(discovery, {a.get(), c.get()});
  EXPECT_FALSE(discovery.nodes().contains("b"));
  EXPECT_EQ(node(discovery, "c").ordinal, 2u) << "ids of b may be known as long as this mount lasts";
}

TEST_F(DiscoveryTest, ANodeWithoutAHeadIsAbsentInTheEnd) {
  ASSERT_TRUE(memory_->make_directories("nodes/a/1"));
  Discovery discovery = make();
  for (int i = 0; i < 10; ++i) second(discovery, {});
  EXPECT_EQ(node(discovery, "a").presence, Presence::kSilent);
  EXPECT_NE(node(discovery, "a").problem, "");
  EXPECT_FALSE(node(discovery, "a").outlook().written);
  for (int i = 0; i < 200; ++i) second(discovery, {});
  EXPECT_EQ(node(discovery, "a").presence, Presence::kAbsent);
}

TEST_F(DiscoveryTest, MoreNodesThanThereAreOrdinalsAreLeftOut) {
  for (uint32_t i = 0; i < Discovery::kLastOrdinal + 2; ++i) ASSERT_TRUE(memory_->make_directories("nodes/n" + std::to_string(1000 + i)));
  Discovery discovery = make();
  discovery.look();
  EXPECT_EQ(discovery.ordinals().size(), Discovery::kLastOrdinal);
  EXPECT_EQ(node(discovery, "n1252").ordinal, 0u);
  EXPECT_NE(node(discovery, "n1252").problem, "");
  EXPECT_EQ(node(discovery, "n1251").ordinal, Discovery::kLastOrdinal);
}

// A write that fails half-way damages only the slot it was meant for, however often it is retried.
TEST_F(DiscoveryTest, OneSlotIsWholeWhateverFails) {
  auto a = start("a", 1);
  ASSERT_TRUE(a->write(head(1)));
  ASSERT_TRUE(a->write(head(2)));
  memory_->writes_until_full = 0;
  for (uint64_t i = 3; i < 6; ++i) {
    EXPECT_FALSE(a->write(head(i)));
    const auto read = decode_head(identity_of("a", 1), *memory_->files().at("nodes/a/1/HEAD"));
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->journal_end.offset, 2u);
  }
  memory_->writes_until_full = -1;
  ASSERT_TRUE(a->write(head(9)));
  EXPECT_EQ(decode_head(identity_of("a", 1), *memory_->files().at("nodes/a/1/HEAD"))->journal_end.offset, 9u);
  EXPECT_EQ(a->counter(), 3u);
}

TEST_F(DiscoveryTest, AFileThatWasHalfMadeIsMadeWhole) {
  auto a = start("a", 1);
  memory_->writes_until_full = 1;
  EXPECT_FALSE(a->write(head(1)));
  memory_->writes_until_full = -1;
  a = std::make_unique<HeadWriter>(memory_, identity_of("a", 1));
  ASSERT_TRUE(a->write(head(2)));
  const Bytes& file = *memory_->files().at("nodes/a/1/HEAD");
  EXPECT_EQ(file.size(), 2 * kHeadSlotBytes);
  EXPECT_EQ(decode_head(identity_of("a", 1), file)->counter, 1u);
}

TEST_F(DiscoveryTest, AcksAreWrittenInTheSameWay) {
  ASSERT_TRUE(memory_->make_directories("nodes/a/1"));
  AcksWriter writer(memory_, identity_of("a", 1));
  Acks acks;
  acks.peers = {{"own", {1, 2, 3}, {ObjectId::make(0, 1, 5)}}};
  for (uint64_t i = 1; i < 4; ++i) {
    acks.peers[0].applied.offset = i;
    ASSERT_TRUE(writer.write(acks));
    const auto read = decode_acks(identity_of("a", 1), *memory_->files().at("nodes/a/1/ACKS"));
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->peers, acks.peers);
    EXPECT_EQ(read->counter, i);
  }
}

}  // namespace discovery_test
}  // namespace kvcachefs

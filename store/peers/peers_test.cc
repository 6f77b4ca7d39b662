#include "store/peers/peers.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "store/base/boot_id.h"
#include "store/journal/memory_volume.h"
#include "store/peers/slot_reader.h"
#include "store/peers/part_size.h"
#include "store/peers/testing/peer_node.h"
#include "store/volume/fault_volume.h"
#include "store/volume/test_directory.h"

namespace kvcachefs {
namespace peers_test {

using State = PeerStatus::State;
using Paths = std::set<std::string>;
constexpr int64_t kSecondNs = Peers::kSecondNs;

class PeersTest : public ::testing::Test {
 protected:
  std::unique_ptr<PeerNode> start(const std::string& name, uint32_t epoch = 1, const PeerNode* before = nullptr,
                                  JournalForm form = JournalForm::kPacked) {
    return std::make_unique<PeerNode>(PeerNode::Where{memory_, volume_, clock_, scratch_.path()}, name, epoch, before, form);
  }
  // Lets a quarter of a second go by so many times; in each these daemons do what is due.
  void quarters(int count, std::initializer_list<PeerNode*> nodes) {
    for (; count > 0; --count) {
      clock_.advance_ns(kSecondNs / 4);
      for (PeerNode* each : nodes) each->round();
    }
  }
  void seconds(int count, std::initializer_list<PeerNode*> nodes) { quarters(4 * count, nodes); }
  static State state(PeerNode& node, const std::string& peer) { return node.status_of(peer).value().state; }
  static uint32_t ordinal(PeerNode& node, const std::string& peer) { return node.status_of(peer).value().ordinal; }
  void remove_tree(const std::string& directory) {
    std::erase_if(memory_->files(), [&](const auto& each) { return each.first.starts_with(directory + "/"); });
    remove_directories(directory);
  }
  void remove_directories(const std::string& directory) {
    const auto entries = memory_->list(directory);
    ASSERT_TRUE(entries);
    for (const DirectoryEntry& entry : *entries) remove_directories(directory + "/" + entry.name);
    ASSERT_TRUE(memory_->remove_directory(directory));
  }
  // Takes so many turns, in which each batch answers the other's last one. Returns the names.
  static Paths answer_each_other(PeerNode& a, PeerNode& b, const std::string& prefix) {
    Paths made;
    for (int turn = 0; turn < 60; ++turn) {
      PeerNode& says = turn % 2 == 0 ? a : b;
      const std::string name = prefix + std::to_string(turn);
      says.say({SeenRecord{turn % 2 == 0 ? "b" : "a", (turn % 2 == 0 ? b : a).end()}});
      says.make_file(name);
      made.insert("/" + name);
    }
    return made;
  }
  // nullopt: not answered yet; else the answer.
  std::shared_ptr<std::optional<Status>> refresh(PeerNode& node) {
    auto answer = std::make_shared<std::optional<Status>>();
    node.peers().refresh([answer](Status status) { *answer = std::move(status); });
    return answer;
  }

  std::shared_ptr<MemoryVolume> memory_ = std::make_shared<MemoryVolume>();
  std::function<Fault(const VolumeCall&)> fault_;
  std::shared_ptr<Volume> volume_ =
      make_fault_volume(memory_, [this](const VolumeCall& call) -> Fault { return fault_ ? fault_(call) : Fault{}; });
  ManualClock clock_{1000 * kSecondNs};
  int next_file_ = 0;
  index_test::ScratchDirectory scratch_{index_test::ScratchDirectory::kInMemory};
};

TEST_F(PeersTest, TwoNodesSeeEachOthersNames) {
  auto a = start("a"), b = start("b");
  a->make_file("of-a");
  const ObjectId both = b->make_directory("both");
  b->make(both, "x", S_IFREG | 0644);
  a->make(a->make_directory("both"), "y", S_IFREG | 0644);
  seconds(3, {a.get(), b.get()});
  const Paths all = {"/of-a", "/both", "/both/x", "/both/y"};
  EXPECT_EQ(a->paths(), all);
  EXPECT_EQ(b->paths(), all);
  EXPECT_EQ(state(*a, "b"), State::kLive);
  EXPECT_EQ(a->status_of("b")->reason, "");
  EXPECT_EQ(a->status_of("b")->applied, b->end());
  EXPECT_EQ(a->status_of("b")->objects, 1u) << "files";
  EXPECT_EQ(a->status_of("b")->physical_bytes, 4096u);
  EXPECT_EQ(a->status_of("b")->host, b->status_of("a")->host);
  EXPECT_LE(a->status_of("b")->lag_ms, 1000);
  EXPECT_TRUE(a->peers().has_peers());
  EXPECT_EQ(a->peers().problem(), "");
  b->make_file("later");
  quarters(1, {a.get()});
  EXPECT_TRUE(a->paths().contains("/later")) << "a quarter of a second is enough";
  EXPECT_EQ(a->replaced.at(ordinal(*a, "b")), 1);
  EXPECT_GE(a->applied.at(ordinal(*a, "b")), 1);
  EXPECT_EQ(a->applied_up_to, b->end()) << "is told while it is applied";
  EXPECT_EQ(a->peers().position_of(ordinal(*a, "b")), b->end());
}

TEST_F(PeersTest, OfThreeNodesOneRemovesWhatAnotherHas) {
  auto a = start("a"), b = start("b"), c = start("c");
  a->make_file("x");
  seconds(2, {a.get(), b.get(), c.get()});
  EXPECT_EQ(c->paths(), Paths{"/x"});
  std::vector<Record> records = *b->view().statements_of_removal(kRootId, "x");
  ASSERT_EQ(records.size(), 1u);
  b->say(std::move(records));
  EXPECT_TRUE(b->paths().empty());
  quarters(2, {a.get(), b.get(), c.get()});
  EXPECT_TRUE(a->paths().empty());
  EXPECT_TRUE(c->paths().empty()) << "though its owner has not answered";
}

TEST_F(PeersTest, ANodeThatIsAloneHasNobody) {
  auto a = start("a");
  a->make_file("x");
  seconds(6, {a.get()});
  EXPECT_FALSE(a->peers().has_peers());
  EXPECT_TRUE(a->peers().status().empty());
  EXPECT_TRUE(a->view().is_alone());
  EXPECT_EQ(a->peers().acknowledged_by_all().position, a->end());
  EXPECT_EQ(a->peers().acknowledged_by_all().by, "");
}

TEST_F(PeersTest, APeerIsFollowedIntoItsNextEpoch) {
  auto a = start("a"), b = start("b");
  b->make_file("x");
  seconds(2, {a.get(), b.get()});
  b->make_file("y");
  b->die();
  auto again = start("b", 2, b.get());
  again->make_file("z");
  seconds(8, {a.get(), again.get()});
  EXPECT_EQ(a->paths(), (Paths{"/x", "/y", "/z"}));
  EXPECT_EQ(a->status_of("b")->epoch, 2u);
  EXPECT_EQ(state(*a, "b"), State::kLive);
  EXPECT_EQ(a->status_of("b")->reloads, 0u);
}

TEST_F(PeersTest, AnEpochWithoutAJournalIsNoReasonToLoadAnew) {
  auto a = start("a"), b = start("b");
  b->make_file("x");
  seconds(2, {a.get(), b.get()});
  b->die();
  ASSERT_TRUE(memory_->make_directories("nodes/b/2/journal"));  // a daemon that starts, and reads the volume first
  seconds(20, {a.get()});
  EXPECT_EQ(a->paths(), Paths{"/x"});
  EXPECT_EQ(a->status_of("b")->epoch, 2u);
  EXPECT_EQ(a->status_of("b")->reloads, 0u);
  auto again = start("b", 2, b.get());
  again->make_file("y");
  seconds(8, {a.get(), again.get()});
  EXPECT_EQ(a->paths(), (Paths{"/x", "/y"}));
}

// The thread of the rounds waits for the difference to now, which is to be a number.
TEST_F(PeersTest, WhileOthersAreToBeLoadedTheNextRoundIsDueNow) {
  std::vector<std::unique_ptr<PeerNode>> others;
  for (const char* name : {"b", "c", "d", "e"}) {
    others.push_back(start(name));
    others.back()->make_file(name);
  }
  auto a = start("a");
  for (int loaded = 1; loaded < 4; ++loaded) EXPECT_EQ(a->peers().round(), clock_.monotonic_ns()) << "behind load " << loaded;
  a->round();
  EXPECT_EQ(a->paths(), (Paths{"/b", "/c", "/d", "/e"}));
}

TEST_F(PeersTest, WhatAPeerTakesBackIsLoadedAnew) {
  auto a = start("a"), b = start("b");
  const JournalPosition end = b->make_file("x");
  auto second = start("b", 2, b.get());
  b->make_file("late");  // by a daemon that had lost the node
  a->round();
  seconds(1, {a.get(), b.get()});
  second->say({EndsRecord{end, false}});
  second->make_file("y");
  seconds(8, {a.get(), second.get()});
  EXPECT_EQ(a->paths(), (Paths{"/x", "/y"}));
  EXPECT_EQ(state(*a, "b"), State::kLive);
}

TEST_F(PeersTest, AReloadReplacesThePart) {
  auto a = start("a"), b = start("b");
  const JournalPosition end = b->make_file("x");
  b->make_file("late");
  seconds(70, {a.get(), b.get()});
  EXPECT_EQ(a->paths(), (Paths{"/x", "/late"}));
  b->die();
  auto second = start("b", 2, b.get());
  second->say({EndsRecord{end, false}});
  second->make_file("y");
  seconds(8, {a.get(), second.get()});
  EXPECT_EQ(a->paths(), (Paths{"/x", "/y"}));
  EXPECT_EQ(a->status_of("b")->reloads, 1u);
  EXPECT_EQ(a->replaced.at(ordinal(*a, "b")), 2);
}

// The new index lies beside the one before for a while.
TEST_F(PeersTest, RoomForAnIndexThatIsMadeAnewIsClaimedFirst) {
  auto a = start("a"), b = start("b");
  const JournalPosition end = b->make_file("x");
  b->make_file("late");
  seconds(70, {a.get(), b.get()});
  a->claimed_for_indexes_bytes = 0;
  b->die();
  auto second = start("b", 2, b.get());
  second->say({EndsRecord{end, false}});
  second->make_file("y");
  seconds(8, {a.get(), second.get()});
  EXPECT_EQ(a->paths(), (Paths{"/x", "/late"})) << "it is served meanwhile";
  EXPECT_GT(a->index_growth_bytes, 10'000u) << "and the claim is asked for";
  a->claimed_for_indexes_bytes = UINT64_MAX;
  seconds(1, {a.get(), second.get()});
  EXPECT_EQ(a->paths(), (Paths{"/x", "/y"}));
  // If nobody gives anything up it is not put off for ever.
  a->claimed_for_indexes_bytes = 0;
  const JournalPosition again = second->make_file("z");
  second->make_file("later");
  seconds(120, {a.get(), second.get()});
  second->die();
  auto third = start("b", 3, second.get());
  third->say({EndsRecord{again, false}});
  seconds(8, {a.get(), third.get()});
  EXPECT_EQ(a->paths(), (Paths{"/x", "/y", "/z", "/later"}));
  seconds(22, {a.get(), third.get()});
  EXPECT_EQ(a->paths(), (Paths{"/x", "/y", "/z"}));
  EXPECT_EQ(a->replaced.at(ordinal(*a, "b")), 4) << "what was served went before, to make room";
}

// If no node has anything to give up, nothing waits for it.
TEST_F(PeersTest, AnIndexForWhichThereIsNoRoomIsMadeAnewInPlaceOfTheOneThatIsServed) {
  auto a = start("a"), b = start("b");
  const JournalPosition end = b->make_file("x");
  b->make_file("late");
  seconds(70, {a.get(), b.get()});
  a->claimed_for_indexes_bytes = 0;
  a->may_get_more = false;
  b->die();
  auto second = start("b", 2, b.get());
  second->say({EndsRecord{end, false}});
  seconds(7, {a.get(), second.get()});
  EXPECT_EQ(a->paths(), (Paths{"/x"}));
  second->make_file("y");
  seconds(2, {a.get(), second.get()});
  EXPECT_EQ(a->paths(), (Paths{"/x", "/y"}));
}

TEST_F(PeersTest, OneThatCannotBeReadKeepsNobodyElseBack) {
  auto a = start("a"), b = start("b"), c = start("c");
  b->make_file("of-b");
  fault_ = [](const VolumeCall& call) { return call.path.starts_with("nodes/b") ? Fault{EACCES, -1, 0} : Fault{}; };
  seconds(3, {a.get(), c.get()});
  c->make_file("of-c");
  seconds(1, {a.get(), c.get()});
  EXPECT_EQ(a->paths(), Paths{"/of-c"});
  EXPECT_EQ(state(*a, "b"), State::kUnreadable);
  EXPECT_NE(a->status_of("b")->reason.find("nodes/b"), std::string::npos) << a->status_of("b")->reason;
  // The directory can be read, its journals cannot.
  fault_ = [](const VolumeCall& call) { return call.path.starts_with("nodes/b/1/journal") ? Fault{EIO, -1, 0} : Fault{}; };
  seconds(30, {a.get(), b.get(), c.get()});
  EXPECT_EQ(state(*a, "b"), State::kUnreadable);
  EXPECT_NE(a->status_of("b")->reason.find("journal"), std::string::npos) << a->status_of("b")->reason;
  const uint64_t before = a->status_of("b")->polls;
  seconds(60, {a.get(), b.get(), c.get()});
  EXPECT_LE(a->status_of("b")->polls, before + 4) << "less and less often";
  EXPECT_EQ(state(*a, "c"), State::kLive);
  fault_ = nullptr;
  seconds(61, {a.get(), b.get(), c.get()});
  EXPECT_EQ(a->paths(), (Paths{"/of-b", "/of-c"}));
  EXPECT_EQ(state(*a, "b"), State::kLive);
  EXPECT_EQ(a->status_of("b")->reason, "");
}

TEST_F(PeersTest, DamageOfOneIsHeldUntilItsNextCheckpoint) {
  auto a = start("a"), b = start("b"), c = start("c");
  b->make_file("x");
  seconds(2, {a.get(), b.get(), c.get()});
  const JournalPosition good = b->end();
  b->make_file("y");
  (*memory_->files().at(journal_path("b", 1, good.seq)))[good.offset + 20] ^= std::byte{1};
  seconds(8, {a.get(), b.get(), c.get()});
  c->make_file("of-c");
  seconds(1, {a.get(), b.get(), c.get()});
  EXPECT_EQ(state(*a, "b"), State::kHeld);
  EXPECT_NE(a->status_of("b")->reason, "");
  EXPECT_EQ(a->paths(), (Paths{"/of-c", "/x"}));
  b->make_checkpoint(1);
  seconds(4, {a.get(), b.get(), c.get()});
  EXPECT_EQ(state(*a, "b"), State::kLive);
  EXPECT_EQ(a->paths(), (Paths{"/of-c", "/x", "/y"}));
}

// A held peer goes on when its checkpoint is seen, though that is loaded in the next round only.
TEST_F(PeersTest, ARefreshWaitsForTheLoadOfTheCheckpointThatEndsAHold) {
  auto a = start("a"), b = start("b");
  b->make_file("x");
  seconds(2, {a.get(), b.get()});
  const JournalPosition good = b->end();
  b->make_file("y");
  (*memory_->files().at(journal_path("b", 1, good.seq)))[good.offset + 20] ^= std::byte{1};
  seconds(8, {a.get(), b.get()});
  ASSERT_EQ(state(*a, "b"), State::kHeld);
  auto answer = refresh(*a);
  a->round();
  ASSERT_TRUE(*answer);
  EXPECT_FALSE(**answer);
  b->make_checkpoint(1);
  b->peers().tell_soon();
  b->round();
  answer = refresh(*a);
  for (int round = 0; round < 4 && !*answer; ++round) quarters(1, {a.get()});
  ASSERT_TRUE(*answer);
  EXPECT_TRUE(**answer) << (*answer)->error().message;
  EXPECT_EQ(a->paths(), (Paths{"/x", "/y"}));
}

// Its daemon, which has just begun, makes that checkpoint within a second or two. One that does not come is waited for no longer.
TEST_F(PeersTest, ARefreshWaitsForACheckpointThatThePeerHasAnnounced) {
  auto a = start("a"), b = start("b");
  b->make_file("x");
  seconds(2, {a.get(), b.get()});
  const JournalPosition end = b->end();
  b->die();
  auto second = start("b", 2, b.get());
  second->say({EndsRecord{end, true}});
  second->make_file("y");
  second->round();
  auto answer = refresh(*a);
  quarters(4, {a.get()});
  EXPECT_EQ(state(*a, "b"), State::kHeld);
  EXPECT_FALSE(*answer) << (*answer)->error().message;
  second->make_checkpoint(1);
  second->peers().tell_soon();
  second->round();
  quarters(8, {a.get(), second.get()});
  ASSERT_TRUE(*answer);
  EXPECT_TRUE(**answer) << (*answer)->error().message;
  EXPECT_EQ(a->paths(), (Paths{"/x", "/y"}));

  second->die();
  auto third = start("b", 3, second.get());
  third->say({EndsRecord{second->end(), true}});
  third->round();
  answer = refresh(*a);
  seconds(12, {a.get(), third.get()});
  ASSERT_TRUE(*answer);
  EXPECT_FALSE(**answer);
  answer = refresh(*a);
  a->round();
  ASSERT_TRUE(*answer) << "once that is known nothing waits";
  EXPECT_FALSE(**answer);
}

TEST_F(PeersTest, ANodeThatIsGoneLeavesTheView) {
  auto a = start("a"), b = start("b"), c = start("c");
  b->make_file("of-b");
  c->make_file("of-c");
  seconds(2, {a.get(), b.get(), c.get()});
  const uint32_t gone = ordinal(*a, "b");
  ASSERT_TRUE(std::filesystem::exists(scratch_.path("a/b")));
  EXPECT_EQ(a->peers().node_of(gone), "b");
  ASSERT_NE(a->peers().extents_of(gone), nullptr);
  remove_tree("nodes/b");
  seconds(6, {a.get(), c.get()});
  EXPECT_EQ(a->paths(), Paths{"/of-c"});
  EXPECT_FALSE(a->status_of("b"));
  EXPECT_EQ(a->peers().extents_of(gone), nullptr);
  EXPECT_EQ(a->peers().node_of(gone), std::nullopt);
  EXPECT_EQ(a->replaced.at(gone), 2);
  EXPECT_FALSE(std::filesystem::exists(scratch_.path("a/b")));
  const auto acks = decode_acks(a->identity(), *memory_->files().at("nodes/a/1/ACKS"));
  ASSERT_TRUE(acks);
  ASSERT_EQ(acks->peers.size(), 2u);
  EXPECT_EQ(acks->peers[0], (Acks::Peer{"b", b->end(), {}})) << "for a start of that name: it is not to begin this epoch again";
  EXPECT_EQ(acks->peers[1].node, "c");
  // Another node of that name is new, and gets the same number.
  auto again = start("b");
  again->make_file("new");
  seconds(7, {a.get(), again.get(), c.get()});
  EXPECT_EQ(a->paths(), (Paths{"/new", "/of-c"}));
  EXPECT_EQ(ordinal(*a, "b"), gone);
}

TEST_F(PeersTest, OrdinalsSurviveARestart) {
  auto a = start("a"), m = start("m"), n = start("ordinals");
  seconds(2, {a.get(), m.get(), n.get()});
  const uint32_t of_m = ordinal(*a, "m"), of_n = ordinal(*a, "ordinals");
  a->die();
  remove_tree("nodes/m");  // one that is gone meanwhile
  auto before = start("b");  // would be the first
  auto again = start("a", 2, a.get());
  again->round();
  EXPECT_EQ(ordinal(*again, "ordinals"), of_n);
  EXPECT_EQ(ordinal(*again, "b"), of_m) << "it is free";
  EXPECT_FALSE(std::filesystem::exists(scratch_.path("a/m")));
  EXPECT_TRUE(std::filesystem::exists(scratch_.path("a/b")));
  again->die();
  const std::string path = scratch_.path("a/.ordinals");
  for (const std::string& text : {std::string("kvcachefs peers 1\n5 b\n"), std::string("\n"), std::string()}) {
    std::ofstream(path, std::ios::trunc) << text;
    auto third = start("a", 3, a.get());
    third->round();
    EXPECT_EQ(ordinal(*third, "b"), 1u);
    EXPECT_EQ(ordinal(*third, "ordinals"), 2u);
    EXPECT_EQ(*read_ordinals(path), (Ordinals{{"b", 1}, {"ordinals", 2}}));
    third->die();
    remove_tree("nodes/a/3");
  }
}

TEST(OrdinalsFile, IsWhatWasWrittenOrNothing) {
  const Ordinals ordinals = {{"a", 7}, {"b", 252}, {"c.d-e_f", 1}};
  const std::string text = encode_ordinals(ordinals);
  EXPECT_EQ(decode_ordinals(text).value_or(Ordinals()), ordinals);
  EXPECT_TRUE(decode_ordinals(encode_ordinals({}))->empty());
  for (size_t at = 0; at < text.size(); ++at) {
    std::string changed = text;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    EXPECT_FALSE(decode_ordinals(changed)) << at;
    EXPECT_FALSE(decode_ordinals(text.substr(0, at))) << at;
  }
  EXPECT_FALSE(decode_ordinals(encode_ordinals({{"a", 1}, {"b", 1}}))) << "no two have one";
  EXPECT_FALSE(decode_ordinals(encode_ordinals({{"a/b", 1}})));
}

TEST_F(PeersTest, WhileNothingCanBeReadNobodyIsSaidToLive) {
  auto a = start("a"), b = start("b");
  seconds(3, {a.get(), b.get()});
  EXPECT_EQ(state(*b, "a"), State::kLive);
  clock_.advance_ns(30 * kSecondNs);  // a read that waits for a server
  EXPECT_EQ(state(*b, "a"), State::kSilent);
  EXPECT_TRUE(b->status_of("a")->reason.contains("for 30 s: the volume does not answer")) << b->status_of("a")->reason;
  seconds(2, {a.get(), b.get()});
  EXPECT_EQ(state(*b, "a"), State::kLive);
  EXPECT_EQ(b->status_of("a")->reason, "");
}

TEST_F(PeersTest, WhereNobodyAsksForAMinutePollsAreRare) {
  auto a = start("a"), b = start("b");
  seconds(3, {a.get(), b.get()});
  const auto polls_in = [&](int count) {
    const uint64_t before = b->status_of("a")->polls;
    for (; count > 0; --count) {
      a->make_file("f" + std::to_string(next_file_++));
      seconds(1, {a.get(), b.get()});
    }
    return b->status_of("a")->polls - before;
  };
  EXPECT_GE(polls_in(10), 38u) << "a minute has not gone by";
  seconds(60, {a.get(), b.get()});
  EXPECT_LE(polls_in(20), 11u);
  EXPECT_EQ(b->status_of("a")->state, State::kLive);
  a->make_file("new");
  auto refreshed = refresh(*b);
  quarters(2, {b.get()});
  EXPECT_TRUE(*refreshed && **refreshed) << "it does not wait for that";
  EXPECT_TRUE(b->paths().contains("/new"));
  ++b->requests;
  seconds(1, {a.get(), b.get()});
  EXPECT_GE(polls_in(5), 20u) << "somebody is here again";
}

// A full node that writes waits until others tell that they have followed.
TEST_F(PeersTest, WhoIsFullAndWritesIsPolledOftenThoughNobodyAsksHere) {
  auto a = start("a"), b = start("b");
  a->physical_bytes = 95 << 20;
  seconds(70, {a.get(), b.get()});
  for (int i = 0; i < 3; ++i) {
    a->make_file(fmt::format("f{}", i));
    seconds(1, {a.get(), b.get()});
  }
  const auto polls = [&] { return b->status_of("a").value().polls; };
  const uint64_t before = polls();
  seconds(5, {a.get(), b.get()});
  EXPECT_GE(polls() - before, 15u);
  seconds(10, {a.get(), b.get()});
  const uint64_t later = polls();
  seconds(8, {a.get(), b.get()});
  EXPECT_LE(polls() - later, 5u) << "it does not write any more";
}

TEST_F(PeersTest, HeadMovesEachSecondAndAcksTellWhatWasApplied) {
  auto a = start("a"), b = start("b");
  a->make_file("x");
  seconds(2, {a.get(), b.get()});
  const auto head = [this] { return *decode_head(test_identity_of("b", 1), *memory_->files().at("nodes/b/1/HEAD")); };
  const auto acks = [this] { return *decode_acks(test_identity_of("b", 1), *memory_->files().at("nodes/b/1/ACKS")); };
  const Head first = head();
  EXPECT_EQ(first.boot_id, boot_id());
  EXPECT_NE(first.host, "");
  for (uint64_t i = 1; i <= 5; ++i) {
    seconds(1, {b.get()});
    EXPECT_EQ(head().counter, first.counter + i);
    EXPECT_EQ(head().instance, first.instance);
  }
  b->make_file("y");
  b->peers().tell_soon();
  b->round();
  EXPECT_EQ(head().counter, first.counter + 6) << "at once, where that is asked for";
  EXPECT_EQ(head().journal_end.offset, b->end().offset);
  EXPECT_EQ(acks().peers, (std::vector<Acks::Peer>{{"a", a->end(), {}}}));
  const uint64_t counter = acks().counter;
  seconds(3, {b.get()});
  EXPECT_EQ(acks().counter, counter) << "nothing changed";
  for (int i = 0; i < 4; ++i) {
    a->make_file("z" + std::to_string(i));
    quarters(1, {b.get()});
  }
  seconds(1, {b.get()});
  EXPECT_LE(acks().counter, counter + 2) << "once a second at most";
  EXPECT_EQ(acks().peers, (std::vector<Acks::Peer>{{"a", a->end(), {}}}));
  // Another life is recognized by its instance.
  b->die();
  auto again = start("b", 2, b.get());
  again->round();
  EXPECT_NE(decode_head(again->identity(), *memory_->files().at("nodes/b/2/HEAD"))->instance, first.instance);
}

TEST_F(PeersTest, AFullVolumeSilencesNobodyAndIsTold) {
  auto a = start("a"), b = start("b");
  seconds(2, {a.get(), b.get()});
  fault_ = [](const VolumeCall& call) {
    return call.kind == VolumeCall::Kind::kWrite && call.path.ends_with("HEAD") ? Fault{EIO, -1, 0} : Fault{};
  };
  seconds(2, {a.get(), b.get()});
  EXPECT_NE(a->peers().problem().find("HEAD"), std::string::npos) << a->peers().problem();
  fault_ = nullptr;
  seconds(2, {a.get(), b.get()});
  EXPECT_EQ(a->peers().problem(), "");
  EXPECT_EQ(state(*a, "b"), State::kLive);
}

TEST_F(PeersTest, WhoLivesIsWaitedForBeforeAnythingIsGivenBack) {
  auto a = start("a"), b = start("b"), c = start("c");
  c->make_file("of-c");
  seconds(3, {a.get(), b.get(), c.get()});
  EXPECT_EQ(a->peers().acknowledged_by_all().position, a->end());
  const JournalPosition before = a->end();
  const JournalPosition removed = a->make_file("x");
  seconds(2, {a.get(), b.get()});
  auto all = a->peers().acknowledged_by_all();
  EXPECT_EQ(all.position, before) << "c has not read it";
  EXPECT_EQ(all.by, "c");
  EXPECT_EQ(all.reason, "");
  b->pinned = {ObjectId::make(0, 1, 5), ObjectId::make(0, 1, 9)};
  c->pinned = {ObjectId::make(0, 1, 7), ObjectId::make(0, 1, 9)};
  seconds(2, {a.get(), b.get(), c.get()});
  all = a->peers().acknowledged_by_all();
  EXPECT_EQ(all.position, removed);
  EXPECT_EQ(all.pinned, (std::vector{ObjectId::make(0, 1, 5), ObjectId::make(0, 1, 7), ObjectId::make(0, 1, 9)}));
  // A node whose HEAD stands is waited for, until it is absent.
  const JournalPosition later = a->make_file("y");
  seconds(100, {a.get(), b.get()});
  EXPECT_EQ(state(*a, "c"), State::kSilent);
  EXPECT_EQ(a->peers().acknowledged_by_all().position, removed);
  EXPECT_TRUE(a->peers().has_peers());
  seconds(110, {a.get(), b.get()});
  EXPECT_EQ(state(*a, "c"), State::kAbsent);
  EXPECT_EQ(a->peers().acknowledged_by_all().position, later);
  EXPECT_TRUE(a->peers().has_peers()) << "b";
  EXPECT_TRUE(a->paths().contains("/of-c")) << "what it has is there all the same";
  // A node that begins anew has not told yet what it has read.
  b->die();
  auto again = start("b", 2, b.get());
  seconds(8, {a.get()});
  all = a->peers().acknowledged_by_all();
  EXPECT_EQ(all.position, JournalPosition{});
  EXPECT_EQ(all.by, "b");
  EXPECT_NE(all.reason, "");
  seconds(8, {a.get(), again.get()});
  EXPECT_EQ(a->peers().acknowledged_by_all().position, later);
}

TEST_F(PeersTest, WhoseDaemonHasEndedReadsNothingAnyMore) {
  auto a = start("a"), b = start("b");
  b->pinned = {ObjectId::make(0, 1, 5)};
  seconds(3, {a.get(), b.get()});
  const JournalPosition before = a->end();
  const JournalPosition removed = a->make_file("x");
  auto all = a->peers().acknowledged_by_all();
  EXPECT_EQ(all.position, before);
  EXPECT_EQ(all.pinned, b->pinned);
  b->die();
  all = a->peers().acknowledged_by_all();
  EXPECT_EQ(all.position, removed);
  EXPECT_EQ(all.read_by_all, before) << "its next life reads on from there";
  EXPECT_TRUE(all.pinned.empty());
  EXPECT_TRUE(all.nodes.empty());
  EXPECT_EQ(all.waits_for(), "");
  auto again = start("b", 2, b.get());
  seconds(1, {a.get()});
  EXPECT_EQ(a->peers().acknowledged_by_all().by, "b") << "and is waited for from its start on";
  EXPECT_EQ(a->peers().acknowledged_by_all().position, JournalPosition{}) << "in this life it has read nothing, which is known before its HEAD is";
  seconds(3, {a.get(), again.get()});
  EXPECT_EQ(a->peers().acknowledged_by_all().position, removed);
  // A lock that cannot be looked at proves nothing.
  again->die();
  const JournalPosition later = a->make_file("y");
  fault_ = [](const VolumeCall& call) { return call.kind == VolumeCall::Kind::kOpen && call.path.ends_with("/LOCK") ? Fault{EIO, -1, 0} : Fault{}; };
  EXPECT_EQ(a->peers().acknowledged_by_all().position, removed);
  fault_ = {};
  EXPECT_EQ(a->peers().acknowledged_by_all().position, later);
}

TEST_F(PeersTest, WhoStandsStillWhileANodeStartsIsWaitedForAllTheSame) {
  auto b = start("b");
  seconds(2, {b.get()});
  auto a = start("a");
  const JournalPosition end = a->make_file("x");
  seconds(30, {a.get()});
  EXPECT_EQ(state(*a, "b"), State::kSilent);
  EXPECT_EQ(a->peers().acknowledged_by_all(60 * kSecondNs).by, "b") << "its LOCK is held";
  seconds(31, {a.get()});
  EXPECT_EQ(a->peers().acknowledged_by_all(60 * kSecondNs).position, end);
}

TEST_F(PeersTest, OnANetworkVolumeAFreeLockAloneProvesNothing) {
  memory_->set_network(true);
  auto a = start("a"), b = start("b");
  seconds(3, {a.get(), b.get()});
  const JournalPosition before = a->end();
  const JournalPosition removed = a->make_file("x");
  b->die();
  seconds(4, {a.get()});
  EXPECT_EQ(a->peers().acknowledged_by_all().position, before);
  seconds(3, {a.get()});
  EXPECT_EQ(a->peers().acknowledged_by_all().position, removed) << "its HEAD has stood, too";
}

TEST_F(PeersTest, AfterARefreshAllIsThereThatWasPublished) {
  for (const JournalForm form : {JournalForm::kPacked, JournalForm::kBlocks}) {
    const std::string suffix = form == JournalForm::kBlocks ? "-blocks" : "-packed";
    auto a = start("a" + suffix, 1, nullptr, form), b = start("b" + suffix, 1, nullptr, form);
    seconds(2, {a.get(), b.get()});
    b->make_file("x" + suffix);
    auto answer = refresh(*a);
    EXPECT_FALSE(*answer) << "by the thread of round() only";
    a->round();
    ASSERT_TRUE(*answer && **answer);
    EXPECT_TRUE(a->paths().contains("/x" + suffix));
    for (int i = 0; i < 60; ++i) b->make_file(std::to_string(i) + suffix);  // in other files, which no HEAD tells of
    answer = refresh(*a);
    a->round();
    ASSERT_TRUE(*answer && **answer);
    EXPECT_EQ(a->status_of("b" + suffix)->applied, b->end());
    auto again = start("b" + suffix, 2, b.get(), form);  // writes no HEAD
    again->make_file("again" + suffix);
    auto c = start("c" + suffix, 1, nullptr, form);
    c->make_file("c" + suffix);
    answer = refresh(*a);
    a->round();
    ASSERT_TRUE(*answer && **answer);
    EXPECT_TRUE(a->paths().contains("/again" + suffix));
    EXPECT_TRUE(a->paths().contains("/c" + suffix));
    for (const auto& node : {"a", "b", "c"}) remove_tree("nodes/" + (node + suffix));
  }
}

TEST_F(PeersTest, ARefreshSaysWhatKeptItFromThat) {
  auto a = start("a"), b = start("b");
  seconds(2, {a.get(), b.get()});
  fault_ = [](const VolumeCall& call) {
    return call.kind == VolumeCall::Kind::kRead && call.path.find("journal") != std::string::npos ? Fault{EIO, -1, 0} : Fault{};
  };
  auto answer = refresh(*a);
  a->round();
  ASSERT_TRUE(*answer);
  ASSERT_FALSE(**answer);
  EXPECT_NE((*answer)->error().message.find("peer b"), std::string::npos) << (*answer)->error().message;
  fault_ = nullptr;
  answer = refresh(*a);
  a->round();
  ASSERT_TRUE(*answer);
  EXPECT_TRUE(**answer);
  answer = refresh(*a);
  const auto other = refresh(*a);
  a->peers().end_soon();
  a->peers().round();
  EXPECT_FALSE(*answer);
  a->peers().stop();
  ASSERT_TRUE(*answer && *other);
  EXPECT_EQ((*answer)->error().code, Code::kCanceled);
  answer = refresh(*a);
  ASSERT_TRUE(*answer);
  EXPECT_EQ((*answer)->error().code, Code::kCanceled);
}

TEST_F(PeersTest, WhatCannotBeShownNowIsNotLost) {
  auto a = start("a"), b = start("b");
  b->make_file("x");
  a->refuses = true;
  quarters(3, {b.get()});
  for (int i = 0; i < 10; ++i) a->peers().round();
  EXPECT_TRUE(a->paths().empty());
  a->refuses = false;
  seconds(1, {a.get(), b.get()});
  EXPECT_EQ(a->paths(), Paths{"/x"});
  a->refuses = true;
  b->make_file("y");
  seconds(1, {a.get(), b.get()});
  EXPECT_EQ(a->paths(), Paths{"/x"});
  a->refuses = false;
  seconds(3, {a.get(), b.get()});
  EXPECT_EQ(a->paths(), (Paths{"/x", "/y"}));
}

// A load that takes minutes does not delay other peers.
TEST_F(PeersTest, NobodyWaitsWhileOneIsLoaded) {
  auto a = start("a"), c = start("c");
  seconds(3, {a.get(), c.get()});
  auto b = start("b");
  for (int i = 0; i < 5000; ++i) b->make_file(std::to_string(i));
  b->make_checkpoint(1);
  remove_tree("nodes/b/1/journal");
  auto again = start("b", 2, b.get());
  const auto counter = [this] { return decode_head(test_identity_of("a", 1), *memory_->files().at("nodes/a/1/HEAD"))->counter; };
  int64_t waited_ns = 0;
  uint64_t counter_before = 0, counter_after = 0;
  fault_ = [&](const VolumeCall& call) {
    if (call.kind == VolumeCall::Kind::kRead && call.path.starts_with("nodes/b/1/checkpoint")) {
      if (waited_ns == 0) {
        counter_before = counter();
        c->make_file("meanwhile");
      }
      clock_.advance_ns(20 * kSecondNs);
      waited_ns += 20 * kSecondNs;
    }
    return Fault{};
  };
  bool seen = false;
  a->on_replaced = [&](uint32_t of) {
    if (a->peers().node_of(of) != "b") return;
    seen = a->paths().contains("/meanwhile");
    counter_after = counter();
  };
  seconds(6, {a.get()});
  ASSERT_GE(waited_ns, 40 * kSecondNs) << "the load takes long";
  EXPECT_GT(counter_after, counter_before);
  EXPECT_TRUE(seen) << "before the load ended";
  EXPECT_EQ(a->paths().size(), 5001u);
}

TEST_F(PeersTest, ALoadIsGivenUpAtTheEnd) {
  auto a = start("a"), b = start("b");
  for (int i = 0; i < 5000; ++i) b->make_file(std::to_string(i));
  auto again = start("b", 2, b.get());
  a->follow();
  fault_ = [&](const VolumeCall& call) {
    if (call.kind == VolumeCall::Kind::kRead && call.path.starts_with("nodes/b/1/journal/0")) a->peers().end_soon();
    return Fault{};
  };
  a->peers().round();
  EXPECT_EQ(state(*a, "b"), State::kLoading);
  a->peers().stop();
  EXPECT_TRUE(a->paths().empty());
  fault_ = nullptr;
  a->die();
  a->round();
  EXPECT_EQ(a->paths().size(), 5000u);
}

// Nothing that was applied is read again.
TEST_F(PeersTest, WhatWasAppliedIsThereAfterACleanEnd) {
  auto a = start("a"), b = start("b");
  b->make_file("x");
  seconds(2, {a.get(), b.get()});
  b->make_file("y");  // within what a commit every minute would leave uncommitted
  seconds(1, {a.get(), b.get()});
  const JournalPosition applied = b->end();
  a->peers().end_soon();
  a->peers().stop();
  a->die();
  {
    Index::Found found{};
    std::string why;
    const auto index = Index::open(scratch_.path("a/b/1"), {test_identity().volume_uuid, "b"}, &found, &why);
    ASSERT_TRUE(index) << index.error().message;
    EXPECT_EQ((*index)->position(), applied);
  }
  b->make_file("z");
  seconds(1, {a.get(), b.get()});
  EXPECT_EQ(a->paths(), (Paths{"/x", "/y", "/z"}));
}

// Applied changes are on the disk after the next commit: before it their growth is claimed, if there is room to claim.
TEST_F(PeersTest, WhatAnIndexWillGrowByIsToldAndWaitsForItsClaim) {
  auto a = start("a"), b = start("b");
  b->make_file("x");
  seconds(2, {a.get(), b.get()});
  b->make_file("y");
  seconds(1, {a.get(), b.get()});
  EXPECT_GT(a->index_growth_bytes, 0u);
  seconds(54, {a.get(), b.get()});
  a->claimed_for_indexes_bytes = 0;
  seconds(100, {a.get(), b.get()});
  EXPECT_GT(a->index_growth_bytes, 0u) << "a minute is over";
  a->claimed_for_indexes_bytes = UINT64_MAX;
  seconds(1, {a.get(), b.get()});
  EXPECT_EQ(a->index_growth_bytes, 0u);
}

// The growth is in memory: it is bounded.
TEST_F(PeersTest, AVeryLargeGrowthDoesNotWaitForItsClaim) {
  auto a = start("a"), b = start("b");
  const auto all = {a.get(), b.get()};
  seconds(2, all);
  a->claimed_for_indexes_bytes = 0;
  uint64_t most = 0;
  for (uint64_t number = 0; number < 900; ++number) {
    PutRecord put = put_of(ObjectId::make(0, 1, 1000 + number), S_IFREG | 0644);
    for (char name = 'a'; name < 'c'; ++name) put.object.attributes.xattrs.push_back({std::string("user.") + name, std::string(60'000, 'x')});
    b->say({put, NameRecord{kRootId, "f" + std::to_string(number), put.object.id}});
    if (number % 30 != 29) continue;
    seconds(1, all);
    most = std::max(most, a->index_growth_bytes);
  }
  EXPECT_GT(most, 50u << 20);
  EXPECT_LT(most, 80u << 20);
  EXPECT_LT(a->index_growth_bytes, 60u << 20);
  seconds(2, all);
  EXPECT_EQ(a->paths().size(), 900u);
}

// Calls may have taken it since it was claimed.
TEST_F(PeersTest, ACommitReservesWhatItTakes) {
  auto a = start("a"), b = start("b");
  b->make_file("x");
  seconds(2, {a.get(), b.get()});
  b->make_file("y");
  a->room_for_copies_bytes = 0;
  seconds(100, {a.get(), b.get()});
  EXPECT_GT(a->index_growth_bytes, 0u) << "a minute is over";
  a->room_for_copies_bytes = UINT64_MAX;
  seconds(1, {a.get(), b.get()});
  EXPECT_EQ(a->index_growth_bytes, 0u);
}

TEST_F(PeersTest, WhatHasNoClaimIsNotCommittedAtTheEnd) {
  auto a = start("a"), b = start("b");
  b->make_file("x");
  seconds(70, {a.get(), b.get()});
  const uint64_t before = allocated_below(scratch_.path("a/b"));
  PutRecord put = put_of(ObjectId::make(0, 1, 1000), S_IFREG | 0644);
  for (char name = 'a'; name < 'd'; ++name) put.object.attributes.xattrs.push_back({std::string("user.") + name, std::string(60'000, 'x')});
  b->say({put, NameRecord{kRootId, "large", put.object.id}});
  seconds(1, {a.get(), b.get()});
  a->claimed_for_indexes_bytes = 0;
  a->peers().stop();
  EXPECT_EQ(allocated_below(scratch_.path("a/b")), before);
  a->die();
  seconds(2, {a.get(), b.get()});
  EXPECT_EQ(a->paths(), (Paths{"/large", "/x"}));
}

// Each node does that for each other.
TEST_F(PeersTest, WhatIsSetAsideForIndexesIsASmallPartOfTheCapacity) {
  auto a = start("a"), b = start("b"), c = start("c");
  a->capacity_for_indexes_bytes = 48 << 20;
  constexpr uint64_t kMost = (48 << 20) / 16 / 3;  // of each
  const auto all = {a.get(), b.get(), c.get()};
  seconds(2, all);
  const auto make_large = [](PeerNode& node, uint64_t number) {
    PutRecord put = put_of(ObjectId::make(0, node.identity().epoch, 1000 + number), S_IFREG | 0644);
    put.object.attributes.xattrs.push_back({"user.a", std::string(20'000, 'x')});
    node.say({put, NameRecord{kRootId, node.identity().node + std::to_string(number), put.object.id}});
  };
  uint64_t most = 0;
  for (uint64_t number = 0; number < 300; ++number) {
    make_large(*b, number);
    if (number % 4 == 0) make_large(*c, number);
    if (number % 5 == 4) {
      seconds(1, all);
      most = std::max(most, a->index_growth_bytes);
    }
  }
  EXPECT_GT(most, 0u);
  EXPECT_LE(most, kMost) << "10 MB of rows came within that minute";
  // Less where a node lacks room.
  a->is_short = true;
  seconds(1, all);
  most = 0;
  for (uint64_t number = 300; number < 350; ++number) {
    make_large(*b, number);
    seconds(1, all);
    most = std::max(most, a->index_growth_bytes);
  }
  EXPECT_LE(most, kMost / 4);
  seconds(3, all);
  EXPECT_EQ(a->paths().size(), 350u + 75u);
}

// The claimed bytes are enough for the smaller one.
TEST_F(PeersTest, AnIndexForWhichThereIsAClaimIsCommittedBesideOneThatWaits) {
  auto a = start("a"), b = start("b"), c = start("c");
  const auto all = {a.get(), b.get(), c.get()};
  seconds(2, all);
  PutRecord put = put_of(ObjectId::make(0, 1, 1000), S_IFREG | 0644);
  for (char name = 'a'; name < 'd'; ++name) put.object.attributes.xattrs.push_back({std::string("user.") + name, std::string(60'000, 'x')});
  b->say({put, NameRecord{kRootId, "large", put.object.id}});
  c->make_file("small");
  seconds(3, all);
  const uint64_t both = a->index_growth_bytes;
  EXPECT_GT(both, 150'000u);
  a->claimed_for_indexes_bytes = 100'000;
  a->capacity_for_indexes_bytes = 1;  // nothing is to be set aside
  seconds(1, all);
  EXPECT_LT(a->index_growth_bytes, both);
  EXPECT_GT(a->index_growth_bytes, 150'000u);
  a->claimed_for_indexes_bytes = UINT64_MAX;
  seconds(1, all);
  EXPECT_EQ(a->index_growth_bytes, 0u);
}

TEST_F(PeersTest, WhatIsUnusedOfTheIndexesIsGivenBackWhereRoomIsLacking) {
  auto a = start("a"), b = start("b");
  a->capacity_for_indexes_bytes = 32 << 20;
  seconds(2, {a.get(), b.get()});
  std::vector<ObjectId> made;
  for (uint64_t number = 0; number < 100; ++number) {
    PutRecord put = put_of(ObjectId::make(0, 1, 1000 + number), S_IFREG | 0644);
    put.object.attributes.xattrs.push_back({"user.a", std::string(60'000, 'x')});
    b->say({put, NameRecord{kRootId, std::to_string(number), put.object.id}});
    made.push_back(put.object.id);
  }
  seconds(5, {a.get(), b.get()});
  for (uint64_t number = 1; number < 100; ++number) b->say({UnnameRecord{kRootId, std::to_string(number), made[number]}});
  seconds(5, {a.get(), b.get()});
  const auto index_bytes = [this] { return allocated_below(scratch_.path("a/b")); };
  EXPECT_GT(index_bytes(), 5u << 20) << "it is used again, where nobody lacks room";
  a->is_short = true;
  a->room_for_copies_bytes = 10'000;
  seconds(3, {a.get(), b.get()});
  EXPECT_GT(index_bytes(), 5u << 20) << "it is written anew beside what is there";
  a->room_for_copies_bytes = kMiB;
  seconds(12, {a.get(), b.get()});
  EXPECT_LT(index_bytes(), 1u << 20);
  EXPECT_EQ(a->paths(), (Paths{"/0"}));
}

TEST_F(PeersTest, TheGenerationOfANodesIdsIsItsOwnAtEachMount) {
  auto a = start("a"), m = start("m"), n = start("n");
  seconds(2, {a.get(), m.get(), n.get()});
  const uint32_t of_m = ordinal(*a, "m"), generation_of_m = a->peers().generation_of(of_m), generation_of_n = a->peers().generation_of(ordinal(*a, "n"));
  EXPECT_NE(generation_of_m, 0u);
  EXPECT_NE(generation_of_m, generation_of_n);
  const uint32_t of_directories = a->peers().generation_of(253);
  remove_tree("nodes/m");
  seconds(2, {a.get(), n.get()});
  EXPECT_EQ(a->peers().generation_of(of_m), generation_of_m) << "the kernel may know its ids still";
  a->die();
  std::filesystem::remove(scratch_.path("a/.ordinals"));
  auto before = start("b");  // would be the first
  auto again = start("a", 2, a.get());
  again->round();
  EXPECT_EQ(ordinal(*again, "b"), of_m);
  EXPECT_NE(again->peers().generation_of(of_m), generation_of_m);
  EXPECT_EQ(again->peers().generation_of(ordinal(*again, "n")), generation_of_n);
  EXPECT_NE(again->peers().generation_of(253), of_directories) << "those are numbered anew";
}

// Each batch answers the other's last one: a node that reads them reads them by turns.
TEST_F(PeersTest, ThoseWhoAnswerEachOtherAreReadInOneRound) {
  // In blocks a file names the next one. Else HEAD does, a second later.
  auto a = start("a", 1, nullptr, JournalForm::kBlocks), b = start("b", 1, nullptr, JournalForm::kBlocks), c = start("c");
  // A node that comes later: each peer is there whole when it is shown, though the other one is not.
  Paths all = answer_each_other(*a, *b, "before-");
  quarters(2, {a.get(), b.get(), c.get()});
  EXPECT_EQ(c->paths(), all);
  // A node that follows them.
  all.merge(answer_each_other(*a, *b, "then-"));
  quarters(1, {c.get()});
  EXPECT_EQ(c->paths().size(), all.size());
  EXPECT_EQ(c->status_of("a")->applied, a->end());
  EXPECT_EQ(c->status_of("b")->applied, b->end());
}

// Also where nothing says that a journal goes on in another file but its name and HEAD: not before all was read that was there.
TEST_F(PeersTest, ARefreshReadsThoseWhoAnswerEachOtherToTheEnd) {
  auto a = start("a"), b = start("b"), c = start("c");
  seconds(2, {a.get(), b.get(), c.get()});
  const Paths all = answer_each_other(*a, *b, "x-");
  ASSERT_GE(a->end().seq, 1u);
  const auto answered = refresh(*c);
  for (int rounds = 0; rounds < 400 && !answered->has_value(); ++rounds) {
    c->round();
    clock_.advance_ns(kSecondNs / 20);
  }
  ASSERT_TRUE(answered->has_value() && **answered);
  EXPECT_EQ(c->paths().size(), all.size());
}

// A peer that cannot be followed makes others wait for it once, not at each answer.
TEST_F(PeersTest, WhoAnswersOneThatStandsIsReadOn) {
  auto a = start("a"), b = start("b"), c = start("c");
  b->make_file("x");
  seconds(2, {a.get(), b.get(), c.get()});
  fault_ = [](const VolumeCall& call) -> Fault {
    return call.kind == VolumeCall::Kind::kRead && call.path.starts_with("nodes/b/1/journal") ? Fault{EIO, -1, 0} : Fault{};
  };
  for (int i = 0; i < 5; ++i) {
    b->make_file("unread-" + std::to_string(i));
    a->say({SeenRecord{"b", b->end()}});
    a->make_file(std::to_string(i));
  }
  seconds(3, {c.get()});
  EXPECT_EQ(c->paths(), (Paths{"/0", "/1", "/2", "/3", "/4", "/x"}));
  fault_ = nullptr;
  seconds(4, {c.get()});
  EXPECT_TRUE(c->paths().contains("/unread-4")) << "that others wait for it makes its pauses no longer";
}

TEST_F(PeersTest, WhatIsAnsweredIsForgotten) {
  auto a = start("a"), b = start("b"), c = start("c");
  a->make_file("x");
  seconds(2, {a.get(), b.get(), c.get()});
  const auto bindings = b->view().bindings(kRootId, "x");
  ASSERT_EQ(bindings->size(), 1u);
  const JournalPosition said = b->say(*b->view().statements_of_removal(kRootId, "x"));
  seconds(2, {a.get(), b.get(), c.get()});
  a->say({UnnameRecord{kRootId, "x", id_there(bindings->front().entry.child), false}, SeenRecord{"b", said}});
  seconds(40, {a.get(), b.get(), c.get()});
  // Of b's, in the index that this node has of it.
  const auto statements = [this](std::unique_ptr<PeerNode>& node, const std::string& name) {
    node->peers().stop();
    node->die();
    Index::Found found{};
    std::string why;
    const auto index = Index::open(scratch_.path(name + "/b/1"), {test_identity().volume_uuid, "b"}, &found, &why);
    EXPECT_TRUE(index) << index.error().message;
    size_t count = 0;
    if (!index) return count;
    EXPECT_TRUE((*index)->scan_peer_records([&count](Record&& record) {
      count += std::holds_alternative<StatementRecord>(record) ? 1u : 0u;
      return true;
    }));
    return count;
  };
  EXPECT_EQ(statements(c, "c"), 1u);
  seconds(130, {a.get(), b.get(), c.get()});
  EXPECT_EQ(statements(c, "c"), 0u);
  EXPECT_EQ(statements(a, "a"), 0u) << "what this node itself answered";
  EXPECT_TRUE(b->paths().empty());
}

TEST_F(PeersTest, MoreNodesThanThereAreOrdinals) {
  std::vector<std::unique_ptr<PeerNode>> nodes;
  for (int i = 0; i < 254; ++i) {
    nodes.push_back(start("n" + std::to_string(1000 + i)));
    nodes.back()->make_file("of-" + std::to_string(i));
  }
  auto a = start("a");
  while (a->paths().size() < 252) {
    const size_t before = a->paths().size();
    seconds(1, {a.get()});
    ASSERT_GT(a->paths().size(), before);
  }
  EXPECT_EQ(a->peers().status().size(), 254u);
  size_t left_out = 0;
  for (const PeerStatus& each : a->peers().status()) left_out += each.state == State::kLeftOut ? 1u : 0u;
  EXPECT_EQ(left_out, 2u);
  EXPECT_EQ(a->status_of("n1253")->ordinal, 0u);
  EXPECT_NE(a->status_of("n1253")->reason, "");
  nodes[100]->make_file("more");
  seconds(2, {a.get()});
  EXPECT_TRUE(a->paths().contains("/more"));
  const auto answer = refresh(*a);
  a->round();
  ASSERT_TRUE(*answer);
  EXPECT_TRUE(**answer) << (*answer)->error().message;
  seconds(1, {a.get()});
  EXPECT_EQ(decode_acks(a->identity(), *memory_->files().at("nodes/a/1/ACKS"))->peers.size(), 252u);
}

TEST_F(PeersTest, OfAPeerNothingIsMadeOrChanged) {
  auto a = start("a"), b = start("b");
  seconds(2, {a.get(), b.get()});
  const auto extents = a->peers().extents_of(ordinal(*a, "b"));
  ASSERT_NE(extents, nullptr);
  const ExtentId id{1, 3};
  memory_->put(extent_path("b", id, PlaceKind::kRaw), as_bytes("raw"));
  memory_->put(extent_path("b", id, PlaceKind::kPacked), as_bytes("pack"));
  const auto files = memory_->files().size();
  bool wrote = false;
  fault_ = [&](const VolumeCall& call) {
    wrote |= call.mutates();
    return Fault{};
  };
  ASSERT_TRUE(extents->open(id, PlaceKind::kRaw));
  EXPECT_EQ(extents->make(PlaceKind::kRaw).error().code, Code::kReadOnly);
  EXPECT_EQ(extents->make(PlaceKind::kPacked).error().code, Code::kReadOnly);
  EXPECT_EQ(extents->keep_spares(1).error().code, Code::kReadOnly);
  EXPECT_EQ(extents->open_for_punch(id).error().code, Code::kReadOnly);
  EXPECT_EQ(extents->remove(id, PlaceKind::kRaw).error().code, Code::kReadOnly);
  EXPECT_FALSE(wrote);
  EXPECT_EQ(memory_->files().size(), files);
}

// On a directory, by direct I/O where it has that, while other threads ask.
TEST(PeersThreads, AskBesideRounds) {
  const test::TestDirectory directory;
  const index_test::ScratchDirectory scratch{index_test::ScratchDirectory::kInMemory};
  const auto volume = open_posix_volume(directory.path(), {});
  ASSERT_TRUE(volume) << volume.error().message;
  ManualClock clock{1000 * kSecondNs};
  const PeerNode::Where where{*volume, *volume, clock, scratch.path()};
  PeerNode a(where, "a", 1, nullptr, JournalForm::kBlocks), b(where, "b", 1, nullptr, JournalForm::kBlocks);
  const auto quarter = [&] {
    clock.advance_ns(kSecondNs / 4);
    a.round();
    b.round();
  };
  for (int i = 0; i < 16; ++i) quarter();
  ASSERT_EQ(a.status_of("b")->state, State::kLive);
  const uint32_t ordinal = a.status_of("b")->ordinal;

  std::atomic<bool> over{false};
  std::atomic<int> asked{0}, answered{0};
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    JournalPosition before;
    while (!over) {
      const JournalPosition now = a.peers().position_of(ordinal);
      EXPECT_GE(now, before);
      before = now;
      EXPECT_EQ(a.peers().status().size(), 1u);
      EXPECT_EQ(a.peers().node_of(ordinal), "b");
      EXPECT_NE(a.peers().extents_of(ordinal), nullptr);
      EXPECT_TRUE(a.peers().has_peers());
      EXPECT_EQ(a.peers().problem(), "");
    }
  });
  threads.emplace_back([&] {
    JournalPosition before;
    while (!over) {
      const auto all = a.peers().acknowledged_by_all();
      EXPECT_EQ(all.by, "b");
      EXPECT_EQ(all.reason, "");
      EXPECT_GE(all.position, before);
      before = all.position;
    }
  });
  threads.emplace_back([&] {
    while (!over) {
      ++asked;
      a.peers().refresh([&](Status status) {
        EXPECT_TRUE(status);
        ++answered;
      });
      std::this_thread::yield();
    }
  });
  for (int i = 0; i < 100; ++i) {
    a.make_file("a" + std::to_string(i));
    b.make_file("b" + std::to_string(i));
    quarter();
  }
  over = true;
  for (std::thread& each : threads) each.join();
  for (int i = 0; i < 8; ++i) quarter();
  EXPECT_EQ(asked, answered);
  EXPECT_EQ(a.paths().size(), 200u);
  EXPECT_EQ(b.paths(), a.paths());
  EXPECT_EQ(a.peers().acknowledged_by_all().position, a.end());
}

// --- the node's own name ---

class LivesElsewhere : public PeersTest {
 protected:
  Result<std::optional<std::string>> ask(const std::function<void()>& meanwhile) {
    return lives_elsewhere(*volume_, test_identity_of("a", 0), now_, [&](int64_t for_ns) {
      slept_ns_ += for_ns;
      meanwhile();
    });
  }
  Status write(HeadWriter& writer, const std::string& boot) {
    Head head;
    head.host = "other-host";
    head.boot_id = boot;
    return writer.write(head);
  }
  ManualClock now_{0};  // the volume in memory has no times: HEAD is from when this began
  int64_t slept_ns_ = 0;
};

TEST_F(LivesElsewhere, IfTheHeadMoves) {
  EXPECT_EQ(ask([] {}).value(), std::nullopt);
  ASSERT_TRUE(memory_->make_directories("nodes/a/4"));
  EXPECT_EQ(ask([] {}).value(), std::nullopt);
  EXPECT_EQ(slept_ns_, 0) << "nobody lived here";
  HeadWriter writer(memory_, test_identity_of("a", 4));
  ASSERT_TRUE(write(writer, "another boot"));
  ASSERT_TRUE(memory_->make_directories("nodes/a/5"));  // one that was not begun
  EXPECT_EQ(ask([] {}).value(), std::nullopt);
  EXPECT_EQ(slept_ns_, 5 * kSecondNs);
  EXPECT_EQ(ask([&] { ASSERT_TRUE(write(writer, "another boot")); }).value(), "other-host");
  ASSERT_TRUE(write(writer, boot_id()));
  slept_ns_ = 0;
  EXPECT_EQ(ask([] {}).value(), std::nullopt);
  EXPECT_EQ(slept_ns_, 0) << "on this machine locks do work";
  ASSERT_TRUE(write(writer, "another boot"));
  fault_ = [](const VolumeCall& call) { return call.kind == VolumeCall::Kind::kRead ? Fault{EIO, -1, 0} : Fault{}; };
  EXPECT_FALSE(ask([] {}));
}

TEST_F(LivesElsewhere, AStartOnALocalVolumeDoesNotWaitForAHeadThatIsOld) {
  HeadWriter writer(memory_, test_identity_of("a", 4));
  ASSERT_TRUE(memory_->make_directories("nodes/a/4"));
  ASSERT_TRUE(write(writer, "another boot"));
  now_.advance_ns(60 * kSecondNs);
  EXPECT_EQ(ask([&] { ASSERT_TRUE(write(writer, "another boot")); }).value(), std::nullopt);
  EXPECT_EQ(slept_ns_, 0);
}

}  // namespace peers_test
}  // namespace kvcachefs

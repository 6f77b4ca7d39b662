// A node that died is put in order, or leaves the volume, while another one has it open; driven from one thread, except for what the other
// one has to do while the command waits for it.
#include "store/gc/collect_node.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "store/base/units.h"
#include "store/journal/removed_nodes.h"
#include "store/testing/test_store.h"

namespace kvcachefs {
namespace collect_node_test {

using testing::TestStore;

class CollectNode : public ::testing::Test {
 protected:
  void publish() { testing::publish(b, a.get()); }
  GcRequest request(bool remove) {
    GcRequest request;
    request.where = {.volume = b.root(), .node = "a", .index_directory = {}, .purpose = "gc"};
    request.remove = remove;
    return request;
  }
  // Node b goes on meanwhile, as a daemon does.
  Result<GcReport> collect(const GcRequest& request) {
    std::atomic<bool> over{false};
    std::thread others([&] {
      while (!over) {
        const bool worked = b->pump();
        for (const StoreStatus::Peer& peer : b->status().peers) most_claim_ = std::max(most_claim_, peer.claim_bytes);
        if (!worked) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    });
    auto report = collect_node(request);
    over = true;
    others.join();
    b.refresh();
    return report;
  }
  bool has_node() const { return std::filesystem::exists(b.root() + "/nodes/a"); }

  uint64_t most_claim_ = 0;  // of the node in the meantime
  TestStore b;  // called "test"
  std::unique_ptr<TestStore> a = std::make_unique<TestStore>(testing::node_options("a"), b);
};

TEST_F(CollectNode, WhatADeadNodeHoldsComesBackAndTheRestIsReadOn) {
  ASSERT_TRUE(a->write_file("kept", TestStore::payload(1, 2 * kMiB)));
  ASSERT_TRUE(a->write_file("replaced", TestStore::payload(2, 6 * kMiB)));
  publish();
  a->die();
  a.reset();
  ASSERT_TRUE(b.write_file("new", TestStore::payload(3, 1000)));
  ASSERT_TRUE(b.rename("new", "replaced"));  // a statement that nobody answers
  b.drain();
  const auto report = collect(request(false));
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->waits_for, "");
  EXPECT_TRUE(report->notes.empty());
  EXPECT_FALSE(report->removed);
  EXPECT_EQ(report->files, 1u) << "the other one was answered";
  EXPECT_LE(report->bytes_after + 5 * kMiB, report->bytes_before);
  EXPECT_EQ(b.read_file("kept"), TestStore::payload(1, 2 * kMiB));
  EXPECT_EQ(b.read_file("replaced"), TestStore::payload(3, 1000));
  a = std::make_unique<TestStore>(testing::node_options("a"), b);
  publish();
  EXPECT_EQ(a->contents(), b.contents());
}

// Space that this life of the node takes for itself does not stay either.
TEST_F(CollectNode, APartDoesNotBecomeLarger) {
  ASSERT_TRUE(a->write_file("kept", TestStore::payload(1, 2 * kMiB)));
  publish();
  a->die();
  a.reset();
  const auto first = collect(request(false));
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_FALSE(std::filesystem::exists(b.root() + "/nodes/a/RESERVE"));
  EXPECT_FALSE(std::filesystem::exists(b.root() + "/nodes/a/index-peers"));
  EXPECT_GT(testing::file_bytes(b.root() + "/nodes/test/RESERVE"), 0u);
  const auto second = collect(request(false));
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_LE(second->bytes_after, first->bytes_after);
  EXPECT_EQ(b.read_file("kept"), TestStore::payload(1, 2 * kMiB));
}

// Directories, and HEAD and ACKS of lives whose journals nobody has read yet.
TEST_F(CollectNode, WhatEarlierLivesLeftIsCounted) {
  ASSERT_TRUE(a->write_file("kept", TestStore::payload(1, kMiB)));
  publish();
  for (int life = 0; life < 6; ++life) {
    a->die();
    a->mount();
    publish();
  }
  const auto volume = open_posix_volume(b.root(), {});
  ASSERT_TRUE(volume);
  uint64_t there = 0;
  for (const auto& each : std::filesystem::recursive_directory_iterator(b.root() + "/nodes/a")) {
    struct stat about {};
    ASSERT_EQ(::lstat(each.path().c_str(), &about), 0);
    there += static_cast<uint64_t>(about.st_blocks) * 512;
  }
  ASSERT_TRUE((*a)->status().epoch == 7);
  EXPECT_GE((*a)->status().physical_bytes + 128 * kKiB, there) << "and the directories of the index";
}

TEST_F(CollectNode, ANodeThatLeavesTakesItsOwnFilesAndNothingElse) {
  a->mkdir("d");
  ASSERT_TRUE(a->write_file("d/of a", TestStore::payload(1, 6 * kMiB)));
  ASSERT_TRUE(a->write_file("of a", TestStore::payload(2, 100)));
  ASSERT_TRUE(b.write_file("of b", TestStore::payload(3, 3 * kMiB)));
  publish();
  ASSERT_TRUE(b.write_file("d/of b", TestStore::payload(4, 1000)));
  ASSERT_TRUE(b.exists("d/of a"));
  b.drain();
  a->die();
  a.reset();
  const auto dry = [&] {
    GcRequest would = request(true);
    would.dry_run = true;
    return collect_node(would);
  }();
  ASSERT_TRUE(dry) << dry.error().message;
  EXPECT_EQ(dry->files, 2u);
  EXPECT_GT(dry->bytes_before, 6 * kMiB);
  EXPECT_TRUE(has_node());
  EXPECT_TRUE(b.exists("of a"));
  const auto report = collect(request(true));
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->waits_for, "");
  EXPECT_TRUE(report->removed);
  EXPECT_GT(report->bytes_before, 6 * kMiB);
  EXPECT_EQ(report->bytes_after, 0u);
  EXPECT_FALSE(has_node());
  const std::map<std::string, std::string> left{{"d", "/"}, {"d/of b", TestStore::payload(4, 1000)}, {"of b", TestStore::payload(3, 3 * kMiB)}};
  EXPECT_EQ(b.contents(), left);
  EXPECT_TRUE(b->status().peers.empty());
  b.remount();
  EXPECT_EQ(b.contents(), left);
}

TEST_F(CollectNode, ANodeThatComesAgainUnderTheNameIsAnotherOne) {
  ASSERT_TRUE(a->write_file("x", TestStore::payload(1, 1000)));
  publish();
  ASSERT_TRUE(b.write_file("y", TestStore::payload(5, 1000)));
  publish();
  a->die();
  a->mount();  // epochs go by
  const uint32_t last = (*a)->status().epoch;
  a->die();
  a.reset();
  ASSERT_TRUE(b.unlink("x"));  // a statement about what will be gone
  b.drain();
  ASSERT_TRUE(collect(request(true)));
  a = std::make_unique<TestStore>(testing::node_options("a"), b);
  EXPECT_GT((*a)->status().epoch, last);
  publish();
  ASSERT_TRUE(a->write_file("x", TestStore::payload(2, 1000)));
  ASSERT_TRUE(a->unlink("y"));
  publish();
  EXPECT_EQ(b.read_file("x"), TestStore::payload(2, 1000)) << "what was said of the one before is not said of this one";
  EXPECT_FALSE(b.exists("y")) << "and what it says counts";
  EXPECT_EQ(a->contents(), b.contents());
  a->die();
  a.reset();
  ASSERT_TRUE(collect(request(true)));
  EXPECT_FALSE(b.exists("x"));
  const auto again = collect_node(request(true));
  ASSERT_TRUE(again) << "there is nothing left to do";
  EXPECT_FALSE(again->was_there);
}

// Names that it removed of a node that cannot answer would be seen again without it.
TEST_F(CollectNode, ANodeThatHasNoFilesStaysWhereOneThatIsGoneHasNotAnsweredIt) {
  auto c = std::make_unique<TestStore>(testing::node_options("c"), b);
  ASSERT_TRUE(c->write_file("removed", TestStore::payload(1, 1000)));
  c->drain();
  publish();
  ASSERT_TRUE(a->unlink("removed"));
  publish();
  for (const auto gone : {&a, &c}) {
    (*gone)->die();
    gone->reset();
  }
  GcRequest leaves = request(true);
  leaves.only_if_empty = true;
  const auto report = collect(leaves);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->files, 0u);
  EXPECT_EQ(report->waits_for, "c");
  EXPECT_FALSE(report->removed);
  EXPECT_TRUE(has_node());
  EXPECT_FALSE(b.exists("removed"));
}

TEST_F(CollectNode, WhatIsOpenElsewhereIsWaitedFor) {
  ASSERT_TRUE(a->write_file("x", TestStore::payload(1, 6 * kMiB)));
  publish();
  Handle* const reader = b.open("x", {.read = true});
  ASSERT_NE(reader, nullptr);
  a->die();
  a.reset();
  GcRequest impatient = request(true);
  impatient.patience_ns = 3'000'000'000;
  const auto held = collect(impatient);
  ASSERT_TRUE(held) << held.error().message;
  EXPECT_NE(held->waits_for, "");
  EXPECT_FALSE(held->removed);
  EXPECT_TRUE(has_node());
  EXPECT_FALSE(b.exists("x"));
  EXPECT_EQ(b.read(reader), TestStore::payload(1, 6 * kMiB)) << "who has it open reads on";
  ASSERT_TRUE(b.close(reader));
  const auto report = collect(request(true));
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(report->removed);
  EXPECT_FALSE(has_node());
}

TEST_F(CollectNode, NothingOfTheCapacityIsClaimedMeanwhile) {
  ASSERT_TRUE(a->write_file("x", TestStore::payload(1, 6 * kMiB)));
  publish();
  Handle* const reader = b.open("x", {.read = true});
  ASSERT_NE(reader, nullptr);
  a->unmount();
  a.reset();
  b.refresh();
  ASSERT_LT(b->status().peers.at(0).claim_bytes, kGiB) << "its end is read";
  GcRequest impatient = request(true);
  impatient.patience_ns = 3'000'000'000;
  const auto held = collect(impatient);
  ASSERT_TRUE(held) << held.error().message;
  EXPECT_NE(held->waits_for, "") << "it was seen at work";
  EXPECT_GT(most_claim_, 6 * kMiB);
  EXPECT_LT(most_claim_, kGiB) << "what it does not use is for those who store";
  ASSERT_TRUE(b.close(reader));
}

TEST_F(CollectNode, ANodeThatRunsIsRefused) {
  for (const bool remove : {false, true}) {
    const auto refused = collect_node(request(remove));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kBusy);
    EXPECT_NE(refused.error().message.find("test store"), std::string::npos) << "names the holder: " << refused.error().message;
  }
  EXPECT_TRUE(has_node());
}

TEST_F(CollectNode, WhatIsNoNodeIsRefused) {
  GcRequest other = request(true);
  other.where.node = "nobody";
  EXPECT_EQ(collect_node(other).error().code, Code::kNotFound);
  other.where.node = "../a";
  EXPECT_EQ(collect_node(other).error().code, Code::kInvalid);
  other.where.node = "a";
  other.where.volume = "/nonexistent";
  EXPECT_EQ(collect_node(other).error().code, Code::kNotFound);
}

TEST_F(CollectNode, ARemovalThatWasCutShortGoesOn) {
  ASSERT_TRUE(a->write_file("x", TestStore::payload(1, 6 * kMiB)));
  a->unmount();
  a.reset();
  auto volume = open_posix_volume(b.root(), {});
  ASSERT_TRUE(volume);
  FileIdentity identity;
  identity.node = "a";
  identity.epoch = 1;
  ASSERT_TRUE(set_node_aside(**volume, identity));
  const auto report = collect(request(true));
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_FALSE(report->was_there);
  EXPECT_GT(report->bytes_before, 6 * kMiB);
  EXPECT_TRUE(std::filesystem::is_empty(b.root() + "/removed/a/1"));
}

}  // namespace collect_node_test
}  // namespace kvcachefs

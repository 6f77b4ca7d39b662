#include "store/peers/view.h"

#include <sys/stat.h>

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "store/peers/removal.h"
#include "store/peers/testing/memory_part.h"

namespace kvcachefs {
namespace view_test {

constexpr ObjectId id(uint64_t number) { return ObjectId::make(0, 1, number); }

// Node "b" looks; "a" has ordinal 4, "c" has 2.
class ViewTest : public ::testing::Test {
 protected:
  enum Who : size_t { kA, kB, kC };
  struct Node {
    std::string name;
    uint32_t ordinal;
    MemoryPart state;
    MemoryPeer peer;
    uint64_t batches = 0;
  };
  void SetUp() override {
    for (Node& node : nodes_) node.peer.index->state = &node.state;
    for (Node& node : nodes_) say(node, {directory(kRootId, 1)});
    view_.set_peers({part(kA), part(kC)});
  }
  Part part(Who who) { return nodes_[who].peer.part(nodes_[who].ordinal, nodes_[who].name); }
  static PutRecord object(ObjectId which, uint32_t mode, int64_t born_ns) {
    PutRecord put;
    put.object.id = which;
    put.object.attributes.mode = mode;
    put.object.attributes.btime_ns = put.object.attributes.ctime_ns = put.object.attributes.mtime_ns = born_ns;
    return put;
  }
  static PutRecord directory(ObjectId which, int64_t born_ns) { return object(which, S_IFDIR | 0755, born_ns); }
  static PutRecord file(ObjectId which, int64_t born_ns) { return object(which, S_IFREG | 0644, born_ns); }
  JournalPosition say(Node& node, std::vector<Record> records) {
    const Batch batch{Stamp{++node.batches}, std::move(records)};
    const JournalPosition after{1, 0, 100 * node.batches};
    EXPECT_TRUE(view_.change(node.ordinal, batch, [&]() -> Status {
      node.peer.statements->apply(batch, after);
      return node.state.apply(batch, after);
    }));
    return after;
  }
  JournalPosition say(Who who, std::vector<Record> records) { return say(nodes_[who], std::move(records)); }
  static StatementRecord gone(const std::string& node, ObjectId parent, const std::string& name, ObjectId child) {
    return {node, {}, UnnameRecord{parent, name, child, false}};
  }
  // The statements of this node when a client removes `name`, after it removed those others.
  std::vector<Record> removal(ObjectId directory, std::string_view name, const std::set<std::string>& taken = {}) {
    PeersRemoval removal;
    removal.is_taken = [&](ObjectId, std::string_view other) { return taken.contains(std::string(other)); };
    auto records = view_.statements_of_removal(directory, name, removal);
    EXPECT_TRUE(records) << records.error().message;
    return records ? std::move(*records) : std::vector<Record>();
  }
  // Directories of a, each in the one before: the first is "d" in the root, the others are "e".
  std::vector<Record> levels_of_a(uint64_t count) {
    std::vector<Record> records;
    for (uint64_t level = 0; level < count; ++level) {
      records.emplace_back(directory(id(10 + level), 1));
      records.emplace_back(NameRecord{level == 0 ? kRootId : id(9 + level), level == 0 ? "d" : "e", id(10 + level)});
    }
    return records;
  }
  ObjectId find(ObjectId directory, std::string_view name) {
    const auto found = view_.find_name(directory, name);
    EXPECT_TRUE(found) << found.error().message;
    return found && *found ? (*found)->child : ObjectId{};
  }
  ObjectId here(Who who, uint64_t number) { return id_here(nodes_[who].ordinal, id(number)); }

  Node nodes_[3]{{"a", 4, {}, {}, 0}, {"b", 0, {}, {}, 0}, {"c", 2, {}, {}, 0}};
  DirectoryClasses classes_;
  NameView view_{part(kB), classes_};
};

TEST_F(ViewTest, NamesOfAllNodesAreThere) {
  say(kA, {file(id(5), 10), NameRecord{kRootId, "x", id(5)}});
  say(kB, {file(id(5), 10), NameRecord{kRootId, "y", id(5)}});
  EXPECT_EQ(find(kRootId, "x"), here(kA, 5));
  EXPECT_EQ(find(kRootId, "y"), id(5));
  EXPECT_FALSE(find(kRootId, "z").valid());
  const auto object = view_.find_object(here(kA, 5));
  ASSERT_TRUE(object && *object);
  EXPECT_EQ((*object)->id, here(kA, 5));
  EXPECT_EQ(view_.list(kRootId, 0, 1)->size(), 1u);
  EXPECT_EQ(view_.list(kRootId, view_.list(kRootId, 0, 1)->front().cookie, 10)->size(), 1u);
}

TEST_F(ViewTest, AnotherNodesObjectIsNotThereWithoutItsNode) {
  say(kA, {file(id(5), 10), NameRecord{kRootId, "x", id(5)}});
  view_.set_peers({part(kC)});
  EXPECT_FALSE(find(kRootId, "x").valid());
  EXPECT_EQ(view_.find_object(here(kA, 5)).value(), std::nullopt);
  view_.set_peers({});
  EXPECT_TRUE(view_.is_alone());
  EXPECT_TRUE(view_.find_object(kRootId).value());
}

TEST_F(ViewTest, OfTwoFilesTheLastBornIsSeenAndOfThoseBornAtOnceThatOfTheGreaterNode) {
  say(kA, {file(id(5), 10), NameRecord{kRootId, "x", id(5)}});
  say(kC, {file(id(6), 11), NameRecord{kRootId, "x", id(6)}});
  EXPECT_EQ(find(kRootId, "x"), here(kC, 6));
  say(kB, {file(id(7), 11), NameRecord{kRootId, "x", id(7)}});
  EXPECT_EQ(find(kRootId, "x"), here(kC, 6)) << "c is greater than b";
  say(kA, {file(id(8), 12), NameRecord{kRootId, "x", id(8)}});
  EXPECT_EQ(find(kRootId, "x"), here(kA, 8));
  EXPECT_EQ(view_.bindings(kRootId, "x")->size(), 3u);
  EXPECT_EQ(view_.list(kRootId, 0, 10)->size(), 1u);
}

TEST_F(ViewTest, WhatCannotBeServedGivesWay) {
  say(kA, {file(id(5), 10), NameRecord{kRootId, "x", id(5)}});
  PutRecord bad = file(id(6), 11);
  bad.object.body.quarantined = true;
  say(kC, {bad, NameRecord{kRootId, "x", id(6)}});
  EXPECT_EQ(find(kRootId, "x"), here(kA, 5));
}

// A listing asks for each name: only the rows of objects that may be in quarantine are read.
TEST_F(ViewTest, WhichObjectsOfAPeerAreInQuarantineIsKnownWithoutTheirRows) {
  PutRecord bad = file(id(5), 10), worse = file(id(6), 11);
  bad.object.body.quarantined = worse.object.body.quarantined = true;
  say(kA, {bad, NameRecord{kRootId, "x", id(5)}, worse, NameRecord{kRootId, "y", id(6)}, file(id(7), 12), NameRecord{kRootId, "z", id(7)}});
  EXPECT_TRUE(view_.is_quarantined_there(here(kA, 5)) && view_.is_quarantined_there(here(kA, 6)));
  EXPECT_FALSE(view_.is_quarantined_there(here(kA, 7)));
  Part known = part(kA);
  const auto ids = std::make_shared<QuarantinedIds>();
  ids->add(id(5));
  ids->add(id(7));
  known.quarantined = ids;
  view_.set_peers({known, part(kC)});
  EXPECT_TRUE(view_.is_quarantined_there(here(kA, 5)));
  EXPECT_FALSE(view_.is_quarantined_there(here(kA, 6))) << "it is not read";
  EXPECT_FALSE(view_.is_quarantined_there(here(kA, 7))) << "it was once: its row decides";
  ids->add_all();
  EXPECT_TRUE(view_.is_quarantined_there(here(kA, 6)));
}

TEST_F(ViewTest, DirectoriesOfOnePathAreOne) {
  say(kA, {directory(id(5), 10), NameRecord{kRootId, "d", id(5)}, file(id(6), 10), NameRecord{id(5), "x", id(6)}});
  const ObjectId d = find(kRootId, "d");
  EXPECT_EQ(d, here(kA, 5));
  say(kB, {directory(id(9), 30), NameRecord{kRootId, "d", id(9)}, file(id(6), 10), NameRecord{id(9), "y", id(6)}});
  EXPECT_EQ(find(kRootId, "d"), d);
  EXPECT_EQ(view_.members(d).value(), (std::vector{id(9), here(kA, 5)}));
  EXPECT_EQ(find(d, "x"), here(kA, 6));
  EXPECT_EQ(find(d, "y"), id(6));
  EXPECT_EQ(view_.list(d, 0, 10)->size(), 2u);
  const auto object = view_.find_object(d).value();
  ASSERT_TRUE(object);
  EXPECT_EQ(object->id, d);
  EXPECT_EQ(object->nlink, 1u);
  EXPECT_EQ(object->attributes.ctime_ns, 30);
  EXPECT_TRUE(view_.has_foreign_member(d).value());
  EXPECT_EQ(view_.own_member(d).value(), id(9));
}

TEST_F(ViewTest, ADirectoryIsSeenBeforeAFile) {
  say(kA, {directory(id(5), 10), NameRecord{kRootId, "d", id(5)}});
  say(kC, {file(id(6), 99), NameRecord{kRootId, "d", id(6)}});
  EXPECT_EQ(find(kRootId, "d"), here(kA, 5));
}

TEST_F(ViewTest, OneThatIsNotKnownIsToBeLookedUp) {
  say(kA, {directory(id(5), 10), NameRecord{kRootId, "d", id(5)}});
  EXPECT_EQ(view_.find_name(here(kA, 5), "x").error().code, Code::kStale);
  EXPECT_EQ(view_.find_object(here(kA, 5)).error().code, Code::kStale);
  const ObjectId d = find(kRootId, "d");
  EXPECT_TRUE(view_.find_name(d, "x"));
  say(kA, {UnnameRecord{kRootId, "d", id(5), false}});
  EXPECT_EQ(view_.find_name(d, "x").error().code, Code::kNotFound);
}

TEST_F(ViewTest, OneThatThisNodeHasJustMadeIsThereBeforeItsIndexHasIt) {
  say(kA, {directory(id(5), 10), NameRecord{kRootId, "d", id(5)}});
  classes_.hold(kRootId, "d", id(9), id(9));
  EXPECT_EQ(view_.members(id(9)).value(), (std::vector{id(9), here(kA, 5)}));
  say(kB, {directory(id(9), 30), NameRecord{kRootId, "d", id(9)}});
  classes_.release(id(9));
  EXPECT_EQ(find(kRootId, "d"), id(9));
}

TEST_F(ViewTest, WhatWasRemovedElsewhereIsHiddenUntilItIsAnswered) {
  say(kA, {file(id(5), 10), NameRecord{kRootId, "x", id(5)}});
  const auto said = say(kC, {gone("a", kRootId, "x", id(5))});
  EXPECT_FALSE(find(kRootId, "x").valid());
  EXPECT_TRUE(view_.list(kRootId, 0, 10)->empty());
  EXPECT_TRUE(view_.is_empty(kRootId).value());
  EXPECT_TRUE(view_.bindings(kRootId, "x")->front().hidden);
  auto records = answer(part(kA), part(kC), said).value().records;
  ASSERT_EQ(records.size(), 2u);
  say(kA, records);
  EXPECT_FALSE(find(kRootId, "x").valid());
  EXPECT_TRUE(view_.bindings(kRootId, "x")->empty());
  EXPECT_TRUE(answer(part(kA), part(kC), said)->records.empty());
}

TEST_F(ViewTest, WhatItsNodeKeepsIsSeenAgain) {
  say(kA, {file(id(5), 10), NameRecord{kRootId, "x", id(5)}});
  const auto said = say(kC, {gone("a", kRootId, "x", id(5))});
  const auto records = answer(part(kA), part(kC), said).value().records;
  ASSERT_EQ(records.size(), 2u);
  ASSERT_TRUE(std::holds_alternative<SeenRecord>(records[1]));
  say(kA, {records[1]});
  EXPECT_EQ(find(kRootId, "x"), here(kA, 5));
}

TEST_F(ViewTest, ANameThatWasMadeMeanwhileStaysWithItsDirectory) {
  say(kA, {directory(id(5), 10), NameRecord{kRootId, "d", id(5)}, file(id(6), 10), NameRecord{id(5), "x", id(6)}});
  const ObjectId d = find(kRootId, "d");
  std::vector<Record> records = removal(kRootId, "d", {"x"});
  ASSERT_EQ(records.size(), 2u) << "what is in it first";
  EXPECT_EQ(std::get<UnnameRecord>(std::get<StatementRecord>(records[0]).what).name, "x");
  const auto said = say(kB, records);
  EXPECT_FALSE(find(kRootId, "d").valid());
  say(kA, {file(id(7), 10), NameRecord{id(5), "y", id(7)}});
  EXPECT_EQ(find(kRootId, "d"), d);
  EXPECT_FALSE(find(d, "x").valid());
  EXPECT_EQ(find(d, "y"), here(kA, 7));
  // This node removes that, too: the directory is not gone with it, for it came after.
  say(kB, view_.statements_of_removal(d, "y").value());
  EXPECT_EQ(find(kRootId, "d"), d);
  EXPECT_TRUE(view_.is_empty(d).value());
  records = answer(part(kA), part(kB), said).value().records;
  ASSERT_EQ(records.size(), 2u);
  say(kA, records);
  EXPECT_EQ(find(kRootId, "d"), d);
}

TEST_F(ViewTest, WhatASecondNodeRemovedIsSaidAgainWithItsDirectory) {
  say(kA, {directory(id(5), 10), NameRecord{kRootId, "d", id(5)}, file(id(6), 10), NameRecord{id(5), "x", id(6)}});
  say(kC, {gone("a", id(5), "x", id(6))});
  find(kRootId, "d");
  const auto records = view_.statements_of_removal(kRootId, "d").value();
  EXPECT_EQ(records.size(), 2u);
  const auto said = say(kB, records);
  EXPECT_FALSE(find(kRootId, "d").valid());
  EXPECT_TRUE(view_.statements_of_removal(kRootId, "d")->empty()) << "once";
  EXPECT_EQ(answer(part(kA), part(kB), said)->records.size(), 3u);
}

TEST_F(ViewTest, NothingIsSaidOfADirectoryInWhichItsNodeMadeANameMeanwhile) {
  say(kA, {directory(id(5), 10), NameRecord{kRootId, "d", id(5)}, directory(id(6), 10), NameRecord{id(5), "e", id(6)}, file(id(7), 10),
           NameRecord{id(6), "x", id(7)}});
  find(kRootId, "d");
  EXPECT_TRUE(removal(kRootId, "d").empty());
  EXPECT_TRUE(removal(kRootId, "d", {"e"}).empty()) << "x is there still";
  EXPECT_TRUE(removal(kRootId, "d", {"x"}).empty()) << "e is there still";
  EXPECT_EQ(removal(kRootId, "d", {"e", "x"}).size(), 3u);
  say(kA, {file(id(9), 10), NameRecord{id(5), "z", id(9)}});
  EXPECT_EQ(removal(kRootId, "d", {"e", "x"}).size(), 2u) << "what clients took is said, however";
  say(kA, {UnnameRecord{id(5), "z", id(9), false}});
  const auto said = say(kC, {gone("a", id(6), "x", id(7)), gone("a", id(5), "e", id(6))});
  EXPECT_EQ(removal(kRootId, "d").size(), 3u) << "what others said is said, too";
  say(kA, {file(id(8), 10), NameRecord{id(6), "y", id(8)}});
  EXPECT_TRUE(removal(kRootId, "d").empty()) << "e is there again";
  say(kA, answer(part(kA), part(kC), said).value().records);
  EXPECT_EQ(find(find(find(kRootId, "d"), "e"), "y"), here(kA, 8));
}

TEST_F(ViewTest, AsManyRecordsAreMadeAtOnceAsAreAskedForAndTheRestTheNextTime) {
  say(kA, levels_of_a(50));
  PeersRemoval part_of_it;
  part_of_it.is_taken = [](ObjectId, std::string_view) { return true; };
  part_of_it.most = 20;
  for (const size_t count : {20u, 20u, 10u, 0u}) {
    const auto records = view_.statements_of_removal(kRootId, "d", part_of_it);
    ASSERT_TRUE(records);
    EXPECT_EQ(records->size(), count);
    if (count > 0) say(kB, *records);
  }
  EXPECT_FALSE(find(kRootId, "d").valid());
}

// A stack has room for some 20,000 calls within each other.
TEST_F(ViewTest, ATreeOfManyLevelsIsFoundAgainAndIsGoneAsAWhole) {
  constexpr uint64_t kLevels = 30'000;
  say(kA, levels_of_a(kLevels));
  ObjectId deepest = find(kRootId, "d");
  for (uint64_t level = 1; level < kLevels; ++level) deepest = find(deepest, "e");
  ASSERT_EQ(deepest, here(kA, 9 + kLevels));
  say(kA, {directory(id(5), 1), NameRecord{kRootId, "another", id(5)}});
  EXPECT_EQ(view_.members(deepest).value(), std::vector{deepest});
  const auto records = removal(kRootId, "d", {"e"});
  EXPECT_EQ(records.size(), kLevels);
  say(kC, records);
  EXPECT_FALSE(find(kRootId, "d").valid());
  EXPECT_EQ(removal(kRootId, "d").size(), kLevels) << "this node has not said it";
  EXPECT_EQ(view_.members(deepest).error().code, Code::kNotFound);
  EXPECT_EQ(classes_.count(), 0u);
}

TEST_F(ViewTest, AttributesOfAnotherNodeAreShownUntilTheyAreTakenOver) {
  say(kA, {file(id(5), 10), NameRecord{kRootId, "x", id(5)}});
  Attributes attributes = file(id(5), 10).object.attributes;
  attributes.mode = S_IFREG | 0600;
  attributes.ctime_ns = 20;
  say(kC, {StatementRecord{"a", {}, AttributesRecord{id(5), attributes}}});
  attributes.mode = S_IFREG | 0666;
  attributes.ctime_ns = 19;
  const auto said = say(kB, {StatementRecord{"a", {}, AttributesRecord{id(5), attributes}}});
  const auto mode = [this] { return view_.find_object_summary(here(kA, 5)).value()->attributes.mode & 0777; };
  EXPECT_EQ(mode(), 0600u) << "the last change counts";
  // Answered one after the other.
  auto records = answer(part(kA), part(kB), said).value().records;
  ASSERT_EQ(records.size(), 2u);
  say(kA, records);
  EXPECT_EQ(mode(), 0600u);
  say(kA, answer(part(kA), part(kC), {1, 0, 1000}).value().records);
  EXPECT_EQ(mode(), 0600u);
  EXPECT_EQ(nodes_[kA].peer.index->find_object(id(5)).value()->attributes.mode & 0777, 0600u);
  attributes.mode = S_IFDIR;
  attributes.ctime_ns = 99;
  say(kC, {StatementRecord{"a", {}, AttributesRecord{id(5), attributes}}});
  EXPECT_EQ(mode(), 0600u) << "a file does not become a directory";
}

TEST_F(ViewTest, LevelsThatThisNodeLacksAreTold) {
  say(kA, {directory(id(5), 10), NameRecord{kRootId, "d", id(5)}, directory(id(6), 11), NameRecord{id(5), "e", id(6)}});
  const ObjectId d = find(kRootId, "d"), e = find(d, "e");
  auto levels = view_.levels_to_make(e).value();
  ASSERT_EQ(levels.size(), 2u);
  EXPECT_EQ(levels[0].directory, d);
  EXPECT_EQ(levels[0].parent, kRootId);
  EXPECT_EQ(levels[0].name, "d");
  EXPECT_EQ(levels[1].attributes.ctime_ns, 11);
  say(kB, {directory(id(9), 10), NameRecord{kRootId, "d", id(9)}});
  levels = view_.levels_to_make(e).value();
  ASSERT_EQ(levels.size(), 1u);
  EXPECT_EQ(levels[0].name, "e");
  EXPECT_TRUE(view_.levels_to_make(kRootId)->empty());
}

// A damaged volume: a tree without end.
TEST_F(ViewTest, DirectoriesThatContainEachOtherEndNothing) {
  say(kA, {directory(id(5), 1), directory(id(6), 1), NameRecord{kRootId, "d", id(5)}, NameRecord{id(5), "e", id(6)},
           NameRecord{id(6), "f", id(5)}});
  say(kC, {gone("a", id(5), "e", id(6)), gone("a", id(6), "f", id(5)), gone("a", kRootId, "d", id(5))});
  const ObjectId d = find(kRootId, "d");
  ASSERT_TRUE(d.valid());
  EXPECT_TRUE(removal(kRootId, "d", {"e", "f"}).empty()) << "it is no tree";
  const ObjectId e = find(d, "e");
  ASSERT_TRUE(e.valid());
  EXPECT_FALSE(find(e, "f").valid()) << "d is not in itself";
  EXPECT_TRUE(view_.list(e, 0, 10)->empty());
}

// Lookups remember what they found, each beside the others; batches come between them.
TEST_F(ViewTest, ManyReadAtOnce) {
  DirectoryClasses few(3);
  NameView view(part(kB), few);
  view.set_peers({part(kA), part(kC)});
  for (uint64_t i = 0; i < 6; ++i)
    say(i % 2 == 0 ? kA : kC, {directory(id(10 + i), 1), NameRecord{kRootId, std::to_string(i / 2), id(10 + i)}, file(id(20 + i), 1),
                              NameRecord{id(10 + i), "x", id(20 + i)}});
  std::shared_mutex changes;
  std::atomic<bool> ends = false, wants_to_change = false;  // a lock for many readers would never let a writer in
  std::atomic<uint64_t> found = 0;
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i)
    readers.emplace_back([&, i] {
      for (size_t round = 0; !ends; ++round) {
        while (wants_to_change) std::this_thread::yield();
        std::shared_lock lock(changes);
        const auto there = view.find_name(kRootId, std::to_string((round + static_cast<size_t>(i)) % 3));
        ASSERT_TRUE(there && *there);
        const auto below = view.find_name((*there)->child, "x");
        ASSERT_TRUE(below || below.error().code == Code::kStale);  // dropped for another one meanwhile
        found += below && *below;
        ASSERT_EQ(view.list(kRootId, 0, 10)->size(), 3u);
      }
    });
  for (uint64_t i = 0; i < 200; ++i) {
    wants_to_change = true;
    std::unique_lock lock(changes);
    wants_to_change = false;
    Node& node = nodes_[kA];
    const Batch batch{Stamp{++node.batches}, {directory(id(100 + i), 1), NameRecord{id(10), std::to_string(i), id(100 + i)}}};
    const JournalPosition after{1, 0, 100 * node.batches};
    ASSERT_TRUE(view.change(node.ordinal, batch, [&]() -> Status { return node.state.apply(batch, after); }));
  }
  while (found < 1000 && !HasFailure()) std::this_thread::yield();
  ends = true;
  for (std::thread& reader : readers) reader.join();
}

TEST_F(ViewTest, SuccessorsOfAnotherNodeAreItsObjects) {
  struct WithRow final : FakeIndex {
    Result<std::optional<SuccessorsRecord>> find_successors(ObjectId which) const override {
      return SuccessorsRecord{which, id(4), {{id(6), 3}}};
    }
  };
  Part a = part(kA);
  a.index = std::make_shared<WithRow>();
  view_.set_peers({a});
  const auto row = view_.find_successors(here(kA, 5)).value();
  ASSERT_TRUE(row);
  EXPECT_EQ(row->id, here(kA, 5));
  EXPECT_EQ(row->predecessor, here(kA, 4));
  EXPECT_EQ(row->successors[0].first, here(kA, 6));
}

}  // namespace view_test
}  // namespace kvcachefs

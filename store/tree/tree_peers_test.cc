// Names that peers remove from this node, as its clients see them from then on until the journal has it. Peers in memory, no store.
#include "store/tree/tree.h"

#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <csignal>
#include <set>
#include <string>
#include <vector>

#include "store/base/kill_point.h"
#include "store/base/units.h"
#include "store/peers/testing/memory_part.h"
#include "store/tree/rename.h"
#include "store/tree/testing/tree_parts.h"
#include "store/tree/writer_processes.h"

namespace kvcachefs {
namespace tree_peers_test {

constexpr ObjectId id(uint64_t number) { return ObjectId::make(0, 1, number); }

// Peers "a" and "c" beside "this". Each of the three has the directory 5 under "d", with files in it.
class TreePeersTest : public ::testing::Test {
 protected:
  enum Who : size_t { kThis, kA, kC };
  struct Node {
    std::string name;
    MemoryPart state;
    MemoryPeer peer;
    uint64_t batches = 0;
  };
  TreePeersTest() {
    for (Node& node : nodes_) node.peer.index->state = &node.state;
    parts_.space.configure(1024 * kMiB, 0);
    tree_.write().view().set_peers({nodes_[kA].peer.part(kA, "a"), nodes_[kC].peer.part(kC, "c")});
    for (const Who who : {kThis, kA, kC}) say(who, {put(kRootId, S_IFDIR | 0755)});
  }
  ~TreePeersTest() override { tree_.clear(); }

  static PutRecord put(ObjectId which, uint32_t mode, int64_t born_ns = 1) {
    PutRecord made;
    made.object.id = which;
    made.object.attributes.mode = mode;
    made.object.attributes.btime_ns = born_ns;
    return made;
  }
  static StatementRecord gone(const std::string& node, ObjectId parent, const std::string& name, ObjectId child) {
    return {node, {}, UnnameRecord{parent, name, child, false}};
  }
  // This node reads a batch of that node, and answers it.
  void say(Who who, std::vector<Record> records) {
    Node& node = nodes_[who];
    const Batch batch{Stamp{++node.batches}, std::move(records)};
    const JournalPosition after{1, 0, 100 * node.batches};
    const auto work = [&] {
      if (who != kThis) node.peer.statements->apply(batch, after);
      return node.state.apply(batch, after);
    };
    if (who == kThis) {
      EXPECT_TRUE(tree_.change_own(batch, after, work));
      return;
    }
    Tree::Write names = tree_.write();
    EXPECT_TRUE(names.view().change(who, batch, work));
    names.follow(who, PeerBatch{batch, after, {}});
    auto answered = names.answer(*names.view().peer(who), after);
    ASSERT_TRUE(answered) << answered.error().message;
    for (Record& record : answered->records) to_journal_.push_back(std::move(record));
    waits_ = answered->waits;
  }
  void give(Who who, uint64_t number, const std::string& name, int64_t born_ns) {
    say(who, {put(id(number), S_IFREG | 0644, born_ns), NameRecord{id(5), name, id(number)}});
  }
  void give_directory(Who who) { say(who, {put(id(5), S_IFDIR | 0755), NameRecord{kRootId, "d", id(5)}}); }
  ObjectId find(ObjectId directory, const std::string& name) {
    const auto found = tree_.read().find_name(directory, name);
    EXPECT_TRUE(found) << found.error().message;
    return found && *found ? (*found)->child : ObjectId{};
  }
  std::set<std::string> list(ObjectId directory) {
    std::set<std::string> names;
    for (uint64_t after = 0;;) {
      const auto items = tree_.read().list(directory, after, 100);
      EXPECT_TRUE(items) << items.error().message;
      if (!items || items->empty()) return names;
      for (const DirectoryItem& item : *items) names.insert(item.name);
      after = items->back().cookie;
    }
  }
  // A file that this node has made and that waits for its body: its journal does not have it yet.
  void make(ObjectId directory, uint64_t number, const std::string& name) {
    Tree::Write names = tree_.write();
    const auto above = names.directory_for_entry(directory);
    ASSERT_TRUE(above) << above.error().message;
    ASSERT_TRUE(names.make_entry(*above, name, std::make_shared<Object>(id(number), put(id(number), S_IFREG | 0644).object.attributes)));
  }
  // As a LOOKUP of a directory does it.
  ObjectId look_up_directory(ObjectId parent, const std::string& name, uint64_t number) {
    const ObjectId found = find(parent, name);
    if (!found.is_foreign()) return found;
    const auto adopted = tree_.write().adopt_directory(parent, name, id(number));
    EXPECT_TRUE(adopted) << adopted.error().message;
    return adopted ? (*adopted)->id : ObjectId{};
  }
  // As after each round.
  void drop_left(size_t at_once = 100) {
    while (!tree_.write().drop_left_directories(at_once)) {
    }
  }
  // Journals the names that this node has removed, and then its answers.
  void journal() {
    Tree::Write names = tree_.write();
    std::vector<Record> records;
    const auto pending = names.names().take_pending();
    for (const DirtyName& name : pending) {
      const NameState& state = *names.names().state(name);
      EXPECT_FALSE(state.child.valid());
      if (state.durable.valid()) records.emplace_back(UnnameRecord{name.parent, name.key.name, state.durable, false});
    }
    for (Record& record : to_journal_) records.push_back(std::move(record));
    to_journal_.clear();
    names.unlock();
    say(kThis, std::move(records));
    Tree::Write settled = tree_.write();
    for (const DirtyName& name : pending) settled.names().settle(name, {});
  }

  // What a rename gave and took.
  void journal_renamed(ObjectId object) {
    Tree::Write names = tree_.write();
    std::vector<Record> records;
    const auto pending = names.names().take_pending();
    std::vector<ObjectId> now;
    for (const DirtyName& name : pending) {
      const NameState& state = *names.names().state(name);
      now.push_back(state.child == object ? object : ObjectId{});
      if (now.back().valid()) records.emplace_back(NameRecord{name.parent, name.key.name, object});
      else if (state.durable.valid()) records.emplace_back(UnnameRecord{name.parent, name.key.name, state.durable, false});
    }
    names.unlock();
    say(kThis, std::move(records));
    Tree::Write settled = tree_.write();
    for (size_t number = 0; number < pending.size(); ++number) settled.settle(pending[number], now[number]);
  }
  // The same where names stay with files that are being written: their records go.
  void journal_taken() {
    Tree::Write names = tree_.write();
    std::vector<Record> records;
    const auto pending = names.names().take_pending();
    for (const DirtyName& name : pending) {
      const NameState& state = *names.names().state(name);
      EXPECT_TRUE(!state.child.valid() || state.child == state.taken_later);
      if (state.durable.valid() && state.erase_durable) records.emplace_back(UnnameRecord{name.parent, name.key.name, state.durable, false});
    }
    names.unlock();
    say(kThis, std::move(records));
    Tree::Write settled = tree_.write();
    for (const DirtyName& name : pending) settled.names().settle(name, {});
  }

  // A version of the name in directory 5: by a thread that still has it open for writing, or has closed it.
  ObjectPtr write(uint64_t number, const std::string& name, uint32_t thread_id, bool is_open) {
    const auto object = std::make_shared<Object>(id(number), put(id(number), S_IFREG | 0644).object.attributes);
    note_writer(*object, thread_id);
    object->last_write_ns = clock_.monotonic_ns();
    object->handles = object->write_handles = object->unflushed_handles = is_open ? 1 : 0;
    Tree::Write names = tree_.write();
    const auto there = names.names().find(id(5), name);
    if (!there || !*there) {
      EXPECT_TRUE(names.make_entry(*names.directory_for_entry(id(5)), name, object));
      return object;
    }
    object->temporary = true;
    auto state = names.names().edit(id(5), name);
    names.add_version(*state, id(5), name, *names.get((*there)->child), object);
    return object;
  }
  static void close(const ObjectPtr& object) { object->handles = object->write_handles = object->unflushed_handles = 0; }
  // The journal has this object under the name.
  void journal_version(const ObjectPtr& object, const std::string& name, int64_t born_ns = 10) {
    Tree::Write names = tree_.write();
    static_cast<void>(names.names().take_pending());
    object->durable = true;
    object->attributes_durable = object->attributes_version;
    names.unlock();
    say(kThis, {put(object->id, S_IFREG | 0644, born_ns), NameRecord{id(5), name, object->id}});
    tree_.write().settle({id(5), {name_cookie(name), name}}, object->id);
  }
  // x.tmp, closed and journaled.
  ObjectPtr write_journaled(uint64_t number, uint32_t thread_id) {
    const ObjectPtr object = write(number, "x.tmp", thread_id, false);
    journal_version(object, "x.tmp");
    return object;
  }
  // By a, which has read 7 under the name.
  void replace_seventh() {
    say(kA, {put(id(8), S_IFREG | 0644, 20), NameRecord{id(5), "x.tmp", id(8)}, gone("this", id(5), "x.tmp", id(7))});
  }
  void give_both_the_directory() {
    for (const Who who : {kThis, kA}) give_directory(who);
    EXPECT_EQ(find(kRootId, "d"), id(5));
  }
  bool rename(const std::string& from, const std::string& to, uint32_t thread_id) {
    Rename asked{id(5), from, id(5), to, RenameMode::kReplace, thread_id};
    Tree::Write names = tree_.write();
    return names.resolve_rename(asked) && asked.source && names.rename(asked);
  }

  const uint32_t first_ = 1, second_ = static_cast<uint32_t>(getpid()), ended_ = 4'190'000;  // threads; no thread has the last number
  Node nodes_[3]{{"this", {}, {}}, {"a", {}, {}}, {"c", {}, {}}};
  std::vector<Record> to_journal_;
  bool waits_ = false;  // the last answer
  ManualClock clock_{1'000'000'000'000};
  testing::TreeParts parts_;
  Tree tree_{parts_.of(*nodes_[kThis].peer.index, clock_, true, "this", true)};
};

TEST_F(TreePeersTest, WhatReplacedItIsSeenAtOnceAlsoWhereNobodyHasLookedTheDirectoryUp) {
  for (const Who who : {kThis, kA}) give_directory(who);
  give(kThis, 6, "x", 10);
  say(kA, {put(id(7), S_IFREG | 0644, 20), NameRecord{id(5), "x", id(7)}, gone("this", id(5), "x", id(6))});
  const ObjectId directory = find(kRootId, "d");
  EXPECT_EQ(directory, id(5));
  for (int journaled = 0; journaled < 2; ++journaled) {
    EXPECT_EQ(find(directory, "x"), id_here(kA, id(7)));
    EXPECT_EQ(list(directory), std::set<std::string>{"x"});
    journal();
  }
}

TEST_F(TreePeersTest, WhatIsSeenInItsPlaceIsWhatPeersHaveThenNotWhatTheyHadFirst) {
  for (const Who who : {kThis, kA, kC}) give_directory(who);
  give(kThis, 6, "x", 10);
  const ObjectId directory = find(kRootId, "d");
  say(kA, {put(id(7), S_IFREG | 0644, 20), NameRecord{id(5), "x", id(7)}, gone("this", id(5), "x", id(6))});
  EXPECT_EQ(find(directory, "x"), id_here(kA, id(7)));
  say(kA, {put(id(8), S_IFREG | 0644, 30), NameRecord{id(5), "x", id(8)}});
  EXPECT_EQ(find(directory, "x"), id_here(kA, id(8)));
  EXPECT_EQ(list(directory), std::set<std::string>{"x"});
  give(kC, 9, "x", 40);
  EXPECT_EQ(find(directory, "x"), id_here(kC, id(9)));
  say(kC, {UnnameRecord{id(5), "x", id(9), false}});
  EXPECT_EQ(find(directory, "x"), id_here(kA, id(8)));
  say(kA, {UnnameRecord{id(5), "x", id(8), false}});
  EXPECT_FALSE(find(directory, "x").valid());
  EXPECT_TRUE(list(directory).empty());
  journal();
  EXPECT_FALSE(find(directory, "x").valid());
}

// The node that removed this node's directory had not read what another one has in its own of that path.
TEST_F(TreePeersTest, ADirectoryOfWhichAPartWasTakenIsThereAllTheTime) {
  for (const Who who : {kThis, kA}) give_directory(who);
  give(kA, 7, "x", 20);
  EXPECT_EQ(find(kRootId, "d"), id(5));
  say(kC, {gone("this", kRootId, "d", id(5))});
  for (int journaled = 0; journaled < 2; ++journaled) {
    const ObjectId directory = find(kRootId, "d");
    EXPECT_EQ(directory, id_here(kA, id(5)));
    EXPECT_EQ(list(kRootId), std::set<std::string>{"d"});
    EXPECT_EQ(find(directory, "x"), id_here(kA, id(7)));
    EXPECT_EQ(list(directory), std::set<std::string>{"x"});
    journal();
  }
}

TEST_F(TreePeersTest, WhatIsSeenInItsPlaceCanBeRemovedAndReplaced) {
  for (const Who who : {kThis, kA}) give_directory(who);
  give(kThis, 6, "x", 10);
  give(kThis, 7, "y", 10);
  const ObjectId directory = find(kRootId, "d");
  say(kA, {put(id(8), S_IFREG | 0644, 20), NameRecord{id(5), "x", id(8)}, gone("this", id(5), "x", id(6)),
           put(id(9), S_IFREG | 0644, 20), NameRecord{id(5), "y", id(9)}, gone("this", id(5), "y", id(7))});
  Tree::Write names = tree_.write();
  ASSERT_TRUE(names.unlink(directory, "x", 0));
  const auto made = std::make_shared<Object>(id(10), put(id(10), S_IFREG | 0644).object.attributes);
  ASSERT_TRUE(names.make_entry(*names.directory_for_entry(directory), "y", made));
  EXPECT_EQ(names.names().dirty(directory, "x")->overridden, std::vector{id_here(kA, id(8))});
  EXPECT_EQ(names.names().dirty(directory, "y")->overridden, std::vector{id_here(kA, id(9))});
  EXPECT_EQ(names.names().dirty(directory, "y")->durable, id(7));
  names.unlock();
  EXPECT_FALSE(find(directory, "x").valid());
  EXPECT_EQ(find(directory, "y"), id(10));
  EXPECT_EQ(list(directory), std::set<std::string>{"y"});
}

// --- statements of a peer about a file that is open for writing here ---

TEST_F(TreePeersTest, AFileThatIsOpenForWritingLosesItsNameAsByAnUnlink) {
  give_both_the_directory();
  for (const bool is_written : {false, true}) {
    const std::string name = is_written ? "written" : "idle";
    const uint64_t number = is_written ? 20 : 10;
    const ObjectPtr object = write(number, name, second_, true);
    journal_version(object, name);
    object->unflushed_handles = is_written ? 1 : 0;
    say(kA, {gone("this", id(5), name, id(number))});
    for (int journaled = 0; journaled < 2; ++journaled) {
      EXPECT_FALSE(find(id(5), name).valid());
      EXPECT_EQ(object->nlink, 0U);
      EXPECT_EQ(tree_.find(object->id), object) << "its writer has it";
      journal();
    }
  }
  EXPECT_TRUE(list(id(5)).empty());
  EXPECT_FALSE(tree_.has_versions());
}

TEST_F(TreePeersTest, WhatTookTheNameOfAFileThatIsOpenForWritingIsSeenAndNothingOnceItGoes) {
  give_both_the_directory();
  journal_version(write(6, "x", second_, true), "x");
  say(kA, {put(id(8), S_IFREG | 0644, 20), NameRecord{id(5), "x", id(8)}, gone("this", id(5), "x", id(6))});
  EXPECT_EQ(find(id(5), "x"), id_here(kA, id(8)));
  journal();
  say(kA, {UnnameRecord{id(5), "x", id(8), true}});
  EXPECT_FALSE(find(id(5), "x").valid());
}

TEST_F(TreePeersTest, AClientInADirectoryThatAPeerRemovedCanStatIt) {
  give_both_the_directory();
  say(kA, {gone("this", kRootId, "d", id(5)), UnnameRecord{kRootId, "d", id(5), false}});
  journal();
  EXPECT_FALSE(find(kRootId, "d").valid());
  const auto stat = tree_.read().stat(id(5));
  ASSERT_TRUE(stat) << stat.error().message;
  EXPECT_EQ(stat->nlink, 0U);
}

TEST_F(TreePeersTest, ADirectoryGoesWithAFileThatIsOpenForWriting) {
  give_both_the_directory();
  journal_version(write(6, "x", second_, true), "x");
  say(kA, {gone("this", id(5), "x", id(6)), gone("this", kRootId, "d", id(5)), UnnameRecord{kRootId, "d", id(5), false}});
  EXPECT_FALSE(find(kRootId, "d").valid());
  journal();
  EXPECT_FALSE(find(kRootId, "d").valid());
}

// Writers of two nodes may use one temporary name for a file each.
TEST_F(TreePeersTest, ATemporaryNameStaysWithTheFileThatIsOpenForWritingUntilThatIsOver) {
  give_both_the_directory();
  for (const bool is_renamed : {true, false}) {
    const uint64_t number = is_renamed ? 6 : 7;
    const std::string name = is_renamed ? "renamed.tmp" : "left.tmp";
    const ObjectPtr object = write(number, name, second_, true);
    ASSERT_TRUE(object->temporary);
    journal_version(object, name);
    say(kA, {gone("this", id(5), name, id(number)), gone("this", kRootId, "d", id(5)), UnnameRecord{kRootId, "d", id(5), false}});
    journal_taken();
    const auto journaled = nodes_[kThis].peer.index->find_name(id(5), name);
    ASSERT_TRUE(journaled);
    EXPECT_FALSE(journaled->has_value()) << "what the next mount begins with";
    clock_.advance_ns(100'000'000'000);
    tree_.write().sweep_versions(false);
    drop_left();
    EXPECT_EQ(find(id(5), name), id(number));
    EXPECT_EQ(find(kRootId, "d"), id(5));
    object->last_write_ns = clock_.monotonic_ns();
    close(object);
    if (is_renamed) {
      EXPECT_TRUE(rename(name, "x", second_));
    }
    clock_.advance_ns(10'000'000'000);
    tree_.write().sweep_versions(false);
    EXPECT_FALSE(find(id(5), name).valid());
    EXPECT_EQ(object->nlink, is_renamed ? 1U : 0U);
    EXPECT_FALSE(tree_.has_versions());
    drop_left();
    EXPECT_EQ(find(kRootId, "d"), id(5));
    EXPECT_EQ(list(id(5)), std::set<std::string>{"x"});
  }
}

TEST_F(TreePeersTest, ADirectoryThatWasTakenGoesWithTheLastFileThatIsOpenForWriting) {
  for (const Who who : {kThis, kA}) say(who, {put(id(5), S_IFDIR | 0755), NameRecord{kRootId, "d", id(5)}, put(id(4), S_IFDIR | 0755), NameRecord{id(5), "s", id(4)}});
  EXPECT_EQ(find(kRootId, "d"), id(5));
  EXPECT_EQ(find(id(5), "s"), id(4));
  const ObjectPtr object = write(6, "x.tmp", second_, true);
  journal_version(object, "x.tmp");
  say(kA, {gone("this", id(5), "x.tmp", id(6)), gone("this", id(5), "s", id(4)), UnnameRecord{id(5), "s", id(4), false}, gone("this", kRootId, "d", id(5)),
           UnnameRecord{kRootId, "d", id(5), false}});
  journal_taken();
  drop_left();
  EXPECT_EQ(find(kRootId, "d"), id(5));
  EXPECT_EQ(list(id(5)), std::set<std::string>{"x.tmp"});
  close(object);
  clock_.advance_ns(10'000'000'000);
  tree_.write().sweep_versions(false);
  drop_left();
  EXPECT_FALSE(find(kRootId, "d").valid());
}

// It was fsynced; the peer had not read of it.
TEST_F(TreePeersTest, AJournaledFileThatIsOpenForWritingKeepsItsTemporaryNameAgainstAFileBornLater) {
  give_both_the_directory();
  for (const bool is_renamed : {true, false}) {
    const uint64_t number = is_renamed ? 10 : 20;
    const std::string name = is_renamed ? "renamed.tmp" : "left.tmp";
    const ObjectPtr object = write(number, name, second_, true);
    journal_version(object, name);
    give(kA, number + 1, name, 20);
    EXPECT_EQ(find(id(5), name), object->id);
    tree_.write().sweep_versions(false);
    EXPECT_EQ(find(id(5), name), object->id);
    close(object);
    if (is_renamed) {
      EXPECT_TRUE(rename(name, "x", second_));
      EXPECT_EQ(find(id(5), "x"), object->id);
    }
    clock_.advance_ns(10'000'000'000);
    tree_.write().sweep_versions(false);
    journal_renamed(is_renamed ? object->id : ObjectId{});
    EXPECT_EQ(find(id(5), name), id_here(kA, id(number + 1)));
    EXPECT_FALSE(tree_.has_versions());
  }
}

TEST_F(TreePeersTest, ANameIsSettledOnceItsFileIsNotWrittenAnyMore) {
  give_both_the_directory();
  const ObjectPtr object = write(6, "x.tmp", second_, true);
  journal_version(object, "x.tmp");
  EXPECT_TRUE(tree_.has_versions());
  close(object);
  tree_.write().sweep_versions(false);
  EXPECT_FALSE(tree_.has_versions());
  journal_version(object, "x.tmp");
  EXPECT_EQ(tree_.read().names().dirty(id(5), "x.tmp"), nullptr);
  EXPECT_EQ(find(id(5), "x.tmp"), id(6));
}

// The statement was about the binding of that time.
TEST_F(TreePeersTest, ATemporaryNameThatWasTakenStaysWhereItIsGivenAnew) {
  give_both_the_directory();
  for (const bool is_linked : {false, true}) {
    const uint64_t number = is_linked ? 6 : 7;
    const std::string name = is_linked ? "linked.tmp" : "renamed.tmp";
    const ObjectPtr object = write(number, name, second_, true);
    journal_version(object, name);
    say(kA, {gone("this", id(5), name, id(number))});
    EXPECT_TRUE(rename(name, "y", second_));
    if (is_linked) {
      Tree::Write names = tree_.write();
      ASSERT_TRUE(names.give_name(id(5), name, object));
      names.change_links(object, +1);
      names.unlock();
      EXPECT_TRUE(tree_.write().unlink(id(5), "y", second_));
    } else {
      EXPECT_TRUE(rename("y", name, second_));
    }
    close(object);
    clock_.advance_ns(100'000'000'000);
    tree_.write().sweep_versions(false);
    EXPECT_EQ(find(id(5), name), id(number));
    EXPECT_EQ(object->nlink, 1U);
    EXPECT_FALSE(tree_.has_versions());
  }
}

// --- statements of a peer about a temporary name with several versions ---

TEST_F(TreePeersTest, AVersionThatIsBeingWrittenKeepsTheNameWhenAPeerTakesAnother) {
  give_both_the_directory();
  write(6, "x.tmp", first_, true);
  const ObjectPtr taken = write_journaled(7, ended_);
  replace_seventh();
  EXPECT_EQ(taken->nlink, 0U);
  EXPECT_EQ(find(id(5), "x.tmp"), id(6));
  EXPECT_EQ(tree_.write().remove_directory(kRootId, "d").error().code, Code::kNotEmpty);
  EXPECT_TRUE(rename("x.tmp", "x", first_));
  EXPECT_EQ(find(id(5), "x"), id(6));
}

TEST_F(TreePeersTest, WhoClosedItsVersionAMomentAgoCanRenameItThoughAPeerTookIt) {
  give_both_the_directory();
  const ObjectPtr open = write(6, "x.tmp", first_, true);
  write_journaled(7, second_);
  replace_seventh();
  close(open);
  EXPECT_TRUE(rename("x.tmp", "first", first_));
  tree_.write().sweep_versions(false);
  EXPECT_TRUE(rename("x.tmp", "second", second_));
  EXPECT_EQ(find(id(5), "first"), id(6));
  EXPECT_EQ(find(id(5), "second"), id(7));
  tree_.write().sweep_versions(false);
  EXPECT_FALSE(tree_.has_versions());
}

TEST_F(TreePeersTest, AVersionThatAPeerTookDoesNotStay) {
  give_both_the_directory();
  const ObjectPtr open = write(6, "x.tmp", first_, true);
  const ObjectPtr taken = write_journaled(7, second_);
  replace_seventh();
  close(open);
  EXPECT_TRUE(rename("x.tmp", "first", first_));
  EXPECT_EQ(find(id(5), "x.tmp"), id(7));
  clock_.advance_ns(10'000'000'000);
  tree_.write().sweep_versions(false);
  EXPECT_EQ(taken->nlink, 0U);
  EXPECT_EQ(find(id(5), "x.tmp"), id_here(kA, id(8)));
  EXPECT_FALSE(tree_.has_versions());
}

TEST_F(TreePeersTest, AVersionThatAPeerTookDoesNotStayWhereItTookANewerOneMeanwhile) {
  give_both_the_directory();
  const ObjectPtr open = write(6, "x.tmp", first_, true);
  const ObjectPtr taken = write_journaled(7, second_);
  say(kA, {gone("this", id(5), "x.tmp", id(7))});
  const ObjectPtr newer = write_journaled(9, ended_);
  say(kA, {gone("this", id(5), "x.tmp", id(9))});
  EXPECT_EQ(newer->nlink, 0U);
  close(open);
  EXPECT_TRUE(rename("x.tmp", "first", first_));
  EXPECT_EQ(find(id(5), "x.tmp"), id(7));
  clock_.advance_ns(10'000'000'000);
  tree_.write().sweep_versions(false);
  EXPECT_EQ(taken->nlink, 0U);
  EXPECT_FALSE(find(id(5), "x.tmp").valid());
}

// Both threads are of one process.
TEST_F(TreePeersTest, AThreadRenamesAVersionThatAPeerTookThoughAnotherOfItsProcessWroteTheNameSince) {
  give_both_the_directory();
  write(6, "x.tmp", first_, true);
  const ObjectPtr taken = write_journaled(7, second_);
  replace_seventh();
  journal_taken();
  const ObjectPtr of_another_thread = write(9, "x.tmp", first_, false);
  of_another_thread->writer_process = second_;
  tree_.write().sweep_versions(false);
  EXPECT_TRUE(rename("x.tmp", "second", second_));
  EXPECT_EQ(find(id(5), "second"), taken->id);
  EXPECT_EQ(find(id(5), "x.tmp"), id(9));
}

TEST_F(TreePeersTest, AnOlderVersionThatAPeerTookDoesNotComeBack) {
  give_both_the_directory();
  write(6, "x.tmp", first_, true);
  const ObjectPtr taken = write_journaled(7, second_);
  write(9, "x.tmp", second_, false);
  replace_seventh();
  EXPECT_EQ(taken->nlink, 0U);
  EXPECT_EQ(find(id(5), "x.tmp"), id(9));
  EXPECT_TRUE(rename("x.tmp", "x", second_));
  EXPECT_EQ(find(id(5), "x"), id(9));
  EXPECT_EQ(find(id(5), "x.tmp"), id(6)) << "which is being written";
}

TEST_F(TreePeersTest, AnOlderVersionThatTheJournalDoesNotTellOfAnyMoreGoesToo) {
  give_both_the_directory();
  write(6, "x.tmp", first_, true);
  const ObjectPtr taken = write_journaled(7, second_);
  write_journaled(9, second_);
  replace_seventh();
  EXPECT_EQ(taken->nlink, 0U);
  EXPECT_TRUE(rename("x.tmp", "x", second_));
  EXPECT_EQ(find(id(5), "x.tmp"), id(6)) << "which is being written";
}

TEST_F(TreePeersTest, WhatTookANameOfWhichNoVersionIsWrittenAnyMoreIsSeenAtOnce) {
  give_both_the_directory();
  for (const std::string name : {"replaced.tmp", "removed.tmp"}) {
    const uint64_t number = name == "replaced.tmp" ? 10 : 20;
    const ObjectPtr older = write(number, name, ended_, false), newer = write(number + 1, name, second_, false);
    journal_version(newer, name);
    say(kA, {gone("this", id(5), name, newer->id)});
    EXPECT_EQ(older->nlink, 0U);
    EXPECT_EQ(newer->nlink, 0U);
    EXPECT_FALSE(find(id(5), name).valid());
  }
  say(kA, {put(id(8), S_IFREG | 0644, 20), NameRecord{id(5), "replaced.tmp", id(8)}});
  EXPECT_EQ(find(id(5), "replaced.tmp"), id_here(kA, id(8)));
  EXPECT_EQ(list(id(5)), std::set<std::string>{"replaced.tmp"});
  EXPECT_EQ(tree_.write().remove_directory(kRootId, "d").error().code, Code::kNotEmpty);
  journal();
  EXPECT_EQ(list(id(5)), std::set<std::string>{"replaced.tmp"});
}

// --- a peer that has not read the versions of a temporary name gives it to another file, and states nothing ---

TEST_F(TreePeersTest, VersionsThatLoseAgainstAFileBornLaterGoAtOnce) {
  give_both_the_directory();
  const ObjectPtr older = write(6, "x.tmp", second_, false), newer = write_journaled(7, second_);
  give(kA, 8, "x.tmp", 20);
  for (int journaled = 0; journaled < 2; ++journaled) {
    EXPECT_EQ(find(id(5), "x.tmp"), id_here(kA, id(8)));
    EXPECT_EQ(list(id(5)), std::set<std::string>{"x.tmp"});
    EXPECT_EQ(older->nlink, 0U);
    EXPECT_EQ(newer->nlink, 0U);
    journal();
  }
  EXPECT_EQ(tree_.read().names().dirty(id(5), "x.tmp"), nullptr);
  const auto own = nodes_[kThis].peer.index->find_name(id(5), "x.tmp");  // what the next mount begins with
  ASSERT_TRUE(own);
  EXPECT_FALSE(own->has_value());
}

TEST_F(TreePeersTest, AReaderOfALosingVersionReadsOnWithoutTheName) {
  give_both_the_directory();
  const ObjectPtr older = write(6, "x.tmp", ended_, false), newer = write_journaled(7, ended_);
  older->handles = newer->handles = 1;
  give(kA, 8, "x.tmp", 20);
  EXPECT_EQ(find(id(5), "x.tmp"), id_here(kA, id(8)));
  for (const ObjectPtr& read : {older, newer}) {
    EXPECT_EQ(read->nlink, 0U);
    EXPECT_EQ(tree_.find(read->id), read);
  }
}

TEST_F(TreePeersTest, AVersionThatIsBeingWrittenKeepsTheNameAgainstAFileBornLater) {
  give_both_the_directory();
  const ObjectPtr open = write(6, "x.tmp", first_, true), newer = write_journaled(7, second_);
  give(kA, 8, "x.tmp", 20);
  tree_.write().sweep_versions(false);
  EXPECT_EQ(find(id(5), "x.tmp"), id(7)) << "whose writer may be about to rename it";
  clock_.advance_ns(10'000'000'000);
  tree_.write().sweep_versions(false);
  EXPECT_EQ(newer->nlink, 0U);
  EXPECT_EQ(find(id(5), "x.tmp"), id(6));
  close(open);
  journal_version(open, "x.tmp");
  EXPECT_EQ(find(id(5), "x.tmp"), id_here(kA, id(8)));
  EXPECT_FALSE(tree_.has_versions());
}

TEST_F(TreePeersTest, ALosingVersionCanBeRenamedAsLongAsItsWriterMayBeAboutTo) {
  give_both_the_directory();
  write(6, "x.tmp", first_, true);
  write_journaled(7, second_);
  give(kA, 8, "x.tmp", 20);
  EXPECT_TRUE(rename("x.tmp", "second", second_));
  EXPECT_TRUE(rename("x.tmp", "first", first_));
  EXPECT_EQ(find(id(5), "second"), id(7));
  EXPECT_EQ(find(id(5), "first"), id(6));
}

TEST_F(TreePeersTest, AVersionLosesOnlyOnceItIsJournaled) {
  give_both_the_directory();
  for (const int64_t born_ns : {10, 30}) {
    const std::string name = born_ns < 20 ? "loses.tmp" : "wins.tmp";
    const auto number = static_cast<uint64_t>(born_ns);
    const ObjectPtr older = write(number, name, ended_, false), newer = write(number + 1, name, ended_, false);
    give(kA, number + 2, name, 20);
    tree_.write().sweep_versions(false);
    EXPECT_EQ(older->nlink, 1U);
    EXPECT_EQ(find(id(5), name), newer->id);
    journal_version(newer, name, born_ns);
    tree_.write().sweep_versions(false);
    EXPECT_EQ(find(id(5), name), born_ns < 20 ? id_here(kA, id(number + 2)) : newer->id);
    EXPECT_EQ(newer->nlink, born_ns < 20 ? 0U : 1U);
  }
}

TEST_F(TreePeersTest, VersionsAlsoLoseAgainstAFileThatCameWithAllThatAPeerHas) {
  give_both_the_directory();
  write(6, "x.tmp", ended_, false);
  write_journaled(7, ended_);
  const Batch batch{Stamp{++nodes_[kA].batches}, {put(id(8), S_IFREG | 0644, 20), NameRecord{id(5), "x.tmp", id(8)}}};
  Tree::Write names = tree_.write();
  ASSERT_TRUE(nodes_[kA].state.apply(batch, {1, 0, 1000}));
  names.follow_all(kA);
  names.unlock();
  EXPECT_EQ(find(id(5), "x.tmp"), id_here(kA, id(8)));
}

TEST_F(TreePeersTest, AFileBornEarlierTakesNoVersion) {
  give_both_the_directory();
  const ObjectPtr older = write(6, "x.tmp", second_, false), newer = write_journaled(7, second_);
  give(kA, 8, "x.tmp", 5);
  give(kA, 9, "y.tmp", 20);
  tree_.write().sweep_versions(false);
  EXPECT_EQ(find(id(5), "x.tmp"), id(7));
  EXPECT_EQ(older->nlink, 1U);
  EXPECT_EQ(newer->nlink, 1U);
}

// --- a file that lost its temporary name to a peer's between its close and its rename ---

TEST_F(TreePeersTest, ItsWriterRenamesAJournaledFileThatAPeersHides) {
  give_both_the_directory();
  const ObjectPtr object = write_journaled(7, second_);
  give(kA, 8, "x.tmp", 20);
  EXPECT_EQ(find(id(5), "x.tmp"), id_here(kA, id(8)));
  EXPECT_TRUE(tree_.read().hides_version(id(5), "x.tmp", id_here(kA, id(8))));
  EXPECT_FALSE(rename("x.tmp", "x", first_)) << "it is no file of this writer";
  EXPECT_TRUE(rename("x.tmp", "x", second_));
  EXPECT_FALSE(rename("x.tmp", "y", second_)) << "it has no other";
  for (int journaled = 0; journaled < 2; ++journaled) {
    EXPECT_EQ(find(id(5), "x"), object->id);
    EXPECT_EQ(find(id(5), "x.tmp"), id_here(kA, id(8)));
    EXPECT_EQ(object->nlink, 1U);
    journal_renamed(object->id);
  }
  const auto own = nodes_[kThis].peer.index->find_name(id(5), "x.tmp");
  ASSERT_TRUE(own);
  EXPECT_FALSE(own->has_value());
  EXPECT_EQ(tree_.read().names().dirty(id(5), "x.tmp"), nullptr);
}

// Before the journal has that the name went, and after it.
TEST_F(TreePeersTest, ItsWriterRenamesAFileThatAPeerReplaced) {
  give_both_the_directory();
  for (const bool is_journaled : {false, true}) {
    const std::string name = is_journaled ? "early.tmp" : "late.tmp", to = name.substr(0, name.size() - 4);
    const uint64_t number = is_journaled ? 10 : 20;
    const ObjectPtr object = write(number, name, second_, false);
    journal_version(object, name);
    say(kA, {put(id(number + 1), S_IFREG | 0644, 20), NameRecord{id(5), name, id(number + 1)}, gone("this", id(5), name, id(number))});
    EXPECT_EQ(find(id(5), name), id_here(kA, id(number + 1)));
    EXPECT_EQ(object->nlink, 0U);
    if (is_journaled) journal();
    EXPECT_EQ(tree_.find(object->id), object);
    EXPECT_TRUE(rename(name, to, second_));
    EXPECT_EQ(object->durable, !is_journaled) << "its record is to be written anew";
    EXPECT_EQ(object->nlink, 1U);
    if (is_journaled) say(kThis, {put(object->id, S_IFREG | 0644, 10)});
    journal_renamed(object->id);
    EXPECT_EQ(find(id(5), to), object->id);
    EXPECT_EQ(find(id(5), name), id_here(kA, id(number + 1)));
    tree_.write().sweep_versions(false);
    EXPECT_FALSE(tree_.has_versions());
  }
}

TEST_F(TreePeersTest, ItsWriterRenamesAFileThoughThePeersWasRenamedBefore) {
  give_both_the_directory();
  const ObjectPtr object = write_journaled(7, second_);
  replace_seventh();
  journal();
  say(kA, {NameRecord{id(5), "x", id(8)}, UnnameRecord{id(5), "x.tmp", id(8), false}});
  EXPECT_FALSE(find(id(5), "x.tmp").valid());
  EXPECT_EQ(find(id(5), "x"), id_here(kA, id(8)));
  EXPECT_TRUE(rename("x.tmp", "x", second_));
  EXPECT_EQ(find(id(5), "x"), object->id);
  EXPECT_EQ(list(id(5)), std::set<std::string>{"x"});
  const NameState* const state = tree_.read().names().dirty(id(5), "x");
  ASSERT_NE(state, nullptr);
  EXPECT_EQ(state->overridden, std::vector{id_here(kA, id(8))});
}

// Both are closed and of one process; the journal has the newer one.
TEST_F(TreePeersTest, EachThreadRenamesItsOwnOfVersionsThatLost) {
  give_both_the_directory();
  const ObjectPtr older = write(6, "x.tmp", second_, false), newer = write_journaled(7, first_);
  older->writer_process = newer->writer_process = 1;
  give(kA, 8, "x.tmp", 20);
  EXPECT_EQ(find(id(5), "x.tmp"), id_here(kA, id(8)));
  EXPECT_TRUE(rename("x.tmp", "older", second_));
  EXPECT_TRUE(rename("x.tmp", "newer", first_));
  EXPECT_EQ(find(id(5), "older"), older->id);
  EXPECT_EQ(find(id(5), "newer"), newer->id);
  EXPECT_EQ(find(id(5), "x.tmp"), id_here(kA, id(8)));
}

TEST_F(TreePeersTest, AFileThatLostItsNameGoesOnceItsWriterIsNotAboutToRenameIt) {
  give_both_the_directory();
  const ObjectPtr object = write_journaled(7, second_);
  replace_seventh();
  for (int journaled = 0; journaled < 2; ++journaled) journal();
  EXPECT_EQ(tree_.find(id(7)), object);
  clock_.advance_ns(10'000'000'000);
  tree_.write().sweep_versions(false);
  EXPECT_EQ(object->nlink, 0U);
  EXPECT_FALSE(tree_.find(id(7)));
  EXPECT_FALSE(tree_.has_versions());
  EXPECT_FALSE(rename("x.tmp", "x", second_));
}

TEST_F(TreePeersTest, AFileThatLostItsNameGoesAtTheEndOfTheMountAndBeforeItsSuccessor) {
  give_both_the_directory();
  const ObjectPtr first = write_journaled(7, second_);
  replace_seventh();
  journal();
  make(id(5), 9, "x.tmp");  // in place of the peer's
  const ObjectPtr anew = tree_.find(id(9));
  note_writer(*anew, second_);
  anew->last_write_ns = clock_.monotonic_ns();
  EXPECT_TRUE(rename("x.tmp", "x", second_));
  EXPECT_EQ(find(id(5), "x"), id(9));
  EXPECT_FALSE(tree_.find(id(7)));
  const ObjectPtr last = write(10, "y.tmp", second_, false);
  journal_version(last, "y.tmp");
  say(kA, {gone("this", id(5), "y.tmp", id(10))});
  EXPECT_TRUE(tree_.has_versions());
  tree_.write().sweep_versions(true);
  EXPECT_FALSE(tree_.has_versions());
}

TEST_F(TreePeersTest, ARemovalByItsWriterLeavesThePeersFile) {
  give_both_the_directory();
  for (const bool is_replaced : {false, true}) {
    const std::string name = is_replaced ? "replaced.tmp" : "hidden.tmp";
    const uint64_t number = is_replaced ? 10 : 20;
    const ObjectPtr object = write(number, name, second_, false);
    journal_version(object, name);
    give(kA, number + 1, name, 20);
    if (is_replaced) say(kA, {gone("this", id(5), name, id(number))});
    EXPECT_TRUE(tree_.write().unlink(id(5), name, second_));
    EXPECT_EQ(object->nlink, 0U);
    journal();
    EXPECT_EQ(find(id(5), name), id_here(kA, id(number + 1)));
    EXPECT_FALSE(tree_.find(object->id));
    EXPECT_TRUE(tree_.write().unlink(id(5), name, second_));
    EXPECT_FALSE(find(id(5), name).valid()) << "the peer's";
    journal();
  }
}

using TreePeersDeathTest = TreePeersTest;

TEST_F(TreePeersDeathTest, ARemovalOfAFileThatLostItsNameHasAKillPoint) {
  give_both_the_directory();
  write_journaled(7, second_);
  replace_seventh();
  EXPECT_EQ(find(id(5), "x.tmp"), id_here(kA, id(8)));
  const auto remove = [&] {
    if (arm_kill_point("name-removed")) static_cast<void>(tree_.write().unlink(id(5), "x.tmp", second_));
  };
  EXPECT_EXIT(remove(), ::testing::KilledBySignal(SIGKILL), "");
}

TEST_F(TreePeersTest, FilesThatLostTheirNamesAreBoundedInBytes) {
  give_both_the_directory();
  std::vector<ObjectPtr> objects;
  for (const uint64_t number : {10, 11, 12, 13}) {
    const std::string name = std::to_string(number) + ".tmp";
    objects.push_back(write(number, name, second_, false));
    objects.back()->size_bytes = number == 13 ? 65 * kMiB : 25 * kMiB;  // of 64
    journal_version(objects.back(), name);
    say(kA, {gone("this", id(5), name, id(number))});
  }
  journal();
  for (const ObjectPtr& object : objects) EXPECT_EQ(rename(std::to_string(object->id.number()) + ".tmp", "x", second_), object == objects[1] || object == objects[2]);
}

// Clients of this node and of a peer use the name; there is no room for what the first one wrote.
TEST_F(TreePeersTest, ThatItsFileCouldNotBeKeptIsToldToItsWriterAndNoOtherFileIsMovedForIt) {
  give_both_the_directory();
  const auto lose = [&](uint64_t number, const std::string& name) {
    const ObjectPtr object = write(number, name, second_, false);
    object->size_bytes = 65 * kMiB;
    journal_version(object, name);
    say(kA, {gone("this", id(5), name, id(number))});
    journal();
    EXPECT_FALSE(tree_.find(id(number))) << "nothing of it is kept";
  };
  const auto rename_by_its_writer = [&](const std::string& name) {
    Rename asked{id(5), name, id(5), "x", RenameMode::kReplace, second_};
    const Status resolved = tree_.write().resolve_rename(asked);
    return resolved ? Code::kNoData : resolved.error().code;
  };
  lose(10, "a.tmp");
  EXPECT_EQ(rename_by_its_writer("a.tmp"), Code::kAbsentForNow);
  write(11, "a.tmp", first_, false);
  EXPECT_EQ(rename_by_its_writer("a.tmp"), Code::kAbsentForNow);
  EXPECT_TRUE(tree_.read().lost_name_to(second_, id(11))) << "a link is refused, too";
  EXPECT_TRUE(tree_.write().unlink(id(5), "a.tmp", second_)) << "its file is gone";
  EXPECT_EQ(find(id(5), "a.tmp"), id(11));
  EXPECT_FALSE(tree_.read().lost_name_to(second_, id(11)));
  EXPECT_TRUE(rename("a.tmp", "first", first_));
  EXPECT_EQ(find(id(5), "first"), id(11));
  tree_.write().sweep_versions(false);
  EXPECT_FALSE(tree_.has_versions());

  lose(20, "b.tmp");
  write(21, "b.tmp", first_, false);
  write(22, "b.tmp", second_, false);
  EXPECT_TRUE(rename("b.tmp", "second", second_)) << "it wrote the name anew";
  EXPECT_EQ(find(id(5), "second"), id(22));
  EXPECT_FALSE(tree_.read().lost_name_to(second_, id(21))) << "that is over";

  lose(30, "c.tmp");
  write(31, "c.tmp", first_, false);
  EXPECT_EQ(rename_by_its_writer("c.tmp"), Code::kAbsentForNow);
  clock_.advance_ns(10'000'000'000);
  tree_.write().sweep_versions(false);
  EXPECT_EQ(rename_by_its_writer("c.tmp"), Code::kNoData) << "after its time";
}

TEST_F(TreePeersTest, OfFilesThatLostTheirNamesTheOldestIsGivenUpAndItsWriterIsTold) {
  give_both_the_directory();
  for (const uint64_t number : {10, 11}) {
    const ObjectPtr object = write(number, std::to_string(number) + ".tmp", second_, false);
    object->size_bytes = 40 * kMiB;  // of 64
    journal_version(object, std::to_string(number) + ".tmp");
    say(kA, {gone("this", id(5), std::to_string(number) + ".tmp", id(number))});
  }
  journal();
  write(12, "10.tmp", first_, false);
  EXPECT_FALSE(rename("10.tmp", "x", second_));
  EXPECT_TRUE(rename("11.tmp", "x", second_));
  EXPECT_EQ(find(id(5), "10.tmp"), id(12));
}

// Reading which process a thread belongs to takes time, and the lock is that of all names.
TEST_F(TreePeersTest, WhoseFilesLostTheirNamesIsNotReadUnderTheLock) {
  give_both_the_directory();
  for (const bool is_hidden : {false, true}) {
    const ObjectPtr object = write_journaled(is_hidden ? 9 : 7, second_);
    const uint64_t before = unknown_processes_asked_for();
    if (is_hidden) give(kA, 8, "x.tmp", 20);
    else say(kA, {gone("this", id(5), "x.tmp", id(7))});
    const auto rename_by = [&](uint32_t thread) {
      const KnownProcess process(thread, tree_.asks_for_process(id(5), "x.tmp"));
      return rename("x.tmp", is_hidden ? "hidden" : "replaced", thread);
    };
    EXPECT_FALSE(rename_by(first_));
    EXPECT_TRUE(rename_by(second_));
    EXPECT_EQ(unknown_processes_asked_for(), before);
    journal_renamed(object->id);
  }
}

TEST_F(TreePeersTest, ANameHidesAFileOnlyForSomeSecondsAfterThatWasJournaled) {
  give_both_the_directory();
  write_journaled(7, second_);
  give(kA, 8, "x.tmp", 20);
  EXPECT_TRUE(tree_.read().hides_version(id(5), "x.tmp", id_here(kA, id(8))));
  EXPECT_TRUE(tree_.asks_for_process(id(5), "x.tmp"));
  clock_.advance_ns(10'000'000'000);
  EXPECT_FALSE(tree_.read().hides_version(id(5), "x.tmp", id_here(kA, id(8))));
  EXPECT_FALSE(tree_.asks_for_process(id(5), "x.tmp"));
}

// --- what a peer put in quarantine ---

TEST_F(TreePeersTest, WhatAPeerPutInQuarantineIsAbsent) {
  give_both_the_directory();
  const ObjectId seen = id_here(kA, id(7));
  PutRecord damaged = put(id(7), S_IFREG | 0644, 20);
  damaged.object.body.quarantined = true;
  const auto expect = [&](bool there, const char* why) {
    EXPECT_EQ(find(id(5), "x"), there ? seen : ObjectId{}) << why;
    EXPECT_EQ(list(id(5)), (there ? std::set<std::string>{"x", "y"} : std::set<std::string>{"y"})) << why;
    EXPECT_EQ(tree_.read().is_quarantined(seen), !there) << why;
  };
  give(kA, 7, "x", 20);
  give(kA, 8, "y", 20);
  expect(true, "whole");
  tree_.write().found_quarantined(seen);
  expect(false, "this node found it damaged");
  say(kA, {damaged});
  expect(false, "its node found it damaged, too");
  {
    Tree::Write names = tree_.write();
    names.follow_all(kA);
  }
  expect(false, "all of that node was read anew");
  EXPECT_TRUE(tree_.read().check_new_name(id(5), "x"));
  EXPECT_EQ(tree_.write().remove_directory(kRootId, "d").error().code, Code::kNotEmpty) << "y";
  say(kA, {put(id(7), S_IFREG | 0644, 20)});
  expect(true, "its node has another body");
  say(kA, {damaged, UnnameRecord{id(5), "y", id(8), false}});
  EXPECT_TRUE(list(id(5)).empty());
  EXPECT_TRUE(tree_.write().remove_directory(kRootId, "d"));
}

// The first that is heard of that node.
TEST_F(TreePeersTest, WhatAPeerHadInQuarantineBeforeItWasReadIsAbsent) {
  give_both_the_directory();
  PutRecord damaged = put(id(7), S_IFREG | 0644, 20);
  damaged.object.body.quarantined = true;
  Tree::Write names = tree_.write();
  ASSERT_TRUE(nodes_[kA].state.apply({Stamp{++nodes_[kA].batches}, {damaged, NameRecord{id(5), "x", id(7)}}}, {1, 0, 1000}));
  names.follow_all(kA);
  names.unlock();
  EXPECT_FALSE(find(id(5), "x").valid());
  EXPECT_TRUE(list(id(5)).empty());
}

// --- directories that clients have only read ---

// "x" of peer a, in directory 5, as 9.
class TreePeersChangedFile : public TreePeersTest {
 protected:
  TreePeersChangedFile() {
    give_both_the_directory();
    say(kA, {put_version(1, 1000), NameRecord{id(5), "x", id(9)}});
  }
  PutRecord put_version(uint32_t version, uint64_t size_bytes, PlaceKind kind = PlaceKind::kPacked) {
    PutRecord made = put(id(9), S_IFREG | 0644);
    made.object.attributes.mtime_ns = 100 * version;
    made.object.body.size_bytes = size_bytes;
    made.object.body.version = version;
    made.object.body.place = {kind, {1, 1}, kind == PlaceKind::kRaw ? 0 : 8192ull * version, size_bytes};
    if (kind != PlaceKind::kRaw) made.object.body.checksums = {version};
    return made;
  }
  // An open, as of a client.
  ObjectPtr open() {
    ObjectPtr object = tree_.get(there_).value_or(nullptr);
    EXPECT_TRUE(object);
    const auto lock = object->lock();
    object->add_handle();
    return object;
  }
  void close(const ObjectPtr& object) {
    {
      const auto lock = object->lock();
      object->drop_handle();
    }
    tree_.forget_when_idle(object);
  }
  Stat stat(ObjectId which) {
    const auto found = tree_.read().stat(which);
    EXPECT_TRUE(found) << found.error().message;
    return found.value_or(Stat{});
  }
  std::vector<ObjectId> told() { return tree_.write().still_read(kA); }

  const ObjectId there_ = ObjectId::make(kA, 1, 9);
  const std::vector<ObjectId> nothing_, it_{id(9)};
};

TEST_F(TreePeersChangedFile, IsFoundAsItIsNowThoughAClientHasItOpenAsItWas) {
  const size_t in_ram = tree_.read().objects_in_ram();
  const ObjectPtr first = open();
  EXPECT_FALSE(first->outdated.load().valid());
  say(kA, {put_version(2, 3000)});
  EXPECT_EQ(told(), it_);
  Stat now = stat(there_);
  EXPECT_EQ(now.size_bytes, 3000u);
  EXPECT_EQ(now.mtime_ns, 200);
  const ObjectPtr second = open();
  EXPECT_NE(second, first);
  EXPECT_EQ(second->base.version, 2u);
  say(kA, {put_version(3, 500)});
  EXPECT_EQ(stat(there_).size_bytes, 500u);
  for (const auto& [object, size_bytes, mtime_ns] : {std::tuple{first, 1000u, 100}, std::tuple{second, 3000u, 200}}) {  // each as one
    const Stat before = stat(object->outdated);
    EXPECT_EQ(before.id, there_);
    EXPECT_EQ(before.size_bytes, size_bytes);
    EXPECT_EQ(before.mtime_ns, mtime_ns);
    EXPECT_EQ(tree_.get(object->outdated).value_or(nullptr), object) << "as by /proc/self/fd/3";
  }
  const ObjectPtr third = open();
  close(first);
  EXPECT_EQ(told(), it_) << "the second is open";
  close(second);
  EXPECT_EQ(told(), nothing_) << "what its node has now is held by no reader";
  EXPECT_EQ(tree_.read().live(there_), third);
  EXPECT_FALSE(tree_.get(second->outdated));
  close(third);
  EXPECT_EQ(tree_.read().objects_in_ram(), in_ram);
  EXPECT_EQ(stat(there_).size_bytes, 500u);
}

TEST_F(TreePeersChangedFile, IsReadOnWhenItGoesThen) {
  const ObjectPtr first = open();
  say(kA, {put_version(2, 3000)});
  const ObjectPtr second = open();
  say(kA, {UnnameRecord{id(5), "x", id(9), false}});
  EXPECT_FALSE(find(id(5), "x").valid());
  EXPECT_EQ(stat(first->outdated).nlink, 0u);
  EXPECT_EQ(stat(first->outdated).size_bytes, 1000u);
  EXPECT_EQ(stat(there_).size_bytes, 3000u);
  close(first);
  EXPECT_EQ(told(), it_);
  close(second);
  EXPECT_EQ(told(), nothing_);
}

// The kernel asks for the attributes of what it found a moment ago before it opens it.
TEST_F(TreePeersChangedFile, HasItsAttributesStillWhenItGoesThenAndNobodyOpenedIt) {
  const ObjectPtr first = open();
  say(kA, {put_version(2, 3000)});
  say(kA, {UnnameRecord{id(5), "x", id(9), false}});
  for (const ObjectId each : {there_, first->outdated.load()}) {
    EXPECT_EQ(stat(each).nlink, 0u);
    EXPECT_EQ(stat(each).size_bytes, 1000u);
  }
  close(first);
  EXPECT_EQ(stat(there_).nlink, 0u);
}

TEST_F(TreePeersChangedFile, IsToldOfAlsoWhereAllOfItsNodeIsReadAnew) {
  const ObjectPtr first = open();
  say(kA, {put_version(2, 3000)});
  tree_.write().follow_all(kA);
  EXPECT_EQ(told(), it_);
  close(first);
  EXPECT_EQ(told(), nothing_);
}

TEST_F(TreePeersChangedFile, OfWhichOnlyAttributesChangedIsTheSame) {
  const ObjectPtr first = open();
  PutRecord same = put_version(1, 1000);
  same.object.attributes.mode = S_IFREG | 0600;
  say(kA, {same});
  EXPECT_EQ(open(), first);
  EXPECT_EQ(stat(there_).mode & 0777, 0600u);
  close(first);
  close(first);
}

// It was moved out of a pack.
TEST_F(TreePeersChangedFile, OfWhichOnlyThePlaceChangedIsTheSame) {
  const auto put_elsewhere = [this](uint32_t version) {
    PutRecord moved = put_version(version, 1000);
    moved.object.body.checksums = {1};
    return moved;
  };
  const ObjectPtr first = open();
  say(kA, {put_elsewhere(2)});
  EXPECT_EQ(open(), first);
  EXPECT_EQ(first->base.version, 2u);
  EXPECT_EQ(first->base.place.offset, 2 * 8192u);
  EXPECT_EQ(told(), nothing_);
  first->loading[0];
  say(kA, {put_elsewhere(3)});
  EXPECT_NE(open(), first) << "a read is under way at the former place";
  EXPECT_EQ(first->base.version, 2u);
  EXPECT_EQ(told(), it_);
  first->loading.clear();
  close(*tree_.get(there_));
  close(first);
  close(first);
}

TEST_F(TreePeersChangedFile, ThatIsRawIsTheSameWithItsNewLength) {
  say(kA, {put_version(2, 4000, PlaceKind::kRaw)});
  const ObjectPtr first = open();
  say(kA, {put_version(3, 9000, PlaceKind::kRaw)});
  EXPECT_EQ(open(), first);
  EXPECT_EQ(stat(there_).size_bytes, 9000u);
  EXPECT_EQ(stat(there_).mtime_ns, 300);
  EXPECT_EQ(first->size_bytes, 9000u);
  close(first);
  close(first);
}

TEST_F(TreePeersTest, ALookWritesNothing) {
  give_directory(kA);
  say(kA, {put(id(6), S_IFDIR | 0755), NameRecord{id(5), "e", id(6)}});
  const ObjectId directory = look_up_directory(kRootId, "d", 20), lower = look_up_directory(directory, "e", 21);
  EXPECT_EQ(lower, id(21));
  EXPECT_EQ(look_up_directory(kRootId, "d", 22), directory);
  EXPECT_TRUE(tree_.write().names().take_pending().empty());
  EXPECT_FALSE(parts_.dirty.has_attributes());
  // It looks as its node has it.
  PutRecord touched = put(id(6), S_IFDIR | 0700);
  touched.object.attributes.mtime_ns = 77;
  say(kA, {touched});
  EXPECT_EQ(tree_.read().stat(lower)->mtime_ns, 77);
  EXPECT_EQ(tree_.read().stat(lower)->mode, S_IFDIR | 0700);
  // And it goes when its node's goes.
  say(kA, {UnnameRecord{id(5), "e", id(6), false}, UnnameRecord{kRootId, "d", id(5), false}});
  drop_left();
  EXPECT_TRUE(list(kRootId).empty());
  EXPECT_FALSE(tree_.read().is_only_adopted(directory));
}

TEST_F(TreePeersTest, WithTheFirstNameInItTheJournalIsToldOfADirectoryAndOfThoseAboveIt) {
  give_directory(kA);
  say(kA, {put(id(6), S_IFDIR | 0755), NameRecord{id(5), "e", id(6)}});
  const ObjectId directory = look_up_directory(kRootId, "d", 20), lower = look_up_directory(directory, "e", 21);
  make(lower, 23, "file");
  std::vector<std::string> pending;
  Tree::Write names = tree_.write();
  for (const DirtyName& name : names.names().take_pending()) pending.push_back(name.key.name);
  EXPECT_EQ(pending, (std::vector<std::string>{"d", "e", "file"}));
  std::vector<ObjectId> changed;
  for (const ObjectPtr& object : parts_.dirty.take_attributes()) changed.push_back(object->id);
  EXPECT_NE(std::ranges::find(changed, directory), changed.end());
  EXPECT_NE(std::ranges::find(changed, lower), changed.end());
  EXPECT_FALSE(names.is_only_adopted(directory));
  EXPECT_FALSE(names.is_only_adopted(lower));
}

TEST_F(TreePeersTest, WhatAClientChangesOfADirectoryThatIsOnlyAdoptedIsSeen) {
  give_directory(kA);
  const ObjectId directory = look_up_directory(kRootId, "d", 20);
  {
    Tree::Write names = tree_.write();
    const ObjectPtr object = names.live(directory);
    const auto lock = object->lock();
    object->attributes.mode = S_IFDIR | 0700;
    mark_attributes_dirty(object, parts_.records, parts_.dirty);
  }
  EXPECT_EQ(tree_.read().stat(directory)->mode, S_IFDIR | 0700U);
}

TEST_F(TreePeersTest, ADirectoryIsJournaledAsItsNodeHasItByThen) {
  give_directory(kA);
  const ObjectId directory = look_up_directory(kRootId, "d", 20);
  say(kA, {put(id(5), S_IFDIR | 0700)});
  make(directory, 23, "file");
  EXPECT_FALSE(tree_.read().is_only_adopted(directory));
  EXPECT_EQ(tree_.read().stat(directory)->mode, S_IFDIR | 0700U);
}

TEST_F(TreePeersTest, WhatGoesWithADirectoryOfAPeerWritesNothing) {
  give_directory(kA);
  say(kA, {put(id(6), S_IFDIR | 0755), NameRecord{id(5), "e", id(6)}});
  const ObjectId directory = look_up_directory(kRootId, "d", 20);
  look_up_directory(directory, "e", 21);
  say(kA, {UnnameRecord{id(5), "e", id(6), false}});
  drop_left();
  EXPECT_FALSE(parts_.dirty.has_attributes());
  EXPECT_TRUE(tree_.read().is_only_adopted(directory));
}

// A client that merely looked at the directory causes no statement about it.
TEST_F(TreePeersTest, WhatAPeerPutsInPlaceOfItsDirectoryStays) {
  give_directory(kA);
  const ObjectId directory = look_up_directory(kRootId, "d", 20);
  say(kA, {UnnameRecord{kRootId, "d", id(5), false}, put(id(9), S_IFREG | 0644), NameRecord{kRootId, "d", id(9)}});
  drop_left();
  Tree::Write names = tree_.write();
  EXPECT_FALSE(names.live(directory));
  const NameState* const state = names.names().dirty(kRootId, "d");
  EXPECT_TRUE(state == nullptr || state->overridden.empty());
  names.unlock();
  EXPECT_EQ(find(kRootId, "d"), id_here(kA, id(9)));
}

// It is nothing that its node knows of, and that could keep the directory.
TEST_F(TreePeersTest, ADirectoryIsTakenThoughClientsLookedAtOneInIt) {
  for (const Who who : {kThis, kA}) give_directory(who);
  say(kA, {put(id(6), S_IFDIR | 0755), NameRecord{id(5), "e", id(6)}, put(id(7), S_IFDIR | 0755), NameRecord{id(6), "f", id(7)}});
  const ObjectId directory = look_up_directory(kRootId, "d", 20), lower = look_up_directory(directory, "e", 21),
                 lowest = look_up_directory(lower, "f", 22);
  EXPECT_TRUE(tree_.read().is_only_adopted(lowest));
  say(kA, {UnnameRecord{id(6), "f", id(7), false}, UnnameRecord{id(5), "e", id(6), false}, UnnameRecord{kRootId, "d", id(5), false},
           gone("this", kRootId, "d", id(5))});
  drop_left();
  EXPECT_FALSE(find(kRootId, "d").valid());
  journal();
  EXPECT_FALSE(find(kRootId, "d").valid());
}

// One above another is found empty in a later pass only, also if other pieces of a pass drop nothing.
TEST_F(TreePeersTest, DirectoriesGoWithThoseAboveThemInPiecesOfAnySize) {
  constexpr uint64_t kLevels = 5;
  for (const size_t at_once : {1u, 2u, 3u, 100u}) {
    std::vector<Record> made, removed;
    for (uint64_t level = 0; level < kLevels; ++level) {
      const ObjectId above = level == 0 ? kRootId : id(100 + level - 1);
      made.emplace_back(put(id(100 + level), S_IFDIR | 0755));
      made.emplace_back(NameRecord{above, "d", id(100 + level)});
      removed.emplace(removed.begin(), UnnameRecord{above, "d", id(100 + level), false});
    }
    say(kA, std::move(made));
    ObjectId above = kRootId;
    std::vector<ObjectId> adopted;
    for (uint64_t level = 0; level < kLevels; ++level) adopted.push_back(above = look_up_directory(above, "d", 200 + level));
    say(kA, std::move(removed));
    drop_left(at_once);
    for (const ObjectId each : adopted) EXPECT_FALSE(tree_.find(each)) << each.value << ", " << at_once << " at once";
  }
}

// A pass over many takes several rounds, in which names go on going.
TEST_F(TreePeersTest, ADirectoryThatTheirsLeftBehindThePassUnderWayGoesInTheNextOne) {
  constexpr uint64_t kDirectories = 5;
  std::vector<Record> made;
  for (uint64_t i = 0; i < kDirectories; ++i) {
    made.emplace_back(put(id(100 + i), S_IFDIR | 0755));
    made.emplace_back(NameRecord{kRootId, "d" + std::to_string(i), id(100 + i)});
  }
  say(kA, std::move(made));
  std::vector<ObjectId> adopted;
  for (uint64_t i = 0; i < kDirectories; ++i) adopted.push_back(look_up_directory(kRootId, "d" + std::to_string(i), 200 + i));
  EXPECT_FALSE(tree_.write().drop_left_directories(2, /*names_went=*/true));
  say(kA, {UnnameRecord{kRootId, "d0", id(100), false}});  // it was looked at
  bool names_went = true;
  for (int calls = 0; !tree_.write().drop_left_directories(2, std::exchange(names_went, false)); ++calls) ASSERT_LT(calls, 10);
  for (uint64_t i = 0; i < kDirectories; ++i) EXPECT_EQ(tree_.find(adopted[i]) != nullptr, i > 0) << i;
}

TEST_F(TreePeersTest, ADirectoryInWhichClientsLookedAtOneAndMadeAFileStays) {
  for (const Who who : {kThis, kA}) give_directory(who);
  say(kA, {put(id(6), S_IFDIR | 0755), NameRecord{id(5), "e", id(6)}});
  const ObjectId directory = look_up_directory(kRootId, "d", 20), lower = look_up_directory(directory, "e", 21);
  make(lower, 23, "file");
  say(kA, {UnnameRecord{id(5), "e", id(6), false}, UnnameRecord{kRootId, "d", id(5), false}, gone("this", kRootId, "d", id(5))});
  drop_left();
  EXPECT_EQ(find(kRootId, "d"), directory);
  EXPECT_EQ(find(directory, "e"), lower);
  EXPECT_EQ(find(lower, "file"), id(23));
}

TEST_F(TreePeersTest, ADirectoryThatAClientRenamedHereStays) {
  give_directory(kA);
  const ObjectId directory = look_up_directory(kRootId, "d", 20);
  say(kA, {UnnameRecord{kRootId, "d", id(5), false}});
  Rename asked{kRootId, "d", kRootId, "mine", RenameMode::kReplace};
  Tree::Write names = tree_.write();
  ASSERT_TRUE(names.resolve_rename(asked));
  ASSERT_TRUE(names.rename(asked));
  names.unlock();
  drop_left();
  EXPECT_EQ(find(kRootId, "mine"), directory);
}

TEST_F(TreePeersTest, AFileThatADirectoryOfAPeerHidesLosesItsLinkWithTheLook) {
  say(kThis, {put(id(7), S_IFREG | 0644), NameRecord{kRootId, "d", id(7)}});
  Tree::Write names = tree_.write();
  const auto file = names.get(id(7));
  ASSERT_TRUE(file);
  names.unlock();
  give_directory(kA);
  const ObjectId directory = look_up_directory(kRootId, "d", 20);
  EXPECT_EQ(directory, id(20));
  EXPECT_FALSE(tree_.read().is_only_adopted(directory));
  EXPECT_EQ((*file)->nlink, 0U);
  EXPECT_FALSE(tree_.read().names().dirty(kRootId, "d")->hidden.valid());
}

// They are in RAM until then.
TEST_F(TreePeersTest, OfVeryManyTheJournalIsToldOfTheOldest) {
  constexpr uint64_t kMost = 32'768, kMany = kMost + 3;
  std::vector<Record> records;
  for (uint64_t i = 0; i < kMany; ++i) {
    records.emplace_back(put(id(100 + i), S_IFDIR | 0755));
    records.emplace_back(NameRecord{kRootId, "d" + std::to_string(i), id(100 + i)});
  }
  say(kA, std::move(records));
  for (uint64_t i = 0; i < kMany; ++i) look_up_directory(kRootId, "d" + std::to_string(i), 200'000 + i);
  std::set<std::string> pending;
  for (const DirtyName& name : tree_.write().names().take_pending()) pending.insert(name.key.name);
  EXPECT_EQ(pending, (std::set<std::string>{"d0", "d1", "d2"}));
}

// --- a name that peers have read in the journal, and that the index does not have yet ---

TEST_F(TreePeersTest, ANameThatAPeerRemovedBeforeTheIndexHadItDoesNotComeBack) {
  make(kRootId, 6, "x");
  make(kRootId, 7, "y");
  Tree::Write names = tree_.write();
  const auto taken = names.names().take_pending();  // a commit writes it to the journal
  ASSERT_EQ(taken.size(), 2u);
  for (const DirtyName& name : taken) names.names().state(name)->on_its_way = names.names().state(name)->child;
  names.unlock();
  say(kA, {gone("this", kRootId, "other", id(8))});
  EXPECT_EQ(to_journal_.size(), 1u);
  say(kA, {gone("this", kRootId, "y", id(7))});
  say(kA, {gone("this", kRootId, "x", id(6))});
  for (const Record& record : to_journal_)  // neither is answered: the first one waits
    EXPECT_EQ(std::get<SeenRecord>(record).position, (JournalPosition{1, 0, 200}));
  say(kThis, {put(id(6), S_IFREG | 0644), NameRecord{kRootId, "x", id(6)}, put(id(7), S_IFREG | 0644), NameRecord{kRootId, "y", id(7)}});
  names = tree_.write();
  for (const DirtyName& name : taken) names.names().settle(name, name.key.name == "x" ? id(6) : id(7));
  names.unlock();
  EXPECT_TRUE(waits_);
  say(kA, {});
  EXPECT_FALSE(waits_);
  EXPECT_TRUE(list(kRootId).empty());
  EXPECT_EQ(std::get<SeenRecord>(to_journal_.back()).position, (JournalPosition{1, 0, 500}));
  journal();
  EXPECT_TRUE(list(kRootId).empty());
}

// --- a directory that was removed elsewhere, with a file here that is not journaled ---

// Until the answer is journaled, and after that until the file is, it is there as always: no client sees it absent, or another one in its place.
TEST_F(TreePeersTest, ADirectoryInWhichAFileWaitsForItsBodyStaysThoughAPeerRemovedIt) {
  give_directory(kThis);
  give(kThis, 6, "x", 10);
  EXPECT_EQ(find(kRootId, "d"), id(5));
  make(id(5), 7, "new");
  say(kA, {gone("this", id(5), "x", id(6)), gone("this", kRootId, "d", id(5))});
  EXPECT_EQ(find(kRootId, "d"), id(5));
  EXPECT_EQ(list(kRootId), std::set<std::string>{"d"});
  EXPECT_EQ(list(id(5)), std::set<std::string>{"new"});
  EXPECT_EQ(find(id(5), "new"), id(7));
  EXPECT_EQ(tree_.read().check_new_name(kRootId, "d").error().code, Code::kExists);
  EXPECT_EQ(tree_.write().remove_directory(kRootId, "d").error().code, Code::kNotEmpty);
  make(id(5), 8, "newer");
  EXPECT_EQ(list(id(5)), (std::set<std::string>{"new", "newer"}));
}

TEST_F(TreePeersTest, ADirectoryInWhichAFileWaitsForItsBodyIsOneWithThatWhichAPeerMadeAnew) {
  for (const Who who : {kThis, kA}) give_directory(who);
  const ObjectId directory = look_up_directory(kRootId, "d", 20);
  EXPECT_EQ(directory, id(5));
  make(directory, 7, "new");
  say(kA, {UnnameRecord{kRootId, "d", id(5), false}, gone("this", kRootId, "d", id(5)), put(id(9), S_IFDIR | 0755), NameRecord{kRootId, "d", id(9)}});
  EXPECT_EQ(look_up_directory(kRootId, "d", 21), directory);
  give(kA, 10, "elsewhere", 20);  // into the one that is gone there
  say(kA, {put(id(11), S_IFREG | 0644), NameRecord{id(9), "theirs", id(11)}});
  EXPECT_EQ(list(directory), (std::set<std::string>{"new", "theirs"}));
  make(look_up_directory(kRootId, "d", 22), 12, "newer");
  EXPECT_EQ(list(directory), (std::set<std::string>{"new", "newer", "theirs"}));
}

// All directories above it stay with it, also if only the lowest one has something not journaled.
TEST_F(TreePeersTest, DirectoriesAboveAFileThatWaitsForItsBodyStay) {
  give_directory(kThis);
  say(kThis, {put(id(13), S_IFDIR | 0755), NameRecord{id(5), "e", id(13)}});
  EXPECT_EQ(find(kRootId, "d"), id(5));
  EXPECT_EQ(find(id(5), "e"), id(13));
  make(id(13), 7, "new");
  say(kC, {gone("this", id(5), "e", id(13)), gone("this", kRootId, "d", id(5))});
  say(kA, {put(id(9), S_IFDIR | 0755), NameRecord{kRootId, "d", id(9)}, put(id(10), S_IFDIR | 0755), NameRecord{id(9), "e", id(10)}});
  EXPECT_EQ(look_up_directory(kRootId, "d", 20), id(5));
  EXPECT_EQ(look_up_directory(id(5), "e", 21), id(13));
  EXPECT_EQ(list(id(13)), std::set<std::string>{"new"});
  EXPECT_EQ(tree_.write().remove_directory(id(5), "e").error().code, Code::kNotEmpty);
}

// Nothing gets a name in it from then on.
TEST_F(TreePeersTest, ADirectoryThatWasTakenIsNoneForNewNamesAlsoWhereAPeerMadeItAnew) {
  give_directory(kThis);
  EXPECT_EQ(find(kRootId, "d"), id(5));
  say(kA, {gone("this", kRootId, "d", id(5)), put(id(9), S_IFDIR | 0755), NameRecord{kRootId, "d", id(9)}});
  for (int journaled = 0; journaled < 2; ++journaled) {
    EXPECT_EQ(find(kRootId, "d"), id_here(kA, id(9)));
    EXPECT_FALSE(tree_.write().directory_for_entry(id(5)));
    say(kA, {});  // the classes of directories are worked out anew
    journal();
  }
  const ObjectId directory = look_up_directory(kRootId, "d", 20);
  EXPECT_EQ(directory, id(20));
  make(directory, 7, "new");
  EXPECT_EQ(list(directory), std::set<std::string>{"new"});
}

}  // namespace tree_peers_test
}  // namespace kvcachefs

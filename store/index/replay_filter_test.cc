// What the filter believes, against a real index: impossible records, places of others, directories that are no tree, and what a
// power loss took; and that the last costs no more per name when more was lost.
#include "store/index/replay_filter.h"

#include <sys/stat.h>

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/base/limits.h"
#include "store/base/units.h"
#include "store/index/index_test_util.h"
#include "store/index/record_check.h"

namespace kvcachefs::index_test {
namespace replay_filter_test {

constexpr uint32_t kEpoch = 5;
ObjectId id(uint64_t number, uint32_t epoch = kEpoch) { return ObjectId::make(0, epoch, number); }

ObjectRecord directory(uint64_t number) {
  ObjectRecord made;
  made.id = id(number);
  made.attributes.mode = S_IFDIR | 0755;
  return made;
}

ObjectRecord file(uint64_t number, Place place = {}) {
  ObjectRecord made;
  made.id = id(number);
  made.attributes.mode = S_IFREG | 0644;
  made.body.version = 1;
  made.body.place = place;
  made.body.size_bytes = place.length;
  made.body.checksums.resize(div_ceil(place.length, kUnitBytes));
  return made;
}

Place pack(uint64_t seq, uint64_t block, uint64_t length, uint32_t epoch = kEpoch) {
  return {PlaceKind::kPacked, {epoch, seq}, block * kBlockBytes, length};
}

class Filter : public ::testing::Test {
 protected:
  Filter() : index_(open_index(scratch_.path("index"), Index::Found::kFresh)) { fresh(true); }
  void fresh(bool complete) {
    filter_.emplace(*index_, complete, [this](ReplayFilter::Told, const std::string& line) { told_.push_back(line); });
  }
  void replay(std::vector<Record> records, uint32_t epoch = kEpoch, const ReplayFilter::NotWhole& not_whole = whole) {
    const JournalPosition after{epoch, 0, ++offset_};
    ASSERT_TRUE(filter_->apply(Batch{{1}, std::move(records)}, after, not_whole, apply_));
  }
  void finish() { ASSERT_TRUE(filter_->finish(apply_)); }
  static bool whole(const PutRecord&) { return false; }
  ObjectId at(ObjectId parent, std::string_view name) {
    const auto found = index_->find_name(parent, name);
    EXPECT_TRUE(found);
    return found && *found ? (*found)->child : ObjectId{};
  }
  bool there(ObjectId object) { return index_->find_object(object)->has_value(); }
  bool says(const std::string& what) {
    return std::ranges::any_of(told_, [&](const std::string& line) { return line.find(what) != std::string::npos; });
  }

  ScratchDirectory scratch_{ScratchDirectory::kInMemory};
  std::unique_ptr<Index> index_;
  std::optional<ReplayFilter> filter_;
  std::vector<std::string> told_;
  uint64_t offset_ = 0;
  const ReplayFilter::Apply apply_ = [this](const Batch& batch, JournalPosition after) -> Status {
    KVC_TRY(index_->apply(batch, after));
    return {};
  };
};

TEST(RecordCheck, RefusesWhatNoDaemonWrites) {
  const auto put = [](auto change) {
    ObjectRecord made = file(1, pack(1, 1, 5000));
    change(made);
    return PutRecord{made};
  };
  const std::vector<Record> impossible = {
      put([](ObjectRecord& o) { o.id = id(1, kEpoch + 1); }),
      put([](ObjectRecord& o) { o.id = ObjectId{77}; }),
      put([](ObjectRecord& o) { o.id = ObjectId::make(3, kEpoch, 1); }),
      put([](ObjectRecord& o) { o.id = kRootId; }),
      put([](ObjectRecord& o) { o.attributes.mode = 0644; }),
      put([](ObjectRecord& o) { o.body.size_bytes = UINT64_MAX; }),
      put([](ObjectRecord& o) { o.body.size_bytes = o.body.place.length = UINT64_MAX; }),
      put([](ObjectRecord& o) { o.body.checksums.clear(); }),
      put([](ObjectRecord& o) { o.body.checksums.resize(7); }),
      put([](ObjectRecord& o) { o.body.place.offset = 0; }),  // the header of a pack
      put([](ObjectRecord& o) { o.body.place.offset = 5; }),
      put([](ObjectRecord& o) { o.body.place.offset = UINT64_MAX - 4095; }),
      put([](ObjectRecord& o) { o.body.place.extent.epoch = kEpoch + 1; }),
      put([](ObjectRecord& o) { o.body.place.extent = {}; }),
      put([](ObjectRecord& o) { o.body = {}, o.body.place.offset = UINT64_MAX; }),
      put([](ObjectRecord& o) { o.body.quarantined = true, o.body.size_bytes = UINT64_MAX; }),
      put([](ObjectRecord& o) { o.body.place = {PlaceKind::kInline, {}, 0, 5000}, o.body.inline_bytes.resize(5); }),
      put([](ObjectRecord& o) { o.body.place = {PlaceKind::kSolo, {kEpoch, 2}, kBlockBytes, 5000}; }),
      put([](ObjectRecord& o) { o.body.place = {PlaceKind::kRaw, {kEpoch, 2}, 0, 0}, o.body.size_bytes = kMaxFileBytes + 1; }),
      put([](ObjectRecord& o) { o.attributes.mode = S_IFLNK | 0777; }),
      put([](ObjectRecord& o) { o.body.place = {}, o.attributes.mode = S_IFLNK | 0777; }),
      NameRecord{kRootId, "", id(1)},
      NameRecord{kRootId, ".", id(1)},
      NameRecord{kRootId, "..", id(1)},
      NameRecord{kRootId, "a/b", id(1)},
      NameRecord{kRootId, std::string("n\0l", 3), id(1)},
      NameRecord{kRootId, std::string(256, 'l'), id(1)},
      NameRecord{kRootId, "later", id(1, kEpoch + 1)},
      NameRecord{kRootId, "root", kRootId},
      NameRecord{id(1), "itself", id(1)},
      UnnameRecord{kRootId, "a/b", id(1)},
      AttributesRecord{id(1), {}},
      MoveRecord{id(1), 1, {PlaceKind::kInline, {}, 0, 5}},
      MoveRecord{id(1), 1, pack(1, 1, 5000, kEpoch + 1)},
      SuccessorsRecord{id(1), {}, {{id(1, kEpoch + 1), 1}}},
  };
  for (size_t i = 0; i < impossible.size(); ++i) EXPECT_NE(why_impossible(impossible[i], kEpoch), "") << i;
  EXPECT_EQ(why_impossible(put([](ObjectRecord&) {}), kEpoch), "");
  EXPECT_EQ(why_impossible(PutRecord{directory(1)}, kEpoch), "");
  EXPECT_EQ(why_impossible(NameRecord{kRootId, std::string(255, 'l'), id(1)}, kEpoch), "");
  EXPECT_EQ(why_impossible(put([](ObjectRecord& o) { o.body.place = {PlaceKind::kSolo, {kEpoch, 2}, 0, 5000}; }), kEpoch), "");
}

TEST(RecordCheck, TrimsAttributes) {
  Attributes attributes;
  attributes.mode = S_IFREG | 0200644;
  attributes.xattrs = {{"user.b", "1"}, {"user.a", "2"}, {"user.a", "3"}, {"", "x"}, {"user.long", std::string(65 * kKiB, 'x')},
                       {std::string(300, 'n'), "x"}, {std::string("user.n\0l", 8), "x"}};
  EXPECT_EQ(trim_attributes(attributes), 6u);  // five of them, and the bits
  EXPECT_EQ(attributes.xattrs, (std::vector<Xattr>{{"user.a", "2"}, {"user.b", "1"}}));
  EXPECT_EQ(trim_attributes(attributes), 0u);
}

TEST_F(Filter, LeavesOutPlacesOfOthers) {
  for (const bool complete : {true, false}) {
    SCOPED_TRACE(complete);
    const uint64_t base = complete ? 0 : 100;
    fresh(complete);
    const uint64_t seq = base + 1;
    replay({PutRecord{file(base + 1, pack(seq, 1, 9000))}, NameRecord{kRootId, fmt::format("a{}", base), id(base + 1)}});
    replay({PutRecord{file(base + 2, pack(seq, 3, 5000))}, NameRecord{kRootId, fmt::format("b{}", base), id(base + 2)}});
    replay({PutRecord{file(base + 3, pack(seq, 4, 5000))}, NameRecord{kRootId, fmt::format("c{}", base), id(base + 3)}});
    replay({PutRecord{file(base + 4, {PlaceKind::kSolo, {kEpoch, seq}, 0, 5000})}});  // a pack is no solo extent
    replay({PutRecord{file(base + 5, {PlaceKind::kSolo, {kEpoch, seq + 1}, 0, 5000})}});
    replay({PutRecord{file(base + 6, {PlaceKind::kSolo, {kEpoch, seq + 1}, 0, 5000})}});
    replay({PutRecord{file(base + 1, pack(seq, 1, 9000))}});  // itself again
    replay({PutRecord{file(base + 5, {PlaceKind::kSolo, {kEpoch, seq + 1}, 0, 6000})}});  // its own file, grown
    replay({PutRecord{file(base + 5, {PlaceKind::kSolo, {kEpoch, seq + 2}, 0, 5000})}});
    replay({PutRecord{file(base + 5, {PlaceKind::kSolo, {kEpoch, seq + 1}, 0, 6000})}});  // which it gave up
    replay({MoveRecord{id(base + 3), 1, pack(seq, 2, 5000)}});
    replay({MoveRecord{id(base + 99), 1, pack(seq, 1, 5000)}});  // of an unknown object: its move does not make the place free
    finish();
    EXPECT_TRUE(there(id(base + 1)));
    EXPECT_FALSE(there(id(base + 2)));
    EXPECT_TRUE(there(id(base + 3)));
    EXPECT_FALSE(there(id(base + 4)));
    EXPECT_TRUE(there(id(base + 5)));
    EXPECT_FALSE(there(id(base + 6)));
    EXPECT_EQ(at(kRootId, fmt::format("b{}", base)), ObjectId{});
    EXPECT_EQ((*index_->find_object(id(base + 3)))->body.place, pack(seq, 4, 5000));
    EXPECT_EQ((*index_->find_object(id(base + 5)))->body.place.extent.seq, seq + 2);
    EXPECT_EQ(filter_->left_out(), 6u);
  }
}

// A body of equal bytes takes over the place of the one that it replaces, in the batch that removes the other's last name.
TEST_F(Filter, LetsPlacesChangeHands) {
  for (const bool complete : {true, false}) {
    SCOPED_TRACE(complete);
    const uint64_t base = complete ? 0 : 100;
    fresh(true);
    const Place place = pack(base + 1, 1, 9000);
    const std::string name = fmt::format("n{}", base);
    replay({PutRecord{file(base + 1, place)}, NameRecord{kRootId, name, id(base + 1)}});
    if (!complete) fresh(false);
    replay({PutRecord{file(base + 3, place)}, NameRecord{kRootId, name + "x", id(base + 3)}}, kEpoch + 1);  // no object lost its last name
    replay({PutRecord{file(base + 2, place)}, NameRecord{kRootId, name, id(base + 2)}}, kEpoch + 1);
    finish();
    EXPECT_EQ(at(kRootId, name), id(base + 2));
    EXPECT_TRUE(there(id(base + 2)));
    EXPECT_FALSE(there(id(base + 1)));
    EXPECT_FALSE(there(id(base + 3)));
    EXPECT_EQ(filter_->left_out(), 1u);
  }
}

// After a power loss: a body that shares the place of an incomplete one is incomplete too, and that is not damage.
TEST_F(Filter, APlaceThatDidNotReachTheMediumIsNotTaken) {
  for (const bool complete : {true, false}) {
    fresh(complete);
    const uint64_t first = complete ? 1 : 11;
    const Place shared = pack(first, 4, 100), solo{PlaceKind::kSolo, {kEpoch, first + 1}, 0, kBlockBytes};
    const auto not_whole = [&](const PutRecord& put) { return put.object.body.place == shared || put.object.body.place == solo; };
    replay({PutRecord{file(first, pack(first, 3, 100))}, NameRecord{kRootId, "before", id(first)},
            PutRecord{file(first + 1, shared)}, NameRecord{kRootId, "a", id(first + 1)},
            PutRecord{file(first + 2, solo)}, NameRecord{kRootId, "c", id(first + 2)}}, kEpoch, not_whole);
    replay({PutRecord{file(first + 3, shared)}, NameRecord{kRootId, "a", id(first + 3)},
            PutRecord{file(first + 4, solo)}, NameRecord{kRootId, "c", id(first + 4)}}, kEpoch, not_whole);
    EXPECT_TRUE(told_.empty()) << told_.front();
    EXPECT_FALSE(at(kRootId, "a").valid());
    EXPECT_FALSE(at(kRootId, "c").valid());
    // Its neighbours are as taken as before.
    replay({PutRecord{file(first + 5, pack(first, 3, 100))}});
    EXPECT_EQ(told_.size(), 1u);
    replay({PutRecord{file(first + 6, pack(first, 4, 100))}, PutRecord{file(first + 7, pack(first, 4, 100))}});
    EXPECT_EQ(told_.size(), 2u);
    told_.clear();
  }
}

TEST_F(Filter, ATypeOfFileNeverChanges) {
  replay({PutRecord{directory(1)}, NameRecord{kRootId, "d", id(1)}, PutRecord{file(2)}, NameRecord{id(1), "f", id(2)}});
  replay({PutRecord{file(1)}});
  replay({PutRecord{file(3)}, NameRecord{id(2), "in-a-file", id(3)}});
  finish();
  EXPECT_TRUE(S_ISDIR((*index_->find_object(id(1)))->attributes.mode));
  EXPECT_EQ(at(id(1), "f"), id(2));
  EXPECT_EQ(at(id(2), "in-a-file"), ObjectId{});
  EXPECT_EQ(filter_->left_out(), 2u);
}

TEST_F(Filter, KeepsDirectoriesATree) {
  replay({PutRecord{directory(1)}, PutRecord{directory(2)}, PutRecord{file(3)}, NameRecord{kRootId, "one", id(1)},
          NameRecord{id(1), "two", id(2)}, NameRecord{id(2), "file", id(3)}});
  replay({NameRecord{id(2), "one", id(1)}});
  replay({PutRecord{directory(4)}, PutRecord{directory(5)}, NameRecord{id(4), "five", id(5)}, NameRecord{id(5), "four", id(4)}});
  replay({UnnameRecord{id(1), "two", id(2)}});  // with a file in it
  finish();
  EXPECT_EQ(at(kRootId, "one"), id(1));
  EXPECT_EQ(at(id(2), "one"), ObjectId{});
  EXPECT_EQ(at(id(1), "two"), id(2));
  EXPECT_EQ(at(id(2), "file"), id(3));
  EXPECT_TRUE(at(id(4), "five") == ObjectId{} || at(id(5), "four") == ObjectId{});
  EXPECT_EQ((*index_->find_object(id(1)))->nlink, 3u);
  EXPECT_TRUE(says("does not lie below itself") || says("has one name"));
}

// A large commit is journaled in several batches: names are given in one, others taken in the next.
TEST_F(Filter, RenamesOfDirectoriesMayBeSplit) {
  replay({PutRecord{directory(1)}, PutRecord{directory(2)}, PutRecord{directory(3)}, NameRecord{kRootId, "a", id(1)},
          NameRecord{id(1), "b", id(2)}, NameRecord{kRootId, "empty", id(3)}});
  // mv a/b b; mv a b/a; mv empty a2
  replay({NameRecord{kRootId, "b", id(2)}, NameRecord{id(2), "a", id(1)}, NameRecord{kRootId, "a2", id(3)}});
  replay({UnnameRecord{id(1), "b", id(2)}, UnnameRecord{kRootId, "a", id(1)}, UnnameRecord{kRootId, "empty", id(3)}});
  replay({UnnameRecord{kRootId, "a2", id(3)}, NameRecord{kRootId, "a3", id(3)}});  // in the other order
  finish();
  EXPECT_EQ(at(kRootId, "b"), id(2));
  EXPECT_EQ(at(id(2), "a"), id(1));
  EXPECT_EQ(at(kRootId, "a"), ObjectId{});
  EXPECT_EQ(at(id(1), "b"), ObjectId{});
  EXPECT_EQ(at(kRootId, "a3"), id(3));
  EXPECT_EQ(filter_->left_out(), 0u);
}

// The second batch of such a rename was lost: it did not happen.
TEST_F(Filter, ADirectoryEndsWithOneName) {
  replay({PutRecord{directory(1)}, PutRecord{file(2)}, NameRecord{kRootId, "old", id(1)}, NameRecord{id(1), "f", id(2)}});
  replay({NameRecord{kRootId, "new", id(1)}});
  replay({PutRecord{file(3)}, NameRecord{kRootId, "next", id(3)}}, kEpoch + 1);
  finish();
  EXPECT_EQ(at(kRootId, "old"), id(1));
  EXPECT_EQ(at(kRootId, "new"), ObjectId{});
  EXPECT_EQ(at(kRootId, "next"), id(3));
  EXPECT_EQ(at(id(1), "f"), id(2));
}

TEST_F(Filter, ACheckpointIsATreeInOrder) {
  std::vector<Record> records = {PutRecord{directory(1)},
                                 PutRecord{directory(2)},
                                 PutRecord{file(3, pack(1, 1, 5000))},
                                 PutRecord{file(2)},                       // out of order
                                 PutRecord{file(4, pack(1, 2, 5000))},     // half of it is 3's
                                 PutRecord{file(1, pack(1, 9, 5000))},
                                 TouchRecord{}};
  std::vector<NameRecord> names = {{kRootId, "one", id(1)}, {kRootId, "four", id(4)}, {id(1), "two", id(2)},
                                   {id(2), "one", id(1)},   {id(2), "three", id(3)},  {id(3), "in-a-file", id(3)},
                                   {kRootId, "a/b", id(3)}};
  std::ranges::sort(names, [](const NameRecord& a, const NameRecord& b) {
    return std::pair(a.parent, name_cookie(a.name)) < std::pair(b.parent, name_cookie(b.name));
  });
  for (NameRecord& name : names) records.emplace_back(name);
  records.emplace_back(names.front());
  records.emplace_back(SuccessorsRecord{id(3), {}, {{id(1), 1}}});
  records.emplace_back(SuccessorsRecord{id(2), {}, {{id(1), 1}}});
  ASSERT_TRUE(index_->begin_load());
  for (Record& record : records)
    if (filter_->believes(record, kEpoch)) {
      const Status loaded = index_->load(std::move(record));
      ASSERT_TRUE(loaded) << loaded.error().message;
    }
  ASSERT_TRUE(index_->finish_load({kEpoch, 0, 1}, ReplayFilter::believed(Stamp{UINT64_MAX})));
  EXPECT_EQ(at(kRootId, "one"), id(1));
  EXPECT_EQ(at(id(1), "two"), id(2));
  EXPECT_EQ(at(id(2), "three"), id(3));
  EXPECT_EQ(at(id(2), "one"), ObjectId{});
  EXPECT_FALSE(there(id(4)));
  EXPECT_LT(index_->stamp().value, UINT64_MAX);
  EXPECT_EQ(filter_->left_out(), 9u);
}

// --- records about other nodes ---

std::vector<Record> peer_records(const Index& index) {
  std::vector<Record> all;
  EXPECT_TRUE(index.scan_peer_records([&](Record&& record) {
    all.push_back(std::move(record));
    return true;
  }));
  return all;
}

TEST_F(Filter, StatementsAboutOthersTouchNothingHereAndAreKept) {
  const UnnameRecord unname{kRootId, "f", id(2)};  // as if it were this node's
  replay({PutRecord{directory(1)}, NameRecord{kRootId, "d", id(1)}, PutRecord{file(2)}, NameRecord{kRootId, "f", id(2)}});
  replay({StatementRecord{"node-b", {}, unname}, StatementRecord{"node-b", {}, AttributesRecord{id(2), directory(1).attributes}},
          StatementRecord{"node-b", {}, TouchRecord{{{id(2), 7}}}}, SeenRecord{"node-b", {9, 9, 9}}});
  replay({SeenRecord{"node-b", {9, 9, 10}}, SeenRecord{"node-a", {1, 1, 1}}});
  replay({StatementRecord{"node-c", {}, unname}, EndsRecord{{kEpoch - 1, 0, 0}, false}, NextRecord{7}});
  finish();
  EXPECT_EQ(at(kRootId, "f"), id(2));
  EXPECT_EQ(index_->find_object(id(2)).value()->attributes.atime_ns, 0);
  EXPECT_TRUE(told_.empty()) << told_.front();

  ASSERT_TRUE(index_->commit());
  const auto kept = peer_records(*index_);
  ASSERT_EQ(kept.size(), 5u) << "but for that it was read, which nobody answers";
  EXPECT_EQ(std::get<SeenRecord>(kept[0]).node, "node-a");
  EXPECT_EQ(std::get<SeenRecord>(kept[1]).position, (JournalPosition{9, 9, 10}));
  for (const size_t i : {2u, 3u, 4u}) {
    const auto& statement = std::get<StatementRecord>(kept[i]);
    EXPECT_EQ(statement.node, i < 4 ? "node-b" : "node-c");
    EXPECT_EQ(statement.said, (JournalPosition{kEpoch, 0, i < 4 ? 2u : 4u}));
  }
  EXPECT_EQ(std::get<UnnameRecord>(std::get<StatementRecord>(kept[2]).what).name, "f");

  // By way of a checkpoint into another index, and from there the same once more.
  const auto copy = open_index(scratch_.path("copy"), Index::Found::kFresh);
  ReplayFilter filter(*copy, true, [](ReplayFilter::Told, const std::string& line) { ADD_FAILURE() << line; });
  ASSERT_TRUE(copy->begin_load());
  for (Record record : kept) {
    ASSERT_TRUE(filter.believes(record, kEpoch));
    ASSERT_TRUE(copy->load(std::move(record)));
  }
  ASSERT_TRUE(copy->finish_load({kEpoch, 0, 4}, Stamp{1}));
  const auto again = peer_records(*copy);
  ASSERT_EQ(again.size(), kept.size());
  for (size_t i = 2; i < kept.size(); ++i)
    EXPECT_EQ(std::get<StatementRecord>(again[i]).said, std::get<StatementRecord>(kept[i]).said);
  EXPECT_EQ(std::get<SeenRecord>(again[1]).position, (JournalPosition{9, 9, 10}));
}

TEST_F(Filter, WhatNoNodeSaysOfAnotherIsLeftOut) {
  const UnnameRecord fine{kRootId, "f", id(2)};
  replay({StatementRecord{"../b", {}, fine}, StatementRecord{"node-b", {}, UnnameRecord{kRootId, "a/b", id(2)}},
          StatementRecord{"node-b", {}, UnnameRecord{ObjectId::make(3, 1, 2), "a", id(2)}}, SeenRecord{"", {1, 1, 1}},
          SeenRecord{"node-b", {0, 1, 1}}, EndsRecord{{kEpoch, 1, 1}, false},
          StatementRecord{"node-b", {}, UnnameRecord{kRootId, "f", ObjectId::make(0, kEpoch + 100, 2)}}});
  EXPECT_EQ(filter_->left_out(), 6u);  // but for the last: of the epochs of others nothing is known
  EXPECT_TRUE(says("what is said of node 'node-b', the removal of the name 'a/b'"));
  ASSERT_TRUE(index_->commit());
  EXPECT_EQ(peer_records(*index_).size(), 1u);
}

TEST_F(Filter, ACheckpointHasWhatConcernsOthersLastAndInOrder) {
  const UnnameRecord unname{kRootId, "f", id(2)};
  std::vector<Record> records = {PutRecord{directory(1)},
                                 SeenRecord{"node-b", {1, 1, 1}},
                                 SeenRecord{"node-a", {1, 1, 1}},                    // out of order
                                 PutRecord{directory(2)},                            // as well
                                 StatementRecord{"node-b", {1, 0, 7}, unname},
                                 StatementRecord{"node-b", {1, 0, 7}, unname},
                                 StatementRecord{"node-b", {1, 0, 6}, unname},       // made before the previous statement
                                 StatementRecord{"node-b", {kEpoch + 1, 0, 1}, unname},
                                 StatementRecord{"node-b", {}, unname},              // without a position
                                 SeenRecord{"node-c", {1, 1, 1}},
                                 SuccessorsRecord{id(1), {}, {}}};
  size_t believed = 0;
  for (Record& record : records) believed += filter_->believes(record, kEpoch);
  EXPECT_EQ(believed, 4u);
  EXPECT_EQ(filter_->left_out(), records.size() - 4);
}

// With 200,000 chunks that a power loss took: steps in proportion to the names, whatever their number.
TEST_F(Filter, WhatWasLostCostsTheSamePerName) {
  constexpr uint64_t kNames = 200'000, kPerBatch = 1000;
  for (uint64_t first = 1; first <= kNames; first += kPerBatch) {
    std::vector<Record> records;
    for (uint64_t n = first; n < first + kPerBatch; ++n) records.emplace_back(PutRecord{file(n, pack(n / 4000 + 1, 1 + 2 * (n % 4000), 5000))});
    for (uint64_t n = first; n < first + kPerBatch; ++n) records.emplace_back(NameRecord{kRootId, fmt::format("lost{}", n), id(n)});
    replay(std::move(records), kEpoch, [](const PutRecord&) { return true; });
  }
  for (uint64_t first = 1; first <= kNames; first += kPerBatch) {  // removed again, or whole after all
    std::vector<Record> records;
    for (uint64_t n = first; n < first + kPerBatch; ++n) {
      if (n % 2 == 0) records.emplace_back(UnnameRecord{kRootId, fmt::format("lost{}", n), id(n)});
      if (n % 1000 == 1) records.emplace_back(PutRecord{file(n)});
    }
    replay(std::move(records));
  }
  finish();
  EXPECT_LE(filter_->steps(), 6 * kNames);
  EXPECT_EQ(at(kRootId, "lost1"), id(1));
  EXPECT_EQ(at(kRootId, "lost3"), ObjectId{});
  EXPECT_EQ(index_->totals().objects, kNames / kPerBatch);
}

}  // namespace replay_filter_test
}  // namespace kvcachefs::index_test

// Tests of the index written by hand: uses that a reader of index.h would try.
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/base/log.h"
#include "store/base/units.h"
#include "store/index/index_directory.h"
#include "store/index/index_test_util.h"
#include "store/index/lmdb_index.h"
#include "store/index/rows.h"

namespace kvcachefs::index_test {

namespace index_test {

Batch batch_of(uint64_t stamp, std::vector<Record> records) { return Batch{Stamp{stamp}, std::move(records)}; }

ObjectId id(uint64_t number) { return ObjectId::make(0, 3, number); }

class IndexTest : public testing::Test {
 protected:
  void SetUp() override {
    index_ = open_index(path(), Index::Found::kFresh);
    ASSERT_NE(index_, nullptr);
    apply({PutRecord{make_directory(kRootId)}});
  }
  std::string path() const { return scratch_.path("index"); }
  std::vector<FreedPlace> apply(std::vector<Record> records) {
    position_.offset += 10;
    auto freed = index_->apply(batch_of(++stamp_, std::move(records)), position_);
    EXPECT_TRUE(freed) << freed.error().message;
    return freed ? *freed : std::vector<FreedPlace>{};
  }
  void commit_chunks(uint64_t count) {
    std::vector<Record> records;
    for (uint64_t number = 5; number < 5 + count; ++number) {
      records.emplace_back(PutRecord{make_file(id(number), packed(1, number))});
      records.emplace_back(NameRecord{kRootId, fmt::format("chunk-{}", number), id(number)});
    }
    apply(std::move(records));
    ASSERT_TRUE(index_->commit());
  }
  uint32_t nlink(ObjectId of) const {
    const auto object = index_->find_object(of);
    return object && *object ? (*object)->nlink : 0xffff;
  }
  bool exists(ObjectId of) const {
    const auto object = index_->find_object(of);
    return object && *object;
  }
  void reopen(Index::Found expected = Index::Found::kOpened, std::string* why = nullptr) {
    index_.reset();
    index_ = open_index(path(), expected, why);
    ASSERT_NE(index_, nullptr);
  }

  const ScratchDirectory scratch_;
  std::unique_ptr<Index> index_;
  JournalPosition position_{3, 0, 0};
  uint64_t stamp_ = 100;
};

TEST_F(IndexTest, PutAndNameMakeAFileVisible) {
  apply({PutRecord{make_file(id(5), packed(1, 0))}});
  EXPECT_EQ(nlink(id(5)), 0u);
  EXPECT_FALSE(*index_->find_name(kRootId, "chunk"));
  apply({NameRecord{kRootId, "chunk", id(5)}});
  const auto entry = index_->find_name(kRootId, "chunk");
  ASSERT_TRUE(entry && *entry);
  EXPECT_EQ((*entry)->child, id(5));
  EXPECT_EQ((*entry)->type_bits, static_cast<uint32_t>(S_IFREG));
  EXPECT_EQ(nlink(id(5)), 1u);
  EXPECT_EQ(index_->highest_number(3), 5u);
  EXPECT_EQ(index_->highest_extent(1), 1u);
  EXPECT_EQ(index_->highest_number(4), 0u);
}

TEST_F(IndexTest, ANameThatWasAbsentIsFoundAsSoonAsABatchHasIt) {
  const auto is_there = [&] {
    const auto found = index_->find_name(kRootId, "a");
    EXPECT_TRUE(found);
    return found && found->has_value();
  };
  for (uint64_t round = 0; round < 4; ++round) {
    const bool commits = round % 2 == 1;
    EXPECT_FALSE(is_there());
    EXPECT_FALSE(is_there());
    apply({PutRecord{make_file(id(10 + round), packed(1, 10 + round))}, NameRecord{kRootId, "a", id(10 + round)}});
    if (commits) {
      ASSERT_TRUE(index_->commit());
    }
    EXPECT_TRUE(is_there());
    apply({UnnameRecord{kRootId, "a", id(10 + round)}});
    if (commits) {
      ASSERT_TRUE(index_->commit());
    }
  }
}

TEST_F(IndexTest, HighsOutliveTheirObjectsAndTheProcess) {
  apply({PutRecord{make_file(id(9), packed(7, 0))}, NameRecord{kRootId, "a", id(9)}});
  apply({UnnameRecord{kRootId, "a", id(9)}});
  ASSERT_TRUE(index_->commit());
  reopen();
  EXPECT_EQ(index_->highest_number(3), 9u);
  EXPECT_EQ(index_->highest_extent(1), 7u);
}

TEST_F(IndexTest, LeftoversAreThoseOfTheCommitTheyCameWith) {
  ASSERT_TRUE(index_->commit());
  reopen();
  EXPECT_FALSE(index_->leftovers());
  const Leftovers told{7, true, {{{2, 5}, PlaceKind::kSolo}, {{6, uint64_t{1} << 40}, PlaceKind::kPacked}}};
  index_->set_leftovers(told);
  reopen();
  EXPECT_FALSE(index_->leftovers()) << "was not committed";
  index_->set_leftovers(told);
  apply({PutRecord{make_file(id(5), packed(1, 0))}});
  ASSERT_TRUE(index_->commit());
  reopen();
  EXPECT_EQ(index_->leftovers(), told);
  apply({PutRecord{make_file(id(6), packed(2, 0))}});
  ASSERT_TRUE(index_->commit());  // goes along without being told again
  reopen();
  EXPECT_EQ(index_->leftovers(), told);
  ASSERT_TRUE(index_->close_clean());
  reopen();
  EXPECT_EQ(index_->leftovers(), told);
}

// A record after that position may name the place, and another may have given up more.
TEST_F(IndexTest, PlacesThatAreHeldAreThoseUpToThePositionOfTheCommit) {
  const auto at = [&](uint64_t offset) { return JournalPosition{3, 0, offset}; };
  const auto held = [&](uint64_t number, uint64_t offset) {
    return FreedPlace{id(number), Place{PlaceKind::kPacked, {2, 1}, number * 4096, 5000}, at(offset)};
  };
  apply({PutRecord{make_file(id(5), packed(1, 0))}});
  const JournalPosition then = index_->next_position();
  EXPECT_EQ(then, position_);
  index_->freeze();
  apply({PutRecord{make_file(id(6), packed(2, 0))}});
  EXPECT_EQ(index_->next_position(), then) << "that was frozen";
  index_->set_leftovers({.swept_epoch = 2, .in_packs = true, .extents = {}, .unlisted = false,
                         .held = {held(7, then.offset), held(8, position_.offset)}, .held_until = then});
  ASSERT_TRUE(index_->commit());
  reopen();
  ASSERT_TRUE(index_->leftovers());
  EXPECT_EQ(index_->leftovers()->held, std::vector{held(7, then.offset)});
  EXPECT_EQ(index_->leftovers()->held_until, then);
  apply({PutRecord{make_file(id(9), packed(3, 0))}});
  ASSERT_TRUE(index_->commit());  // goes along without being told again
  reopen();
  ASSERT_TRUE(index_->leftovers());
  EXPECT_EQ(index_->leftovers()->held.size(), 1u);
  EXPECT_EQ(index_->leftovers()->held_until, JournalPosition{}) << "what was given up since is not in it";
}

// They go with each commit, on pages that lie side by side: seldom on those that the commit before it freed.
TEST_F(IndexTest, WhatACommitTakesForPlacesThatAreHeldIsToldBeforeIt) {
  constexpr uint64_t kHeld = 16 * 1024, kMostTold = kMiB;
  Leftovers left;
  for (uint64_t number = 0; number < kHeld; ++number)
    left.held.push_back({id(kHeld + number), Place{PlaceKind::kPacked, {2, 100 + number / 64}, number * 256 * kKiB, 250 * kKiB}, {}});
  const auto file_bytes = [&] { return std::filesystem::file_size(path() + "/data.mdb"); };
  for (uint64_t commits = 0; commits < 8; ++commits) {
    apply({PutRecord{make_file(id(5 + commits), packed(1 + commits, 0))}});
    index_->set_leftovers(left);
    const uint64_t told = index_->growth_bytes(), before = file_bytes();
    ASSERT_TRUE(index_->commit());
    EXPECT_GE(told, file_bytes() - before) << commits;
    EXPECT_LE(told, kMostTold) << commits;
    EXPECT_EQ(index_->growth_bytes(), 0u) << "nothing to commit";
  }
  Bytes row;
  encode_row(CommittedLeftovers{{}, left}, row);
  EXPECT_GE(left.row_bytes(), row.size());
}

// By a program that knows nothing of them: since then anything may have been left.
TEST_F(IndexTest, LeftoversOfAnotherPositionAreVoid) {
  index_->set_leftovers({7, false, {}});
  ASSERT_TRUE(index_->commit());
  index_.reset();
  {
    auto env = LmdbEnv::open(path(), LmdbEnv::Open::kExisting, kMapBytes);
    ASSERT_TRUE(env) << env.error().message;
    Bytes value;
    ASSERT_TRUE((*env)->get(Table::kMeta, kStateKey, value));
    auto state = decode_state_row(value);
    ASSERT_TRUE(state);
    state->state.position.offset += 10;
    value.clear();
    encode_row(*state, value);
    auto writer = (*env)->begin_write();
    ASSERT_TRUE(writer);
    ASSERT_TRUE(writer->put(Table::kMeta, kStateKey, value));
    ASSERT_TRUE(writer->commit());
  }
  reopen();
  EXPECT_FALSE(index_->leftovers());
}

// The volume was moved away under its mount, and another begun at the path.
TEST_F(IndexTest, OneThatWasMovedAwayLeavesWhatLiesInItsPlaceAlone) {
  ASSERT_TRUE(index_->commit());
  const std::string moved = scratch_.path("moved");
  std::filesystem::rename(path(), moved);
  auto other = open_index(path(), Index::Found::kFresh);
  ASSERT_NE(other, nullptr);
  ASSERT_TRUE(other->apply(batch_of(1, {PutRecord{make_directory(kRootId)}, PutRecord{make_directory(id(7))}}), {1, 0, 10}));
  ASSERT_TRUE(other->commit());
  apply({PutRecord{make_directory(id(8))}});
  EXPECT_TRUE(index_->commit()) << "it is open there";
  EXPECT_FALSE(index_->give_back_unused());
  EXPECT_FALSE(index_->begin_rebuild());
  EXPECT_FALSE(index_->close_clean());
  index_.reset();
  for (const char* name : {"clean", "damaged", "rebuild.tmp", "compact.tmp"}) EXPECT_FALSE(std::filesystem::exists(path() + "/" + name)) << name;
  EXPECT_TRUE(other->find_object(id(7)).value());
  ASSERT_TRUE(other->close_clean());
  other.reset();
  reopen();
  EXPECT_TRUE(index_->was_closed_cleanly());
  EXPECT_TRUE(exists(id(7)));
  EXPECT_FALSE(exists(id(8)));
  index_ = open_index(moved, Index::Found::kOpened);
  ASSERT_NE(index_, nullptr);
  EXPECT_TRUE(exists(id(8))) << "what was committed";
}

TEST_F(IndexTest, AMapThatIsTooSmallIsNotOpenedAnewElsewhere) {
  const std::string directory = scratch_.path("environment"), moved = scratch_.path("moved");
  std::filesystem::create_directory(directory);
  auto env = LmdbEnv::open(directory, LmdbEnv::Open::kNew, 16 * kMiB);
  ASSERT_TRUE(env);
  std::filesystem::rename(directory, moved);
  std::filesystem::create_directory(directory);
  ASSERT_TRUE(LmdbEnv::open(directory, LmdbEnv::Open::kNew, 16 * kMiB));
  EXPECT_FALSE((*env)->enlarge_map());
  std::filesystem::remove_all(directory);
  std::filesystem::rename(moved, directory);
  EXPECT_TRUE((*env)->enlarge_map()) << "it is back";
}

TEST_F(IndexTest, TheMarkOfAPassIsKeptWithACommitAndOverACleanClose) {
  EXPECT_EQ(index_->scrub_mark(), ScrubMark{});
  const ScrubMark first{id(7), 1'000, 0}, second{id(8), 1'000, 5};
  index_->set_scrub_mark(first);
  apply({PutRecord{make_file(id(5), packed(1, 0))}});
  ASSERT_TRUE(index_->commit());
  index_->set_scrub_mark({id(99), 1'000, 0});
  reopen();
  EXPECT_EQ(index_->scrub_mark(), first);
  index_->set_scrub_mark(second);
  ASSERT_TRUE(index_->close_clean());
  reopen();
  EXPECT_TRUE(index_->was_closed_cleanly());
  EXPECT_EQ(index_->scrub_mark(), second);
}

TEST_F(IndexTest, IdsAreGivenInPages) {
  std::vector<ObjectId> made{kRootId};
  for (uint32_t number = 5; number < 25; ++number) {
    made.push_back(id(number));
    apply({PutRecord{make_file(id(number), packed(number, 0))}});
  }
  EXPECT_LE(index_->objects_after({}, 100)->size(), 1u) << "nothing is committed but the root";
  ASSERT_TRUE(index_->commit());
  std::vector<ObjectId> found;
  for (size_t before = 1; found.size() != before;) {
    before = found.size();
    const auto page = index_->objects_after(found.empty() ? ObjectId{} : found.back(), 7);
    ASSERT_TRUE(page);
    EXPECT_LE(page->size(), 7u);
    found.insert(found.end(), page->begin(), page->end());
  }
  EXPECT_EQ(found, made);
}

// Of the mapping of a file, as the kernel counts it.
uint64_t locked_bytes(const std::string& path) {
  std::ifstream maps("/proc/self/smaps");
  uint64_t bytes = 0;
  bool mapping = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long long kib = 0;
    if (line.find('-') < line.find(' ')) mapping = line.ends_with(path);  // addresses: a mapping begins
    if (mapping && std::sscanf(line.c_str(), "Locked: %llu kB", &kib) == 1) bytes += kib * kKiB;
  }
  return bytes;
}

TEST_F(IndexTest, TellsWhetherItWasClosed) {
  EXPECT_FALSE(index_->was_closed_cleanly());  // made just now
  ASSERT_TRUE(index_->close_clean());
  reopen();
  EXPECT_TRUE(index_->was_closed_cleanly());
  reopen();  // gone without a word
  EXPECT_FALSE(index_->was_closed_cleanly());
}

bool may_lock(size_t bytes) {
  void* map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  const bool locked = map != MAP_FAILED && mlock2(map, bytes, MLOCK_ONFAULT) == 0;
  if (map != MAP_FAILED) munmap(map, bytes);
  return locked;
}

TEST_F(IndexTest, KeptInMemoryItsPagesAreLocked) {
  commit_chunks(2000);
  const std::string file = std::filesystem::canonical(path()).string() + "/data.mdb";
  const uint64_t before = locked_bytes(file);
  if (!may_lock(128 * kMiB)) GTEST_SKIP() << "RLIMIT_MEMLOCK is too small";  // all of the map counts, free or not
  index_->keep_in_memory();
  EXPECT_EQ(before, 0u);
  EXPECT_GE(locked_bytes(file), std::filesystem::file_size(file) / 2);  // not all of it: what is free has no page
  EXPECT_GT(locked_bytes(file), 64 * kKiB);
}

TEST_F(IndexTest, NoMoreOfItIsLockedThanTheLimit) {
  commit_chunks(4000);
  const std::string file = std::filesystem::canonical(path()).string() + "/data.mdb";
  constexpr uint64_t kLimit = 64 * kKiB;
  ASSERT_GT(std::filesystem::file_size(file), 4 * kLimit);
  if (!may_lock(kLimit)) GTEST_SKIP() << "RLIMIT_MEMLOCK is too small";
  index_->limit_kept(kLimit);
  index_->keep_in_memory();
  EXPECT_GT(locked_bytes(file), 0u);
  EXPECT_LE(locked_bytes(file), kLimit);
}

// A reader may hold the lock of the names.
TEST_F(IndexTest, ReadsOfLargeRowsHaveAnotherThreadLetGoOfTheirPages) {
  constexpr int kTimes = 1000;  // of 64 KiB and the row: more than the 64 MiB after which somebody has to
  PutRecord large{make_file(id(5), packed(1, 0))};
  large.object.attributes.xattrs = {{"user.a", std::string(60'000, 'x')}};
  apply({large, NameRecord{kRootId, "large", id(5)}, PutRecord{make_file(id(6), packed(1, 1))}, NameRecord{kRootId, "small", id(6)}});
  ASSERT_TRUE(index_->commit());
  int wanted = 0;
  index_->set_let_go_wanted([&] { ++wanted; });
  const auto read = [&](ObjectId which) {
    for (int i = 0; i < kTimes; ++i) ASSERT_TRUE(index_->find_object(which));
  };
  read(id(6));
  EXPECT_EQ(wanted, 0);
  read(id(5));
  EXPECT_EQ(wanted, 1);
  index_->let_go_of_mapped();
  read(id(5));
  EXPECT_EQ(wanted, 2);
}

TEST_F(IndexTest, TheLastNameTakesTheObjectAndItsPlace) {
  apply({PutRecord{make_file(id(5), packed(1, 4))}, NameRecord{kRootId, "a", id(5)}, NameRecord{kRootId, "b", id(5)},
         SuccessorsRecord{id(5), {}, {{id(6), 1}}}});
  EXPECT_EQ(nlink(id(5)), 2u);
  EXPECT_TRUE(apply({UnnameRecord{kRootId, "a", id(5)}}).empty());
  const auto freed = apply({UnnameRecord{kRootId, "b", id(5)}});
  ASSERT_EQ(freed.size(), 1u);
  EXPECT_EQ(freed[0].object, id(5));
  EXPECT_EQ(freed[0].place, packed(1, 4));
  EXPECT_FALSE(exists(id(5)));
  EXPECT_FALSE(*index_->find_successors(id(5)));
  EXPECT_FALSE(*index_->find_extent({1, 1}));
}

TEST_F(IndexTest, ARenamedDirectorySurvivesTheMomentWithoutName) {
  apply({PutRecord{make_directory(id(5))}, NameRecord{kRootId, "d", id(5)}, PutRecord{make_directory(id(6))},
         NameRecord{kRootId, "e", id(6)}, PutRecord{make_file(id(7), packed(1, 0))}, NameRecord{id(5), "f", id(7)}});
  EXPECT_EQ(nlink(kRootId), 4u);
  EXPECT_TRUE(apply({UnnameRecord{kRootId, "d", id(5)}, NameRecord{id(6), "d2", id(5)}}).empty());
  EXPECT_EQ(nlink(id(5)), 2u);
  EXPECT_EQ(nlink(id(6)), 3u);
  EXPECT_EQ(nlink(kRootId), 3u);
  EXPECT_FALSE(*index_->is_empty(id(5)));
  EXPECT_TRUE(*index_->find_name(id(5), "f"));
}

TEST_F(IndexTest, AReplacedNameFreesTheOldBodyButNotOneThatWasTakenOver) {
  apply({PutRecord{make_file(id(5), packed(1, 0))}, NameRecord{kRootId, "chunk", id(5)}});
  auto freed = apply({PutRecord{make_file(id(6), packed(1, 8))}, NameRecord{kRootId, "chunk", id(6)}});
  ASSERT_EQ(freed.size(), 1u);
  EXPECT_EQ(freed[0].place, packed(1, 0));
  // Equal bytes: the new object keeps the old body.
  EXPECT_TRUE(apply({PutRecord{make_file(id(7), packed(1, 8))}, NameRecord{kRootId, "chunk", id(7)}}).empty());
  EXPECT_FALSE(exists(id(6)));
  const auto usage = index_->find_extent({1, 1});
  ASSERT_TRUE(usage && *usage);
  EXPECT_EQ((*usage)->bodies, 1u);
  EXPECT_EQ((*usage)->live_bytes, 8192u);
}

TEST_F(IndexTest, AMoveOfAnOldVersionGivesItsCopyBack) {
  apply({PutRecord{make_file(id(5), packed(1, 0))}, NameRecord{kRootId, "chunk", id(5)}});
  auto freed = apply({MoveRecord{id(5), 7, packed(2, 0)}});
  ASSERT_EQ(freed.size(), 1u);
  EXPECT_EQ(freed[0].place, packed(2, 0));
  freed = apply({MoveRecord{id(5), 1, packed(3, 0)}});
  ASSERT_EQ(freed.size(), 1u);
  EXPECT_EQ(freed[0].place, packed(1, 0));
  EXPECT_EQ((*index_->find_object(id(5)))->body.place, packed(3, 0));
}

TEST_F(IndexTest, ANamelessObjectIsListedAndCanBeDropped) {
  apply({PutRecord{make_file(id(5), packed(1, 0))}});
  ASSERT_TRUE(index_->commit());
  EXPECT_EQ(index_->scan_nameless().value(), std::vector<ObjectId>{id(5)});
  EXPECT_EQ(apply({UnnameRecord{{}, "", id(5)}}).size(), 1u);
  EXPECT_FALSE(exists(id(5)));
}

TEST_F(IndexTest, FreezeDecidesWhatTheNextCommitWrites) {
  apply({PutRecord{make_file(id(5), packed(1, 0))}, NameRecord{kRootId, "a", id(5)}});
  const JournalPosition first = position_;
  index_->freeze();
  apply({PutRecord{make_file(id(6), packed(1, 8))}, NameRecord{kRootId, "b", id(6)}});
  ASSERT_TRUE(index_->commit());
  EXPECT_EQ(index_->position(), first);
  EXPECT_TRUE(exists(id(6)));
  reopen();
  EXPECT_TRUE(exists(id(5)));
  EXPECT_FALSE(exists(id(6)));
  // Without a freeze since, a commit takes all.
  position_ = first;
  apply({PutRecord{make_file(id(7), packed(1, 16))}});
  ASSERT_TRUE(index_->commit());
  EXPECT_EQ(index_->position(), position_);
  EXPECT_EQ(index_->overlay_rows(), 0u);
}

TEST_F(IndexTest, AReadLooksThroughEveryLayer) {
  apply({PutRecord{make_file(id(5), packed(1, 0))}, NameRecord{kRootId, "lmdb", id(5)}});
  ASSERT_TRUE(index_->commit());
  apply({NameRecord{kRootId, "frozen", id(5)}});
  index_->freeze();
  apply({NameRecord{kRootId, "active", id(5)}, UnnameRecord{kRootId, "lmdb", id(5)}});
  const auto names = index_->list(kRootId, 0, 10);
  ASSERT_TRUE(names);
  std::set<std::string> seen;
  for (const NameEntry& entry : *names) seen.insert(entry.name);
  EXPECT_EQ(seen, (std::set<std::string>{"active", "frozen"}));
  EXPECT_EQ(nlink(id(5)), 2u);
}

TEST_F(IndexTest, LargeRowsAndManyEntriesSurvive) {
  ObjectRecord large = make_file(id(5), packed(1, 0));
  large.body.checksums.resize(40'000, 17);  // a body of 10 GiB: the row takes overflow pages
  std::vector<Record> records{PutRecord{large}, NameRecord{kRootId, "large", id(5)}};
  for (uint64_t n = 0; n < 5000; ++n) records.emplace_back(NameRecord{kRootId, fmt::format("name{}", n), id(5)});
  apply(std::move(records));
  ASSERT_TRUE(index_->commit());
  for (uint64_t n = 0; n < 5000; n += 2) apply({UnnameRecord{kRootId, fmt::format("name{}", n), id(5)}});
  reopen();
  EXPECT_EQ((*index_->find_object(id(5)))->body.checksums, large.body.checksums);
  EXPECT_EQ(nlink(id(5)), 5001u);
}

TEST_F(IndexTest, AnotherIdentityIsMovedAside) {
  ASSERT_TRUE(index_->commit());
  index_.reset();
  IndexIdentity other = identity();
  other.node = "node-b";
  Index::Found found{};
  std::string why;
  auto index = Index::open(path(), other, &found, &why);
  ASSERT_TRUE(index) << index.error().message;
  EXPECT_EQ(found, Index::Found::kFresh);
  EXPECT_TRUE((*index)->replaced_another());
  EXPECT_NE(why.find("another volume, node or format"), std::string::npos) << why;
  EXPECT_NE(why.find(fmt::format("node {}; this is volume ", identity().node)), std::string::npos) << why;
  EXPECT_TRUE(why.ends_with("node node-b)")) << why;
  EXPECT_TRUE(std::filesystem::exists(path() + ".damaged/data.mdb"));
}

TEST_F(IndexTest, OneDirectoryHasOneOwner) {
  Index::Found found{};
  std::string why;
  const auto second = Index::open(path(), identity(), &found, &why);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kBusy);
}

TEST_F(IndexTest, AnUnfinishedLoadIsForgotten) {
  const std::string path = scratch_.path("load");
  auto index = open_index(path, Index::Found::kFresh);
  ASSERT_TRUE(index->begin_load());
  ASSERT_TRUE(index->load(PutRecord{make_directory(kRootId)}));
  EXPECT_FALSE(index->commit());
  index.reset();
  index = open_index(path, Index::Found::kFresh);
  EXPECT_EQ(index->totals().directories, 0u);
  EXPECT_FALSE(std::filesystem::exists(path + ".damaged")) << "there is nothing in it to look at";
}

TEST_F(IndexTest, ALoadRefusesWhatIsOutOfOrder) {
  EXPECT_FALSE(index_->begin_load()) << "it is not empty";
  auto index = open_index(scratch_.path("load"), Index::Found::kFresh);
  ASSERT_TRUE(index->begin_load());
  ASSERT_TRUE(index->load(PutRecord{make_file(id(6), packed(1, 0))}));
  const auto status = index->load(PutRecord{make_file(id(5), packed(1, 8))});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kCorrupt);
}

TEST_F(IndexTest, LinksOverTwoHundredFiftyFourAreCountedByALoad) {
  std::vector<Record> records{PutRecord{make_file(id(5), packed(1, 0))}, PutRecord{make_directory(id(6))},
                              NameRecord{kRootId, "sub", id(6)}};
  for (uint64_t n = 0; n < 700; ++n) records.emplace_back(NameRecord{id(6), fmt::format("n{}", n), id(5)});
  apply(std::move(records));
  ASSERT_TRUE(index_->commit());
  auto loaded = open_index(scratch_.path("load"), Index::Found::kFresh);
  ASSERT_TRUE(copy_by_load(*index_, *loaded, position_));
  EXPECT_EQ((*loaded->find_object(id(5)))->nlink, 700u);
  EXPECT_EQ((*loaded->find_object(id(6)))->nlink, 2u);
  EXPECT_EQ((*loaded->find_object(kRootId))->nlink, 3u);
}

TEST(IndexPlace, NetworkFileSystemsAreKnownByTheirType) {
  for (const uint32_t network : {NFS_SUPER_MAGIC, FUSE_SUPER_MAGIC, 0x0bd00bd0 /* Lustre */, V9FS_MAGIC}) {
    EXPECT_TRUE(is_network_file_system(network)) << network;
  }
  for (const uint32_t local : {EXT4_SUPER_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC}) {
    EXPECT_FALSE(is_network_file_system(local)) << local;
  }
  EXPECT_FALSE(is_network_file_system(static_cast<uint32_t>(BTRFS_SUPER_MAGIC)));
}

TEST_F(IndexTest, ATrailingSlashMakesNoDifference) {
  index_.reset();
  ASSERT_EQ(truncate((path() + "/data.mdb").c_str(), 100), 0);
  index_ = open_index(path() + "//", Index::Found::kFresh);
  ASSERT_NE(index_, nullptr);
  EXPECT_TRUE(std::filesystem::exists(path() + ".damaged"));
}

// Works beside a reader that began before, and later commits are in the new file.
TEST_F(IndexTest, WhatIsUnusedIsGivenBackWhileItIsOpen) {
  constexpr uint64_t kFiles = 20'000, kKept = 100;
  const auto name = [](uint64_t n) { return fmt::format("{:0>100}", n); };
  for (uint64_t n = 0; n < kFiles; ++n) apply({PutRecord{make_file(id(10 + n), packed(1, n * 8192))}, NameRecord{kRootId, name(n), id(10 + n)}});
  ASSERT_TRUE(index_->commit());
  const auto file_bytes = [&] { return std::filesystem::file_size(path() + "/data.mdb"); };
  const uint64_t full = file_bytes();
  EXPECT_LT(index_->unused_bytes(), full / 2);
  for (uint64_t n = kKept; n < kFiles; ++n) apply({UnnameRecord{kRootId, name(n), id(10 + n)}});
  ASSERT_TRUE(index_->commit());
  ASSERT_GE(file_bytes(), full) << "it becomes smaller by itself";
  EXPECT_GT(index_->unused_bytes(), full * 8 / 10);
  uint64_t rows = 0;
  ASSERT_TRUE(index_->scan_objects([&](ObjectRecord&&) {
    if (rows++ == 0) {
      EXPECT_TRUE(index_->give_back_unused());
    }
    return true;
  }));
  EXPECT_EQ(rows, kKept + 1);
  EXPECT_LT(file_bytes(), full / 10);
  EXPECT_LT(index_->unused_bytes(), full / 10);
  EXPECT_FALSE(index_->give_back_unused()) << "nothing is left to be given back";
  apply({PutRecord{make_file(id(5), packed(2, 0))}, NameRecord{kRootId, "later", id(5)}});
  ASSERT_TRUE(index_->commit());
  for (int life = 0; life < 2; ++life) {
    for (uint64_t n = 0; n < kFiles; n += 50) EXPECT_EQ(exists(id(10 + n)), n < kKept) << n;
    const auto later = index_->find_name(kRootId, "later");
    EXPECT_TRUE(later && *later);
    reopen();
  }
}

TEST_F(IndexTest, PathsThatCannotBeAreRefused) {
  Index::Found found{};
  std::string why;
  EXPECT_EQ(Index::open("relative/path", identity(), &found, &why).error().code, Code::kInvalid);
  // procfs is local, but nothing can be made there: an error, not a crash.
  EXPECT_FALSE(Index::open("/proc/kvcachefs", identity(), &found, &why));
}

TEST(NameCookie, StaysClearOfTheReservedOnes) {
  std::set<uint64_t> seen;
  for (int n = 0; n < 100'000; ++n) {
    const uint64_t cookie = name_cookie(fmt::format("{}", n));
    EXPECT_GT(cookie, 2u);
    EXPECT_LT(cookie, (uint64_t{1} << 63) - 1);
    EXPECT_TRUE(seen.insert(cookie).second);
  }
  EXPECT_EQ(name_cookie("chunk"), name_cookie("chunk"));
}

TEST(IndexKeys, AreOrderedLikeWhatTheyStandFor) {
  std::vector<ObjectId> ids;
  for (int home_bits = 0; home_bits <= 28; ++home_bits) {
    for (int number_bits = 0; number_bits <= 36; ++number_bits) {
      const uint64_t home = (uint64_t{1} << home_bits) - 1, number = (uint64_t{1} << number_bits) - 1;
      ids.push_back({home << ObjectId::kNumberBits | number});
      if (number_bits < 36) ids.push_back({home << ObjectId::kNumberBits | (number + 1)});
    }
  }
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  const auto less = [](const KeyBytes& a, const KeyBytes& b) { return std::ranges::lexicographical_compare(a, b); };
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(parse_object_key(object_key(ids[i])).value(), ids[i]);
    const NameKey last{ids[i], ~uint64_t{0}};
    EXPECT_EQ(parse_name_key(name_key(last)).value(), last);
    if (i + 1 == ids.size()) break;
    EXPECT_TRUE(less(object_key(ids[i]), object_key(ids[i + 1]))) << i;
    EXPECT_TRUE(less(name_key(last), name_key({ids[i + 1], 0}))) << i;
  }
  EXPECT_LE(object_key(id(1'000'000)).size(), 4u);
  for (const KeyBytes& bad : {KeyBytes{}, KeyBytes(1), KeyBytes(3), KeyBytes(9, std::byte{0xff}),
                              KeyBytes(3, std::byte{0x80})}) {
    EXPECT_FALSE(parse_object_key(bad));  // cut, with more behind it, or longer than need be
    EXPECT_FALSE(parse_name_key(bad));
  }
}

// Random inserts leave pages two thirds full; a clean close fills them. The bytes decide the bar of small chunks.
TEST(IndexSize, ACleanCloseLeavesFullPages) {
  constexpr uint64_t kFiles = 20'000;
  const ScratchDirectory scratch;
  const std::string path = scratch.path("index");
  auto index = open_index(path, Index::Found::kFresh);
  ASSERT_NE(index, nullptr);
  ASSERT_TRUE(index->apply(batch_of(1, {PutRecord{make_directory(kRootId)}}), {3, 0, 1}));
  for (uint64_t n = 1; n <= kFiles; ++n) {
    const NameRecord name{kRootId, fmt::format("{:016x}{:016x}.bin", n * 0x9e3779b97f4a7c15, n), id(n)};
    ASSERT_TRUE(index->apply(batch_of(n, {PutRecord{make_file(id(n), packed(1, n))}, name}), {3, 0, 1 + n}));
    if (n % 2000 == 0) {
      ASSERT_TRUE(index->commit());
    }
  }
  const uint64_t before = std::filesystem::file_size(path + "/data.mdb");
  ASSERT_TRUE(index->close_clean());
  const uint64_t after = std::filesystem::file_size(path + "/data.mdb");
  EXPECT_LT(after, before * 3 / 4);
  EXPECT_LE(after / kFiles, 116u);
  index.reset();
  index = open_index(path, Index::Found::kOpened);
  ASSERT_NE(index, nullptr);
  EXPECT_EQ(index->totals().objects, kFiles);
  EXPECT_EQ(index->position(), (JournalPosition{3, 0, kFiles + 1}));
  EXPECT_EQ(index->list(kRootId, 0, 2 * kFiles).value().size(), kFiles);
  ASSERT_TRUE(index->close_clean());
  EXPECT_EQ(std::filesystem::file_size(path + "/data.mdb"), after);
  EXPECT_FALSE(std::filesystem::exists(path + "/refill.tmp") || std::filesystem::exists(path + "/compact.tmp"));
}

// The directory is moved aside, removed and made anew as a whole.
TEST(IndexDirectory, NothingThatIsNotOfAnIndexIsTouched) {
  log::set_level(log::Level::kOff);
  const ScratchDirectory scratch(ScratchDirectory::kInMemory);
  const std::string path = scratch.path("index");
  for (const std::string& directory : {path, path + ".damaged"}) {
    SCOPED_TRACE(directory);
    std::filesystem::create_directories(directory);
    const std::string theirs = directory + "/model.bin";
    std::ofstream(theirs) << "weights";
    Index::Found found{};
    std::string why;
    if (directory != path) {
      ASSERT_NE(open_index(path, Index::Found::kFresh), nullptr);
      std::ofstream(path + "/data.mdb") << "no index";  // to be moved aside
    }
    auto opened = Index::open(path, identity(), &found, &why);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, Code::kExists) << opened.error().message;
    EXPECT_NE(opened.error().message.find("model.bin"), std::string::npos);
    EXPECT_EQ(remove_index(directory).error().code, Code::kExists);
    EXPECT_TRUE(std::filesystem::exists(theirs));
    std::filesystem::remove(theirs);
  }
  EXPECT_TRUE(remove_index(path));
  EXPECT_FALSE(std::filesystem::exists(path));
  log::set_level(log::Level::kInfo);
}

// Another program's LMDB data has the same file names as ours.
TEST(IndexDirectory, AnotherProgramsLmdbIsRefusedAndUntouched) {
  const ScratchDirectory scratch(ScratchDirectory::kInMemory);
  const std::string path = scratch.path("theirs");
  std::filesystem::create_directories(path);
  for (const bool with_lock : {false, true}) {
    std::ofstream(path + "/data.mdb") << "pages of theirs";
    std::ofstream(path + "/lock.mdb") << "readers of theirs";
    if (with_lock) std::ofstream(path + "/lock").close();  // an empty one, as indexes had before there was a mark
    Index::Found found{};
    std::string why;
    const auto opened = Index::open(path, identity(), &found, &why);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, Code::kExists);
    EXPECT_NE(opened.error().message.find("another program"), std::string::npos) << opened.error().message;
    EXPECT_EQ(check_index_directory(path).error().code, Code::kExists);
    EXPECT_EQ(remove_index(path).error().code, Code::kExists);
    EXPECT_EQ(std::filesystem::file_size(path + "/data.mdb"), 15u);
    EXPECT_EQ(std::filesystem::file_size(path + "/lock.mdb"), 17u);
    EXPECT_EQ(std::filesystem::exists(path + "/lock"), with_lock);
    EXPECT_FALSE(std::filesystem::exists(path + ".damaged"));
  }
}

TEST(IndexDirectory, AnIndexFromBeforeTheMarkIsKnownByItsTables) {
  const ScratchDirectory scratch(ScratchDirectory::kInMemory);
  const std::string path = scratch.path("index");
  for (const bool clean : {false, true}) {
    std::filesystem::remove_all(path);
    auto index = open_index(path, Index::Found::kFresh);
    ASSERT_TRUE(index->apply(batch_of(1, {PutRecord{make_directory(kRootId)}}), {3, 0, 1}));
    ASSERT_TRUE(clean ? index->close_clean() : index->commit());
    index.reset();
    std::filesystem::resize_file(path + "/lock", 0);
    EXPECT_NE(open_index(path, Index::Found::kOpened), nullptr);
    EXPECT_GT(std::filesystem::file_size(path + "/lock"), 0u) << "not marked for the next time";
  }
}

TEST(IndexDirectory, AnIndexWhoseLockFileWentOrIsDamagedIsKnownByItsTables) {
  const ScratchDirectory scratch(ScratchDirectory::kInMemory);
  const std::string path = scratch.path("index");
  for (const bool clean : {false, true}) {
    for (const bool damaged : {false, true}) {
      SCOPED_TRACE(fmt::format("clean {} damaged {}", clean, damaged));
      std::filesystem::remove_all(path);
      auto index = open_index(path, Index::Found::kFresh);
      ASSERT_TRUE(index->apply(batch_of(1, {PutRecord{make_directory(kRootId)}}), {3, 0, 1}));
      ASSERT_TRUE(clean ? index->close_clean() : index->commit());
      index.reset();
      if (damaged)
        std::ofstream(path + "/lock") << "xvcachefs index";
      else
        std::filesystem::remove(path + "/lock");
      EXPECT_TRUE(check_index_directory(path));
      EXPECT_NE(open_index(path, Index::Found::kOpened), nullptr);
      std::string mark;
      std::getline(std::ifstream(path + "/lock"), mark);
      EXPECT_EQ(mark, "kvcachefs index") << "not marked for the next time";
    }
  }
}

// Someone who can plant a link in a directory must not get files written or removed through it.
TEST(IndexDirectory, LinksAreRefusedAndNotFollowed) {
  const ScratchDirectory scratch(ScratchDirectory::kInMemory);
  const std::string path = scratch.path("index"), victim = scratch.path("victim");
  std::ofstream(victim) << "precious";
  for (const char* name : {"lock", "data.mdb", "lock.mdb", "clean", "clean.tmp", "compact.tmp", "damaged", "rebuild.tmp"}) {
    for (const bool symbolic : {true, false}) {
      SCOPED_TRACE(fmt::format("{} {}", symbolic ? "symlink" : "second name", name));
      std::filesystem::remove_all(path);
      if (std::string_view(name) == "lock") {
        std::filesystem::create_directories(path);
      } else {
        ASSERT_TRUE(open_index(path, Index::Found::kFresh)->close_clean());
        std::filesystem::remove(path + "/" + name);
      }
      if (symbolic)
        std::filesystem::create_symlink(victim, path + "/" + name);
      else
        std::filesystem::create_hard_link(victim, path + "/" + name);
      Index::Found found{};
      std::string why;
      const auto opened = Index::open(path, identity(), &found, &why);
      ASSERT_FALSE(opened);
      EXPECT_EQ(opened.error().code, Code::kExists) << opened.error().message;
      EXPECT_NE(opened.error().message.find(name), std::string::npos) << opened.error().message;
      EXPECT_EQ(std::filesystem::file_size(victim), 8u);
    }
  }
  // The directory itself.
  const std::string real = scratch.path("real"), link = scratch.path("link");
  std::filesystem::create_directories(real);
  std::filesystem::create_directory_symlink(real, link);
  Index::Found found{};
  std::string why;
  EXPECT_EQ(Index::open(link, identity(), &found, &why).error().code, Code::kExists);
  EXPECT_TRUE(std::filesystem::is_empty(real));
}

TEST(IndexMap, GrowsWhenItIsFull) {
  const ScratchDirectory scratch;
  Index::Found found{};
  std::string why;
  auto index = LmdbIndex::open(scratch.path("index"), identity(), &found, &why, 256 * kKiB);
  ASSERT_TRUE(index) << index.error().message;
  ASSERT_TRUE((*index)->apply(batch_of(1, {PutRecord{make_directory(kRootId)}}), {3, 0, 1}));
  std::atomic<bool> stop = false;
  std::thread reader([&] {
    while (!stop) {
      const auto root = (*index)->find_object(kRootId);
      ASSERT_TRUE(root && *root);
    }
  });
  for (uint64_t n = 1; n <= 20'000; ++n) {
    ASSERT_TRUE((*index)->apply(
        batch_of(n, {PutRecord{make_file(id(n), packed(1, n))}, NameRecord{kRootId, fmt::format("{:032x}", n), id(n)}}),
        {3, 0, 1 + n}));
    if (n % 4000 == 0) {
      ASSERT_TRUE((*index)->commit());
    }
  }
  stop = true;
  reader.join();
  EXPECT_EQ((*index)->position(), (JournalPosition{3, 0, 20'001}));
  index->reset();
  index = LmdbIndex::open(scratch.path("index"), identity(), &found, &why, 256 * kKiB);
  ASSERT_TRUE(index) << index.error().message;
  EXPECT_EQ(found, Index::Found::kOpened) << why;
  EXPECT_EQ((*index)->totals().objects, 20'000u);
}

// Readers beside apply() and commit(): an applied row stays visible at every moment of its way into LMDB.
TEST(IndexThreads, NothingAppliedIsEverMissing) {
  const ScratchDirectory scratch;
  auto index = open_index(scratch.path("index"), Index::Found::kFresh);
  ASSERT_TRUE(index->apply(batch_of(1, {PutRecord{make_directory(kRootId)}}), {3, 0, 1}));
  constexpr uint64_t kObjects = 3000;
  std::atomic<uint64_t> applied = 0;
  std::atomic<bool> stop = false;
  std::thread committer([&] {
    while (!stop) {
      index->freeze();
      EXPECT_TRUE(index->commit());
    }
  });
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([&, t] {
      for (uint64_t i = static_cast<uint64_t>(t); !stop; i += 7) {
        const uint64_t known = applied;
        if (known == 0) continue;
        const uint64_t n = 1 + i % known;
        const auto entry = index->find_name(kRootId, fmt::format("{:016x}", n));
        ASSERT_TRUE(entry && *entry) << n;
        const auto object = index->find_object((*entry)->child);
        ASSERT_TRUE(object && *object) << n;
        EXPECT_EQ((*object)->nlink, 1u);
        if (i % 100 == 0) {
          const auto listed = index->list(kRootId, 0, 1u << 20);
          ASSERT_TRUE(listed);
          EXPECT_GE(listed->size(), known);
        }
      }
    });
  }
  for (uint64_t n = 1; n <= kObjects; ++n) {
    ASSERT_TRUE(index->apply(
        batch_of(n, {PutRecord{make_file(id(n), packed(1, n))}, NameRecord{kRootId, fmt::format("{:016x}", n), id(n)}}),
        {3, 0, 1 + n}));
    applied = n;
  }
  stop = true;
  committer.join();
  for (std::thread& reader : readers) reader.join();
  ASSERT_TRUE(index->commit());
  EXPECT_EQ(index->totals().objects, kObjects);
}

}  // namespace index_test

}  // namespace kvcachefs::index_test

// Flipped and missing bytes in data.mdb: a right answer, an answer of kCorrupt, or a fresh index; never a wrong row and
// never a crash.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/base/log.h"
#include "store/base/sanitized.h"
#include "store/base/units.h"
#include "store/index/fault_guard.h"
#include "store/index/index_directory.h"
#include "store/index/index_test_util.h"
#include "store/index/lmdb_env.h"
#include "store/index/page_check.h"

namespace kvcachefs::index_test {

namespace index_damage_test {

std::string read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_all(const std::string& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.good());
}

constexpr ObjectId kLarge = ObjectId::make(0, 1, 5);

// A small index with every table, large rows and a free list; the model at its last two commits.
class IndexDamageTest : public testing::Test {
 protected:
  void SetUp() override {
    log::set_level(log::Level::kOff);
    auto index = open_index(path(), Index::Found::kFresh);
    ASSERT_NE(index, nullptr);
    BatchMaker maker(4711);
    Model model;
    JournalPosition at{1, 0, 0};
    for (int n = 0; n < 260; ++n) {
      Batch batch = maker.make(model);
      if (n == 100) {  // a row that takes overflow pages
        ObjectRecord large = make_file(kLarge, packed(8, 1));
        large.body.checksums.resize(1500, 3);
        batch.records.emplace_back(PutRecord{large});
        batch.records.emplace_back(NameRecord{kRootId, "large", large.id});
      }
      for (uint64_t k = 0; n == 120 && k < 150; ++k) {  // enough names for branch pages
        batch.records.emplace_back(NameRecord{kRootId, fmt::format("{:064x}", k), kLarge});
      }
      model.apply(batch);
      ++at.offset;
      ASSERT_TRUE(index->apply(batch, at));
      if (n % 20 != 19) continue;
      ASSERT_TRUE(index->commit());
      previous_ = std::exchange(newest_, model);
      previous_at_ = std::exchange(newest_at_, at);
    }
    index.reset();
    pristine_ = read_all(path() + "/data.mdb");
    ASSERT_GT(pristine_.size(), 15u * 4096);
  }
  void TearDown() override { log::set_level(log::Level::kInfo); }
  std::string path() const { return scratch_.path("index"); }
  std::string data() const { return path() + "/data.mdb"; }

  // What damage did to an open.
  struct Outcome {
    uint64_t fresh = 0, opened = 0, corrupt = 0;
  };
  void open_and_compare(Outcome& outcome) {
    Index::Found found{};
    std::string why;
    auto index = Index::open(path(), identity(), &found, &why);
    ASSERT_TRUE(index) << index.error().message;
    if (found == Index::Found::kFresh) {
      EXPECT_FALSE(why.empty());
      EXPECT_EQ((*index)->position(), JournalPosition{});
      ++outcome.fresh;
      return;
    }
    // A meta page that lost may leave the commit before: an older but whole state.
    ++outcome.opened;
    if ((*index)->position() == newest_at_) {
      expect_same(**index, newest_);
    } else {
      ASSERT_EQ((*index)->position(), previous_at_);
      expect_same(**index, previous_);
    }
    // And it can be written.
    ASSERT_TRUE((*index)->apply(Batch{Stamp{1u << 30}, {PutRecord{make_file(ObjectId{99}, packed(9, 9))}}}, {9, 9, 9}));
    EXPECT_TRUE((*index)->commit());
  }

  const ScratchDirectory scratch_{ScratchDirectory::kInMemory};  // thousands of new files, each synced
  std::string pristine_;
  Model newest_, previous_;
  JournalPosition newest_at_, previous_at_;
};

TEST_F(IndexDamageTest, FlipsAfterAnUncleanStop) {
  std::mt19937_64 random(1);
  Outcome outcome;
  for (uint64_t n = 0; n < 2000 && !HasFailure(); ++n) {
    // The meta pages in full, the rest at random.
    const uint64_t bit = n < 400 ? (n / 200 * 4096 + n % 200) * 8 + random() % 8 : random() % (pristine_.size() * 8);
    std::string bytes = pristine_;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    write_all(data(), bytes);
    SCOPED_TRACE(fmt::format("bit {} of byte {} (page {} + {})", bit % 8, bit / 8, bit / 8 / 4096, bit / 8 % 4096));
    open_and_compare(outcome);
  }
  std::cout << fmt::format("{} fresh, {} opened with right answers\n", outcome.fresh, outcome.opened);
  EXPECT_GT(outcome.fresh, 300u);
  EXPECT_GT(outcome.opened, 300u);  // unused bytes of pages and free pages
}

TEST_F(IndexDamageTest, OverwrittenRunsAfterAnUncleanStop) {
  std::mt19937_64 random(2);
  Outcome outcome;
  for (uint64_t n = 0; n < 300 && !HasFailure(); ++n) {
    std::string bytes = pristine_;
    const uint64_t at = random() % bytes.size(), length = std::min<uint64_t>(1 + random() % 8192, bytes.size() - at);
    if (n % 3 == 0) {  // a page in the wrong place: sound by itself
      const uint64_t pages = bytes.size() / 4096;
      bytes.replace(random() % pages * 4096, 4096, pristine_, random() % pages * 4096, 4096);
    } else if (n % 3 == 1) {
      bytes.replace(at, length, length, '\0');
    } else {
      for (uint64_t i = at; i < at + length; ++i) bytes[i] = static_cast<char>(random());
    }
    write_all(data(), bytes);
    SCOPED_TRACE(fmt::format("round {}", n));
    open_and_compare(outcome);
  }
  EXPECT_GT(outcome.fresh, 100u);
}

TEST_F(IndexDamageTest, Truncations) {
  std::mt19937_64 random(3);
  Outcome outcome;
  for (uint64_t n = 0; n < 120 && !HasFailure(); ++n) {
    const uint64_t size = n < 60 ? n * 4096 % pristine_.size() : random() % pristine_.size();
    write_all(data(), std::string_view(pristine_).substr(0, size));
    SCOPED_TRACE(fmt::format("{} of {} bytes", size, pristine_.size()));
    open_and_compare(outcome);
  }
  EXPECT_GT(outcome.fresh, 60u);
}

TEST_F(IndexDamageTest, AFlipAfterACleanCloseIsFoundByTheChecksum) {
  auto index = open_index(path(), Index::Found::kOpened);
  ASSERT_TRUE(index->close_clean());
  index.reset();
  const std::string closed = read_all(data()), mark = read_all(path() + "/clean");
  ASSERT_FALSE(mark.empty());
  index = open_index(path(), Index::Found::kOpened);
  EXPECT_FALSE(std::filesystem::exists(path() + "/clean")) << "the mark must be gone before the data changes";
  index.reset();
  std::mt19937_64 random(4);
  for (int n = 0; n < 200; ++n) {
    std::string bytes = closed;
    const uint64_t bit = random() % (bytes.size() * 8);
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    write_all(data(), bytes);
    write_all(path() + "/clean", mark);
    std::string why;
    open_index(path(), Index::Found::kFresh, &why);
    EXPECT_NE(why.find("closed cleanly"), std::string::npos) << why;
  }
}

TEST_F(IndexDamageTest, AFileCutShortUnderAnOpenIndexIsNoSigbus) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer owns SIGBUS";
  auto index = open_index(path(), Index::Found::kOpened);
  ASSERT_NE(index, nullptr);
  ASSERT_EQ(truncate(data().c_str(), 2 * 4096), 0);
  bool corrupt = false;
  for (const auto& [id, object] : newest_.objects) {
    const auto found = index->find_object(id);
    if (found) continue;
    EXPECT_EQ(found.error().code, Code::kCorrupt);
    corrupt = true;
  }
  EXPECT_TRUE(corrupt);
  EXPECT_TRUE(index->damaged());
  EXPECT_FALSE(index->list(kRootId, 0, 10));
  EXPECT_EQ(index->commit().error().code, Code::kCorrupt);
  EXPECT_EQ(access((path() + "/damaged").c_str(), F_OK), 0) << "the next open would not know";
  EXPECT_EQ(index->close_clean().error().code, Code::kCorrupt);
  index.reset();
  // The owner opens anew and rebuilds.
  index = open_index(path(), Index::Found::kFresh);
  ASSERT_TRUE(index->apply(Batch{Stamp{1}, {PutRecord{make_directory(kRootId)}}}, {1, 0, 1}));
  EXPECT_TRUE(index->commit());
}

TEST_F(IndexDamageTest, PagesFlippedUnderAnOpenIndexNeverAnswerWrongRows) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer owns SIGSEGV";
  auto index = open_index(path(), Index::Found::kOpened);
  ASSERT_NE(index, nullptr);
  const int fd = open(data().c_str(), O_RDWR | O_CLOEXEC);
  const std::string garbage(4096, '\xff');
  for (off_t page = 2; page < static_cast<off_t>(pristine_.size() / 4096); page += 2) {
    ASSERT_EQ(pwrite(fd, garbage.data(), garbage.size(), page * 4096), 4096);
  }
  close(fd);
  for (const auto& [id, object] : newest_.objects) {
    const auto found = index->find_object_summary(id);
    if (!found) {
      EXPECT_EQ(found.error().code, Code::kCorrupt);
    } else if (*found) {
      EXPECT_EQ((*found)->attributes, object.attributes);
    }
  }
  EXPECT_TRUE(index->damaged());
}

// LMDB takes the newest meta page there is for the newest commit. Bytes 144 to 151 of a meta page are the number of its transaction.
TEST_F(IndexDamageTest, MetaPagesThatChangeUnderAnOpenIndexAreNotBelieved) {
  constexpr off_t kNumberAt = 144;
  for (const char* how : {"newest looks old", "oldest looks new", "an older file", "nonsense"}) {
    SCOPED_TRACE(how);
    write_all(data(), pristine_);
    std::filesystem::remove(path() + "/damaged");
    auto index = open_index(path(), Index::Found::kOpened);
    ASSERT_NE(index, nullptr);
    ASSERT_TRUE(index->apply(Batch{Stamp{~uint64_t{0} >> 2}, {NameRecord{kRootId, "late", kLarge}}}, {newest_at_.epoch, 0, newest_at_.offset + 1}));
    ASSERT_TRUE(index->commit());
    ASSERT_TRUE(index->commit());
    EXPECT_TRUE(index->find_name(kRootId, "late").value_or(std::nullopt));
    const int fd = open(data().c_str(), O_RDWR | O_CLOEXEC);
    uint64_t numbers[2] = {};
    for (off_t page = 0; page < 2; ++page) ASSERT_EQ(pread(fd, &numbers[page], 8, page * 4096 + kNumberAt), 8);
    const off_t newest = numbers[1] > numbers[0] ? 1 : 0;
    uint64_t number = 0;
    if (how == std::string_view("newest looks old")) {
      ASSERT_EQ(pwrite(fd, &number, 8, newest * 4096 + kNumberAt), 8);
    } else if (how == std::string_view("oldest looks new")) {
      number = numbers[1 - newest] | uint64_t{1} << 20;
      ASSERT_EQ(pwrite(fd, &number, 8, (1 - newest) * 4096 + kNumberAt), 8);
    } else if (how == std::string_view("an older file")) {
      ASSERT_EQ(pwrite(fd, pristine_.data(), pristine_.size(), 0), static_cast<ssize_t>(pristine_.size()));
    } else {
      const std::string garbage(4096, '\xa5');
      for (off_t page = 0; page < 2; ++page) ASSERT_EQ(pwrite(fd, garbage.data(), garbage.size(), page * 4096), 4096);
    }
    close(fd);
    // By the next commit at the latest.
    ASSERT_TRUE(index->apply(Batch{Stamp{(~uint64_t{0} >> 2) + 1}, {NameRecord{kRootId, "later", kLarge}}}, {newest_at_.epoch, 0, newest_at_.offset + 2}));
    const auto committed = index->commit();
    ASSERT_FALSE(committed);
    EXPECT_EQ(committed.error().code, Code::kCorrupt) << committed.error().message;
    EXPECT_TRUE(index->damaged()) << "it is built anew";
  }
}

TEST_F(IndexDamageTest, WhatIsNoFileIsNotWaitedFor) {
  auto index = open_index(path(), Index::Found::kOpened);
  ASSERT_NE(index, nullptr);
  std::filesystem::remove(data());
  ASSERT_EQ(mkfifo(data().c_str(), 0600), 0);
  EXPECT_FALSE(index->close_clean());
  const auto checked = check_pages(data(), LmdbEnv::is_sound_row);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, Code::kCorrupt);
}

// LMDB itself on damaged structure, without the checks in front of it.
void read_everything(const std::string& directory, const std::map<std::pair<int, std::string>, std::string>& rows) {
  auto env = LmdbEnv::open(directory, LmdbEnv::Open::kExisting, 64 * kMiB);
  if (!env) return;
  Bytes value;
  for (const auto& [key, expected] : rows) {
    const auto found = (*env)->get(static_cast<Table>(key.first), as_bytes(key.second), value);
    if (found && *found && as_text(value) != expected) _exit(2);
    if (!found && found.error().code != Code::kCorrupt) _exit(3);
  }
  for (size_t table = 0; table < kTableCount; ++table) {
    (void)(*env)->scan(static_cast<Table>(table), {}, [&](ByteSpan key, ByteSpan row) {
      const auto known = rows.find({static_cast<int>(table), std::string(as_text(key))});
      if (known == rows.end() || known->second != as_text(row)) _exit(4);
      return true;
    });
  }
}

TEST_F(IndexDamageTest, TheGuardHoldsWhereTheChecksDoNotLook) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer owns SIGSEGV, and reports LMDB's wild reads as errors";
  std::map<std::pair<int, std::string>, std::string> rows;
  {
    auto env = LmdbEnv::open(path(), LmdbEnv::Open::kExisting, 64 * kMiB);
    ASSERT_TRUE(env);
    for (size_t table = 0; table < kTableCount; ++table) {
      ASSERT_TRUE((*env)->scan(static_cast<Table>(table), {}, [&](ByteSpan key, ByteSpan row) {
        rows[{static_cast<int>(table), std::string(as_text(key))}] = as_text(row);
        return true;
      }));
    }
  }
  ASSERT_GT(rows.size(), 200u);
  // Children, since every damaged environment is leaked; a few flips each.
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);  // a loop is a failure too
      std::mt19937_64 random(seed);
      for (int n = 0; n < 50; ++n) {
        std::string bytes = pristine_;
        for (uint64_t flips = 1 + random() % 3; flips > 0; --flips) {
          const uint64_t at = 8192 + random() % (bytes.size() - 8192);
          // Half of them into page headers and node pointers, where structure is.
          const uint64_t where = random() % 2 ? at : at / 4096 * 4096 + random() % 64;
          bytes[where] = static_cast<char>(bytes[where] ^ (1 << random() % 8));
        }
        std::ofstream(scratch_.path("index/data.mdb"), std::ios::binary | std::ios::trunc) << bytes;
        read_everything(path(), rows);
      }
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "seed " << seed << ": " << (WIFSIGNALED(status) ? "signal " : "exit ")
        << (WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  }
}

void fault_outside() {
  void* page = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *static_cast<volatile char*>(page) = 1;
}

void on_earlier_handler(int) { _exit(42); }

TEST(FaultGuardDeathTest, LeavesFaultsOfOthersToTheirHandlers) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer owns SIGSEGV";
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a new process: install() works once in each
  EXPECT_EXIT(
      {
        signal(SIGSEGV, on_earlier_handler);
        fault_guard::install();
        if (fault_guard::run_guarded([] { fault_outside(); })) _exit(1);
        fault_outside();
      },
      testing::ExitedWithCode(42), "");
  EXPECT_EXIT(
      {
        fault_guard::install();
        fault_outside();
      },
      testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(IndexDamageTest, WhatWasFoundDamagedIsNotTrustedAgain) {
  write_all(path() + "/damaged", "");
  Index::Found found{};
  std::string why;
  auto index = Index::open(path(), identity(), &found, &why);
  ASSERT_TRUE(index) << index.error().message;
  EXPECT_EQ(found, Index::Found::kFresh);
  EXPECT_FALSE(why.empty());
  index->reset();
  auto again = Index::open(path(), identity(), &found, &why);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_TRUE(why.empty()) << why;
}

}  // namespace index_damage_test

}  // namespace kvcachefs::index_test

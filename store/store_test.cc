// The store through its face, on a real directory and in one thread (pump), small and readable cases.
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "store/store.h"
#include "store/testing/test_store.h"
#include "store/volume/test_directory.h"

namespace kvcachefs {
namespace store_test {

using testing::TestStore;

TEST(Store, WhatWasWrittenIsReadBackBeforeAndAfterARemount) {
  TestStore store;
  ASSERT_TRUE(store.write_file("chunk", store.payload(1, 300'000)));
  EXPECT_EQ(store.read_file("chunk"), store.payload(1, 300'000));
  store.remount();
  EXPECT_EQ(store.read_file("chunk"), store.payload(1, 300'000));
}

TEST(Store, SmallBodiesShareOneExtent) {
  TestStore store;
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(store.write_file("c" + std::to_string(i), store.payload(i, 65'536)));
  store.remount();
  size_t extents = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(store.root()))
    extents += entry.path().extension() == ".pack";
  EXPECT_LE(extents, 2u);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(store.read_file("c" + std::to_string(i)), store.payload(i, 65'536)) << i;
}

TEST(Store, RenameReplacesAndTheOldBodyGoes) {
  TestStore store;
  ASSERT_TRUE(store.write_file("final", store.payload(1, 100'000)));
  store.drain();
  ASSERT_TRUE(store.write_file("final.tmp", store.payload(2, 120'000)));
  ASSERT_TRUE(store.rename("final.tmp", "final"));
  EXPECT_EQ(store.read_file("final"), store.payload(2, 120'000));
  EXPECT_FALSE(store.exists("final.tmp"));
  store.remount();
  EXPECT_EQ(store.read_file("final"), store.payload(2, 120'000));
  EXPECT_FALSE(store.exists("final.tmp"));
}

TEST(Store, EqualBytesAreStoredOnce) {
  TestStore store;
  ASSERT_TRUE(store.write_file("final", store.payload(1, 700'000)));
  store.drain();
  const uint64_t live = store->status().live_bytes;
  ASSERT_TRUE(store.write_file("t", store.payload(1, 700'000)));
  ASSERT_TRUE(store.rename("t", "final"));
  store.drain();
  EXPECT_EQ(store->status().live_bytes, live);
  EXPECT_EQ(store->status().deduplicated_bodies, 1u);
  store.remount();
  EXPECT_EQ(store.read_file("final"), store.payload(1, 700'000));
}

TEST(Store, OverwriteInPlaceAndSparse) {
  TestStore store;
  ASSERT_TRUE(store.write_file("f", store.payload(1, 1'000'000)));
  store.remount();
  std::string expected = store.payload(1, 1'000'000);
  Handle* handle = store.open("f", {.read = true, .write = true});
  store.pwrite(handle, 500'003, "hello");
  std::memcpy(expected.data() + 500'003, "hello", 5);
  store.pwrite(handle, 2'000'000, "end");
  expected.resize(2'000'003);
  std::memcpy(expected.data() + 2'000'000, "end", 3);
  store.close(handle);
  EXPECT_EQ(store.read_file("f"), expected);
  store.remount();
  EXPECT_EQ(store.read_file("f"), expected);
}

TEST(Store, TruncatedAndExtendedReadsZeros) {
  TestStore store;
  ASSERT_TRUE(store.write_file("f", store.payload(1, 600'000)));
  store.remount();
  store.truncate("f", 100'001);
  store.truncate("f", 400'000);
  std::string expected = store.payload(1, 600'000).substr(0, 100'001);
  expected.resize(400'000);
  EXPECT_EQ(store.read_file("f"), expected);
  store.remount();
  EXPECT_EQ(store.read_file("f"), expected);
}

TEST(Store, UnlinkedSpaceComesBack) {
  TestStore store;
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(store.write_file("c" + std::to_string(i), store.payload(i, 1 << 20)));
  store.drain();
  const uint64_t full = store.allocated_bytes();
  EXPECT_GE(full, 40u << 20);
  const uint64_t free_before = store->space().blocks_free;
  for (int i = 0; i < 40; i += 2) ASSERT_TRUE(store.unlink("c" + std::to_string(i)));
  EXPECT_GE(store->space().blocks_free, free_before + 20 * 256 - 64) << "statfs falls at once";
  store.remount();
  EXPECT_LT(store.allocated_bytes(), full - (19u << 20));
  for (int i = 1; i < 40; i += 2) EXPECT_EQ(store.read_file("c" + std::to_string(i)), store.payload(i, 1 << 20));
}

TEST(Store, ABodyLargerThanMemoryIsSpilled) {
  StoreOptions options;
  options.memory_bytes = 16 * kMiB;
  TestStore store(options);
  Handle* handle = store.create("big");
  const std::string piece = store.payload(5, 1 << 20);
  for (uint64_t i = 0; i < 64; ++i) store.pwrite(handle, i << 20, piece);
  EXPECT_LE(store->status().memory_used_bytes, 17 * kMiB);
  store.close(handle);
  store.remount();
  std::string all;
  for (int i = 0; i < 64; ++i) all += piece;
  EXPECT_EQ(store.read_file("big"), all);
}

TEST(Store, AReadThatIsAnsweredKeepsNothingInMemory) {
  TestStore store;
  ASSERT_TRUE(store.write_file("body", TestStore::payload(1, kMiB)));
  store.remount();
  Handle* reader = store.open("body", {});
  ASSERT_NE(reader, nullptr);
  std::atomic<bool> answered = false;
  uint64_t in_reply = 0, afterwards = UINT64_MAX;
  store->read(reader, 0, kMiB, [&](Result<ReadReply> reply) {
    in_reply = reply ? reply->bytes : 0;
    reply = ReadReply{};
    store->drop_caches();
    afterwards = store->status().memory_used_bytes;
    answered = true;
  });
  for (int i = 0; i < 60'000 && !answered; ++i)
    if (!store->pump()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(answered);
  EXPECT_EQ(in_reply, kMiB);
  EXPECT_EQ(afterwards, 0u);
  store.close(reader);
}

// Writers have taken all the memory that they may have, and nothing of it reaches the volume unless the store is pumped.
class BesideWriters : public ::testing::Test {
 protected:
  static StoreOptions options() {
    StoreOptions options;
    options.memory_bytes = 16 * kMiB;
    options.prefetch = false;
    return options;
  }
  void SetUp() override {
    ASSERT_TRUE(store.write_file("old", body));
    store.remount();
    writer = store.create("new");
    reader = store.open("old", {});
    ASSERT_NE(reader, nullptr);
    for (uint64_t at = 0; written == at; at += piece.size()) {
      ASSERT_LT(at, 2 * options().memory_bytes);
      store->write(writer, at, std::as_bytes(std::span(piece)), [this](Result<size_t> bytes) {
        ASSERT_TRUE(bytes);
        written += *bytes;
        note('w');
      });
    }
    answers.clear();
  }
  void TearDown() override {
    for (int i = 0; i < 60'000 && answered().size() < 2; ++i)
      if (!store->pump()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(answered(), "rw");
    store.close(writer);
    store.close(reader);
  }
  void read(uint64_t bytes) {
    store->read(reader, 0, bytes, [this, bytes](Result<ReadReply> reply) {
      EXPECT_TRUE(reply && reply->bytes == bytes);
      note('r');
    });
  }
  void note(char who) {  // also on a thread of the volume
    std::lock_guard lock(mutex);
    answers.push_back(who);
  }
  std::string answered() {
    std::lock_guard lock(mutex);
    return answers;
  }

  const std::string body = TestStore::payload(1, 15 * kMiB), piece = TestStore::payload(2, kMiB);
  TestStore store{options()};
  Handle *writer = nullptr, *reader = nullptr;
  uint64_t written = 0;
  std::mutex mutex;
  std::string answers;  // mutex: who got one, in their order
};

TEST_F(BesideWriters, ReadersFindMemoryThatIsTheirs) {
  read(kMiB);
  for (int i = 0; i < 60'000 && answered().empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(answered(), "r") << "it waits for what the writers have";
}

TEST_F(BesideWriters, ReadersAreServedFirst) {
  read(15 * kMiB - 2 * kUnitBytes);  // the next write does not fit beside it; with less left it would be read in pieces
  EXPECT_EQ(answered(), "") << "there was memory for it: nothing is tested";
}

// What was read ahead for readers lies there for a while.
TEST(Store, WritersWhoWaitLeaveReadersWhatTheyHave) {
  StoreOptions options;
  options.memory_bytes = 16 * kMiB;
  options.prefetch = false;
  TestStore store(options);
  const std::string body = TestStore::payload(1, kMiB);
  ASSERT_TRUE(store.write_file("old", body));
  store.remount();
  EXPECT_EQ(store.read_file("old"), body);
  const uint64_t from_volume = store->status().read_bytes_from_volume;
  Handle* writer = store.create("new");
  uint64_t at = 0, written = 0;
  for (; written == at && at < options.memory_bytes; at += body.size())
    store->write(writer, at, std::as_bytes(std::span(body)), [&](Result<size_t> bytes) { written += bytes.value_or(0); });
  EXPECT_LT(written, at) << "there was memory for all of it: nothing is tested";
  EXPECT_EQ(store->status().memory_dirty_bytes, written);
  EXPECT_EQ(store.read_file("old"), body);
  EXPECT_EQ(store->status().read_bytes_from_volume, from_volume);
  store.settle();
  EXPECT_EQ(written, at);
  store.close(writer);
}

// Bodies of which two thirds fit into memory, none of them in it.
class ManyBodies : public ::testing::Test {
 protected:
  static StoreOptions options() {
    StoreOptions options;
    options.memory_bytes = 128 * kMiB;
    options.prefetch = false;
    return options;
  }
  void SetUp() override {
    for (int i = 0; i < kBodies; ++i) ASSERT_TRUE(store.write_file(name(i), body));
    store.remount();
  }
  static std::string name(int i) { return "c" + std::to_string(i); }
  void read(int i) {
    Handle* handle = store.open(name(i), {}, 0);  // by the thread that looked it up
    ASSERT_NE(handle, nullptr);
    bool whole = false;
    store->read(handle, 0, body.size(), [&](Result<ReadReply> reply) { whole = reply && reply->bytes == body.size(); });
    for (int step = 0; step < 1'000'000 && !whole; ++step) store->pump();
    EXPECT_TRUE(whole);
    store.close(handle);
  }
  uint64_t from_volume() { return store->status().read_bytes_from_volume; }

  static constexpr int kBodies = 48;
  const std::string body = TestStore::payload(1, 4 * kMiB);
  TestStore store{options()};
};

TEST_F(ManyBodies, WhatIsOpenedAgainAndAgainStaysInMemory) {
  read(0);
  for (int i = 1; i < kBodies; ++i) {
    read(i);
    const uint64_t before = from_volume();
    read(0);
    ASSERT_EQ(from_volume(), before) << "after " << i << " others";
  }
}

TEST_F(ManyBodies, NothingIsGivenUpThatNobodyNeeds) {
  for (int i = 0; i < kBodies; ++i) read(i);
  const uint64_t used = store->status().memory_used_bytes;
  EXPECT_GT(used, options().memory_bytes * 3 / 4);
  ASSERT_TRUE(store.write_file("new", "little"));
  store.drain();
  store.settle();
  EXPECT_GE(store->status().memory_used_bytes, used);
}

TEST_F(ManyBodies, WhatIsOpenStaysInMemory) {
  read(0);
  Handle* handle = store.open(name(0), {}, 0);
  ASSERT_NE(handle, nullptr);
  for (int i = 1; i < kBodies; ++i) read(i);
  const uint64_t before = from_volume();
  read(0);
  EXPECT_EQ(from_volume(), before);
  store.close(handle);
}

TEST_F(ManyBodies, WhatIsOpenGoesWhenNothingElseIsLeft) {
  std::vector<Handle*> handles;
  for (int i = 0; i < kBodies; ++i) {
    handles.push_back(store.open(name(i), {}, 0));
    read(i);
  }
  for (Handle* handle : handles) store.close(handle);
}

// Names that a client asked for before it wrote them, in another order: by create in place, and by link.
class AnnouncedNames : public ::testing::TestWithParam<bool> {
 protected:
  static std::string name(int i) { return "00112233445566778899aabbccddee" + std::to_string(10 + i) + ".bin"; }
  void write(int i) {
    const std::string temporary = std::to_string(i) + ".tmp";
    writers.push_back(store.create(GetParam() ? temporary : name(i), 2));
    ids[i] = store->object_of(writers.back());
    if (!GetParam()) return;
    EXPECT_FALSE(store->lookup(kRootId, name(i), {.thread_id = 2}));  // the kernel's own
    bool linked = false;
    store->link(ids[i], kRootId, name(i), {.thread_id = 2}, [&](Result<Stat> stat) { linked = stat.has_value(); });
    ASSERT_TRUE(linked);
    ASSERT_TRUE(store.unlink(temporary));
  }
  std::string predecessor(int i) {
    const auto facts = store->describe(ids[i], {});
    for (const auto& [key, value] : *facts)
      if (key == "predecessor") return value;
    return {};
  }
  std::vector<Handle*> writers;  // open until all have their names: nothing is laid out before
  ObjectId ids[6];  // not looked up: that would teach the order, too
  TestStore store;
};
INSTANTIATE_TEST_SUITE_P(LinkedOrInPlace, AnnouncedNames, ::testing::Bool());

TEST_P(AnnouncedNames, AreLinkedAsTheyWereAnnounced) {
  for (int i = 0; i < 6; ++i) EXPECT_FALSE(store->lookup(kRootId, name(i), {.thread_id = 1}));
  for (int i : {3, 5, 0, 4, 2, 1}) write(i);
  for (Handle* writer : writers) store.close(writer);
  store.drain();
  for (int i = 1; i < 6; ++i) EXPECT_EQ(predecessor(i), std::to_string(ids[i - 1].value)) << i;
}

TEST(Store, CapacityIsRefusedEarlyAndTheRenameFails) {
  StoreOptions options;
  options.evict = false;
  options.capacity_bytes = 16 * kMiB;
  TestStore store(options);
  ASSERT_TRUE(store.write_file("kept", store.payload(1, 8 << 20)));
  Handle* handle = store.create("t");
  EXPECT_EQ(store.try_pwrite(handle, 0, std::string(9 << 20, 'x')), Code::kNoSpace);
  store.close(handle);
  EXPECT_FALSE(store.rename("t", "final"));
  EXPECT_FALSE(store.exists("final"));
  EXPECT_EQ(store.read_file("kept"), store.payload(1, 8 << 20));
}

TEST(Store, AFlippedByteIsNeverServed) {
  TestStore store;
  ASSERT_TRUE(store.write_file("a", store.payload(1, 100'000)));
  ASSERT_TRUE(store.write_file("b", store.payload(2, 100'000)));
  store.remount();
  store.flip_in_extents(store.payload(1, 100'000).substr(50'000, 64));
  EXPECT_EQ(store.try_read_file("a"), Code::kCorrupt);
  EXPECT_EQ(store.read_file("b"), store.payload(2, 100'000));
  EXPECT_FALSE(store.exists("a"));
  store.remount();
  EXPECT_FALSE(store.exists("a"));
  ASSERT_TRUE(store.write_file("a", store.payload(3, 5'000)));
  EXPECT_EQ(store.read_file("a"), store.payload(3, 5'000));
}

TEST(Store, TheIndexCanBeDeleted) {
  TestStore store;
  for (int i = 0; i < 50; ++i) {
    const std::string directory = "d" + std::to_string(i % 7);
    store.mkdir(directory);
    ASSERT_TRUE(store.write_file(directory + "/c" + std::to_string(i), store.payload(i, 3'000 + 1'000 * static_cast<size_t>(i))));
  }
  const auto before = store.tree();
  store.unmount();
  std::filesystem::remove_all(store.root() + "/nodes/test/index");
  store.mount();
  EXPECT_TRUE(store->status().index_rebuilt);
  EXPECT_EQ(store.tree(), before);
}

TEST(Store, WithDurabilityCloseACrashLosesNothingClosed) {
  StoreOptions options;
  options.durability = Durability::kClose;
  TestStore store(options);
  ASSERT_TRUE(store.write_file("t", store.payload(1, 400'000)));
  ASSERT_TRUE(store.rename("t", "final"));
  ASSERT_TRUE(store.write_file("gone", store.payload(2, 10)));
  ASSERT_TRUE(store.unlink("gone"));
  store.crash();
  EXPECT_EQ(store.read_file("final"), store.payload(1, 400'000));
  EXPECT_FALSE(store.exists("t"));
  EXPECT_FALSE(store.exists("gone"));
}

TEST(Store, TwoWritersOfOneTemporaryNameBothSucceed) {
  TestStore store;
  Handle* first = store.create("t.tmp", /*thread=*/11);
  store.pwrite(first, 0, std::string(1000, 'a'));
  Handle* second = store.open_for_rewrite("t.tmp", /*thread=*/22);  // ESTALE, lookup, open
  ASSERT_NE(second, nullptr);
  store.pwrite(second, 0, std::string(10, 'b'));
  store.close(first);
  ASSERT_TRUE(store.rename("t.tmp", "final", 11));
  EXPECT_EQ(store.read_file("final"), std::string(1000, 'a'));
  store.pwrite(second, 10, std::string(990, 'b'));
  store.close(second);
  ASSERT_TRUE(store.rename("t.tmp", "final", 22));
  EXPECT_EQ(store.read_file("final"), std::string(1000, 'b'));
  EXPECT_FALSE(store.exists("t.tmp"));
  store.remount();
  EXPECT_EQ(store.read_file("final"), std::string(1000, 'b'));
}

TEST(Store, ASecondDaemonIsRefusedAndTheFirstNamed) {
  TestStore store;
  auto volume = open_posix_volume(store.root(), {});
  ASSERT_TRUE(volume);
  StoreOptions options;
  options.node = "test";
  options.background = false;
  auto second = open_store(*volume, options, system_clock(), "pid=2");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kBusy);
  EXPECT_NE(second.error().message.find("test store"), std::string::npos) << second.error().message;
}

TEST(Store, PackBelowMeansTheSameLiveAndAtTheStart) {
  StoreOptions options;
  options.extent_bytes = 16 * kMiB;
  TestStore store(options);
  const uint64_t by_default = store->options().pack_below_bytes;
  EXPECT_EQ(by_default, 4 * kMiB);
  ASSERT_TRUE(store->set_option("pack_below", "1G"));
  EXPECT_EQ(store->options().pack_below_bytes, options.extent_bytes - kBlockBytes);
  ASSERT_TRUE(store->set_option("pack_below", "0"));
  EXPECT_EQ(store->options().pack_below_bytes, by_default);
}

TEST(Options, NothingMeansTheDefaultWhateverWasSaidBefore) {
  StoreOptions options;
  ASSERT_TRUE(set_store_option(options, "keep_free", "10%"));
  ASSERT_TRUE(set_store_option(options, "keep_free", "0"));
  EXPECT_EQ(options.keep_free_bytes, 0u);
  EXPECT_EQ(options.keep_free_percent, StoreOptions().keep_free_percent);
}

// "default 4M; ..." or "auto (default), ...". Parts of a file system and what the machine decides are no values.
std::string default_in(const std::string& help) {
  constexpr std::string_view kBefore = "default ", kAfter = " (default)";
  if (const size_t end = help.find(kAfter); end != std::string::npos) {
    const size_t blank = help.rfind(' ', end - 1);
    return help.substr(blank == std::string::npos ? 0 : blank + 1, end - (blank == std::string::npos ? 0 : blank + 1));
  }
  const size_t start = help.find(kBefore);
  if (start == std::string::npos) return {};
  const std::string word = help.substr(start + kBefore.size(), help.find_first_of(" ;", start + kBefore.size()) - start - kBefore.size());
  return word[0] >= '0' && word[0] <= '9' && !word.ends_with('%') ? word : std::string();
}

TEST(Options, TheHelpTellsTheDefaults) {
  int compared = 0;
  const std::vector<OptionText> listed = store_options_text({});
  for (const OptionText& option : listed) {
    const std::string told = default_in(option.help);
    if (told.empty()) continue;
    EXPECT_EQ(told, option.value) << option.name << ": " << option.help;
    ++compared;
  }
  EXPECT_GE(compared, 9);
}

TEST(Store, ADirectoryOfSomethingElseIsRefused) {
  TestStore store;
  const std::string other = store.root() + "-other";
  std::filesystem::create_directories(other + "/stuff");
  auto volume = open_posix_volume(other, {});
  ASSERT_TRUE(volume);
  StoreOptions options;
  options.background = false;
  auto opened = open_store(*volume, options, system_clock(), "x");
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().message.find("stuff"), std::string::npos);
  std::filesystem::remove_all(other);
}

TEST(Store, OfManyMountsOnlyThoseThatLeftChunksLeaveADirectory) {
  TestStore store;
  ASSERT_TRUE(store.write_file("kept", store.payload(1, 100'000)));
  store.drain();
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(store.write_file("gone", store.payload(2, 100'000)));
    store.drain();
    ASSERT_TRUE(store.unlink("gone"));
    store.drain();
    store.crash();  // what was added since is judged and checkpointed
    store.settle();
  }
  size_t epochs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(store.root() + "/nodes/test"))
    epochs += entry.is_directory() && std::isdigit(static_cast<unsigned char>(entry.path().filename().string()[0]));
  EXPECT_LE(epochs, 4u);
  EXPECT_EQ(store.read_file("kept"), store.payload(1, 100'000));
  store.remount();
  EXPECT_EQ(store.read_file("kept"), store.payload(1, 100'000));
}

class FirstMounts : public ::testing::TestWithParam<bool> {};

// Two hosts, two scripts, a unit and a line of fstab: they share a volume that neither has seen before.
TEST_P(FirstMounts, AtOnceMakeOneVolume) {
  const bool same_node = GetParam();
  for (int round = 0; round < 20; ++round) {
    const test::TestDirectory directory;
    auto try_open = [&](int mount) {
      StoreOptions options;
      options.node = same_node ? "test" : "host" + std::to_string(mount);
      options.background = false;
      options.memory_bytes = 16 * kMiB;
      auto volume = open_posix_volume(directory.path(), {});
      return volume ? open_store(*volume, options, system_clock(), "test") : std::unexpected(volume.error());
    };
    std::vector<Result<std::unique_ptr<Store>>> opened(3);
    {
      std::vector<std::jthread> mounts;
      for (size_t i = 0; i < opened.size(); ++i) mounts.emplace_back([&, i] { opened[i] = try_open(static_cast<int>(i)); });
    }
    std::string uuid;
    int mounted = -1;
    for (size_t i = 0; i < opened.size(); ++i) {
      if (!opened[i]) {
        EXPECT_TRUE(same_node) << opened[i].error().message;
        EXPECT_EQ(opened[i].error().code, Code::kBusy) << opened[i].error().message;
        continue;
      }
      EXPECT_TRUE(mounted == -1 || !same_node) << "a second one";
      const std::string its = (*opened[i])->status().volume_uuid;
      EXPECT_TRUE(uuid.empty() || its == uuid) << "two volumes";
      uuid = its;
      mounted = static_cast<int>(i);
      EXPECT_TRUE((*opened[i])->close());
      opened[i]->reset();
    }
    ASSERT_GE(mounted, 0);
    auto again = try_open(mounted);
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_TRUE((*again)->close());
    EXPECT_TRUE(std::filesystem::exists(directory.path() + "/.kvcachefs-first-mount"));  // others may wait for just this one
    for (const auto& entry : std::filesystem::directory_iterator(directory.path()))
      EXPECT_FALSE(entry.path().filename().string().ends_with(".tmp")) << entry.path();
  }
}

INSTANTIATE_TEST_SUITE_P(Store, FirstMounts, ::testing::Bool());

}  // namespace store_test
}  // namespace kvcachefs

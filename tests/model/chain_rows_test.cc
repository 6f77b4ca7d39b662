// What follows what is known after a daemon was killed, too: rows go into the journal with the bodies they are of, and never
// before. One thread, a clock that moves on order.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/base/clock.h"
#include "store/base/units.h"
#include "store/store.h"
#include "store/volume/fault_volume.h"
#include "store/volume/test_directory.h"
#include "tests/model/await.h"

namespace kvcachefs::testing {
namespace chain_rows_test {

constexpr uint64_t kChunks = 6;
constexpr Caller kCaller{.uid = 0, .gid = 0, .thread_id = 1};

class ChainRows : public ::testing::Test {
 protected:
  ChainRows() {
    if (directory_.path().empty()) std::abort();
    mount();
  }
  ~ChainRows() override {
    EXPECT_TRUE(store_->close());
    store_.reset();
  }
  void mount() {
    StoreOptions options;
    options.background = false;
    options.node = "test";
    options.index_directory = directory_.path() + "/index";
    options.memory_bytes = 64 * kMiB;
    auto volume = make_fault_volume(volume_, [this](const VolumeCall& call) -> Fault {
      const bool fails = journal_fails_ && call.kind == VolumeCall::Kind::kWrite && call.path.find("journal") != std::string::npos;
      return {.sys_errno = fails ? EIO : 0};
    });
    auto store = open_store(std::move(volume), options, clock_, "test");
    if (!store) std::abort();
    store_ = std::move(*store);
  }
  // As kill -9 and a start anew.
  void die_and_mount() {
    auto next = volume_->crash_process();
    store_.reset();
    volume_ = std::move(next);
    mount();
  }
  template <class T, class Call>
  Result<T> wait(Call call) {
    return await<T>(*store_, call, [] {});
  }
  void pump() {
    for (int step = 0; step < 20; ++step) store_->pump();  // never quiet while a name waits for its body
  }
  // The keeper drains the rows that changed.
  void sync_point() {
    EXPECT_TRUE(store_->make_directory(kRootId, fmt::format("d{}", ++directories_), 0755, kCaller));
    pump();
    clock_.advance_ns(6'000'000'000);
    const uint64_t before = store_->status().index_commits;
    pump();
    EXPECT_GT(store_->status().index_commits, before);
  }
  static std::string name(uint64_t chunk) { return fmt::format("p@{:06x}.kv", chunk); }
  // Asked for before they are written, and one more: this tells the order.
  void announce() {
    for (uint64_t chunk = 0; chunk <= kChunks; ++chunk) EXPECT_FALSE(store_->lookup(kRootId, name(chunk), kCaller));
  }
  // Written and renamed to its name, and open still.
  Handle* publish(uint64_t chunk) {
    const std::string temporary = fmt::format("temporary{}", chunk), content(100'000, static_cast<char>('a' + chunk));
    auto made = store_->create(kRootId, temporary, 0644, {.read = false, .write = true}, kCaller);
    EXPECT_TRUE(made);
    EXPECT_TRUE(wait<size_t>([&](auto done) {
      store_->write(made->second, 0, std::as_bytes(std::span(content)), std::move(done));
    }));
    EXPECT_TRUE(wait<void>([&](auto done) {
      store_->rename(kRootId, temporary, kRootId, name(chunk), RenameMode::kReplace, kCaller, std::move(done));
    }));
    ids_.push_back(made->first.id);
    return made->second;
  }
  void close(Handle* handle) {
    EXPECT_TRUE(wait<void>([&](auto done) { store_->flush(handle, std::move(done)); }));
    store_->release(handle);
  }
  void drain() {
    EXPECT_TRUE(wait<void>([&](auto done) { store_->drain(false, std::move(done)); }));
  }
  ObjectId make_directory(ObjectId parent, const std::string& name) {
    const auto made = store_->make_directory(parent, name, 0755, kCaller);
    EXPECT_TRUE(made);
    return made ? made->id : ObjectId{};
  }
  // Made and written under its name.
  void write(ObjectId directory, const std::string& name, uint32_t thread_id) {
    const Caller caller{.uid = 0, .gid = 0, .thread_id = thread_id};
    const std::string content(100'000, static_cast<char>('a' + ids_.size() % 26));
    auto made = store_->create(directory, name, 0644, {.read = false, .write = true}, caller);
    ASSERT_TRUE(made);
    EXPECT_TRUE(wait<size_t>([&](auto done) {
      store_->write(made->second, 0, std::as_bytes(std::span(content)), std::move(done));
    }));
    ids_.push_back(made->first.id);
    close(made->second);
  }
  std::string fact(ObjectId id, const std::string& key) {
    const auto facts = store_->describe(id, {});
    EXPECT_TRUE(facts);
    if (facts)
      for (const auto& [name, value] : *facts)
        if (name == key) return value;
    return {};
  }
  // Two ranks at once, each in its directory.
  void write_in_turns(const ObjectId (&ranks)[2]) {
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk)
      for (uint32_t rank = 0; rank < 2; ++rank) write(ranks[rank], fmt::format("{:032x}.bin", 0x1234567890 + chunk), 1 + rank);
    drain();
  }
  // As a client makes a path: each name is looked up before it is made.
  ObjectId make_path(ObjectId at, std::initializer_list<std::string> names) {
    for (const std::string& name : names) {
      EXPECT_FALSE(store_->lookup(at, name, kCaller));
      at = make_directory(at, name);
    }
    return at;
  }
  void write_and_rename(ObjectId directory, const std::string& name) {
    write(directory, name + ".temporary", kCaller.thread_id);
    EXPECT_FALSE(store_->lookup(directory, name, kCaller));
    EXPECT_TRUE(wait<void>([&](auto done) {
      store_->rename(directory, name + ".temporary", directory, name, RenameMode::kReplace, kCaller, std::move(done));
    }));
  }
  uint64_t offset(ObjectId id) {
    const std::string place = fact(id, "place");
    const size_t colon = place.rfind(':');
    EXPECT_NE(colon, std::string::npos) << place;
    return colon == std::string::npos ? 0 : std::stoull(place.substr(colon + 1));
  }
  void expect_two_chains() {
    for (size_t i = 0; i + 2 < ids_.size(); ++i)
      EXPECT_EQ(fact(ids_[i], "successors"), fmt::format("{}:1", ids_[i + 2].value)) << i;
  }
  void expect_chain() {
    for (uint64_t chunk = 0; chunk + 1 < kChunks; ++chunk) {  // without a lookup: that would tell it
      const auto facts = store_->describe(ids_[chunk], {});
      ASSERT_TRUE(facts);
      EXPECT_TRUE(std::ranges::any_of(*facts, [&](const auto& fact) {
        return fact.first == "successors" && fact.second.starts_with(fmt::format("{}:", ids_[chunk + 1].value));
      })) << name(chunk);
    }
  }

  test::TestDirectory directory_;  // for the index
  std::vector<ObjectId> ids_;  // of the chunks
  int directories_ = 0;
  bool journal_fails_ = false;
  ManualClock clock_{1'700'000'000'000'000'000};
  std::shared_ptr<SimVolume> volume_ = make_sim_volume();
  std::unique_ptr<Store> store_;
};

TEST_F(ChainRows, AreJournaledWithTheBodies) {
  announce();
  for (uint64_t chunk = 0; chunk < kChunks; ++chunk) close(publish(chunk));
  drain();
  die_and_mount();
  expect_chain();
}

TEST_F(ChainRows, DrainedBeforeTheBodyIsJournaledAreNotLost) {
  announce();
  std::vector<Handle*> open;
  for (uint64_t chunk = 0; chunk < kChunks; ++chunk) {
    open.push_back(publish(chunk));
    sync_point();
  }
  for (Handle* handle : open) close(handle);
  drain();
  die_and_mount();
  expect_chain();
}

// The journal takes nothing for a while.
TEST_F(ChainRows, OfACommitThatFailedAreNotLost) {
  announce();
  for (uint64_t chunk = 0; chunk < kChunks; ++chunk) close(publish(chunk));
  journal_fails_ = true;
  for (int step = 0; step < 3; ++step) store_->pump();
  EXPECT_GT(store_->status().errors_journal, 0u);
  journal_fails_ = false;
  drain();
  die_and_mount();
  expect_chain();
}

TEST_F(ChainRows, RanksInDirectoriesOfTheirOwnAreTwoChains) {
  ObjectId ranks[2];
  for (uint32_t rank = 0; rank < 2; ++rank)
    ranks[rank] = make_directory(make_directory(kRootId, fmt::format("m_r{}", rank)), "aa");
  write_in_turns(ranks);
  expect_two_chains();
}

TEST_F(ChainRows, RanksInDirectoriesThatWereRenamedAreTwoChains) {
  ObjectId ranks[2];
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ranks[rank] = make_directory(kRootId, "temporary");
    EXPECT_TRUE(wait<void>([&](auto done) {
      store_->rename(kRootId, "temporary", kRootId, fmt::format("m_r{}", rank), RenameMode::kReplace, kCaller, std::move(done));
    }));
  }
  write_in_turns(ranks);
  expect_two_chains();
}

// Who asks for a path whose directories are not there learns of the first of them only.
TEST_F(ChainRows, ChunksInDirectoriesOfTheirOwnAreOneChainAsTheDirectoriesWereProbed) {
  constexpr uint64_t kDirectories = 40;
  const ObjectId model = make_directory(kRootId, "model_r0");
  const auto head = [](uint64_t chunk) { return fmt::format("{:03x}", (chunk * 2'741) % 4'096); };
  for (uint64_t chunk = 0; chunk < kDirectories; ++chunk)
    EXPECT_FALSE(store_->lookup(model, head(chunk), {.uid = 0, .gid = 0, .thread_id = 7}));
  std::vector<ObjectId> by_chunk(kDirectories);
  for (uint64_t i = 0; i < kDirectories; ++i) {
    const uint64_t chunk = (i * 17 + 5) % kDirectories;
    const ObjectId leaf = make_path(model, {head(chunk), "de_g0"});
    write_and_rename(leaf, fmt::format("{:032x}.bin", 0x1234567890 + chunk * 7'919));
    by_chunk[chunk] = ids_.back();
  }
  drain();
  for (uint64_t chunk = 0; chunk + 1 < kDirectories; ++chunk) {
    EXPECT_EQ(fact(by_chunk[chunk], "successors"), fmt::format("{}:1", by_chunk[chunk + 1].value)) << chunk;
    EXPECT_LT(offset(by_chunk[chunk]), offset(by_chunk[chunk + 1])) << chunk;
  }
}

TEST_F(ChainRows, AFileWhoseOwnNameWasProbedLeavesThePlaceOfItsDirectoryAlone) {
  const Caller prober{.uid = 0, .gid = 0, .thread_id = 7};
  for (const char* name : {"0a1b2c3d", "1a1b2c3d"}) EXPECT_FALSE(store_->lookup(kRootId, name, prober));
  const ObjectId first = make_directory(kRootId, "0a1b2c3d"), second = make_directory(kRootId, "1a1b2c3d");
  EXPECT_FALSE(store_->lookup(second, "00000000000000000000000000000001.bin", prober));
  write_and_rename(first, "00000000000000000000000000000000.bin");
  write_and_rename(second, "00000000000000000000000000000001.bin");
  write_and_rename(second, "00000000000000000000000000000002.bin");
  drain();
  EXPECT_EQ(fact(ids_[0], "successors"), fmt::format("{}:1", ids_[2].value));
}

}  // namespace chain_rows_test
}  // namespace kvcachefs::testing

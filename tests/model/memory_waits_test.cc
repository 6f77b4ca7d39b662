// Requests for far more memory than there is: random reads, writes that change a part of what lies on the volume, zeroing, cuts,
// reads ahead, seals and spills, over a pool of a few units. Whatever waits for what, every request is answered, for there is
// memory for one of them. All writers write the same bytes (a function of file and offset), so each reply can be checked.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/base/clock.h"
#include "store/base/sanitized.h"
#include "store/base/units.h"
#include "store/store.h"
#include "store/volume/fault_volume.h"
#include "store/volume/test_directory.h"
#include "tests/model/await.h"
#include "tests/model/holding_volume.h"
#include "tests/model/threaded_store.h"

namespace kvcachefs::testing {
namespace memory_waits_test {

constexpr size_t kFiles = 12;
constexpr Caller kCaller{.uid = 0, .gid = 0, .thread_id = 1};

std::byte byte_at(size_t file, uint64_t offset) {
  return static_cast<std::byte>(word_at({.name = file}, offset / 64) >> (8 * (offset % 8)));
}
std::string content(size_t file, uint64_t offset, size_t length) {
  std::string bytes(length, 0);
  for (size_t i = 0; i < length; ++i) bytes[i] = static_cast<char>(byte_at(file, offset + i));
  return bytes;
}
// Only what is right, but for zeros: a part may be zeroed.
bool is_content(size_t file, uint64_t offset, const ReadReply& reply) {
  for (const iovec& piece : reply.pieces)
    for (size_t i = 0; i < piece.iov_len; ++i, ++offset) {
      const std::byte got = static_cast<const std::byte*>(piece.iov_base)[i];
      if (got != byte_at(file, offset) && got != std::byte{}) return false;
    }
  return true;
}

// What is asked for next, the same for one seed.
struct Request {
  enum class Kind : uint8_t { kRead, kWrite, kPunch, kCut } kind;
  size_t file;
  uint64_t offset, length;
};
Request next_request(std::mt19937_64& random, uint64_t file_bytes, uint64_t most_bytes) {
  const auto below = [&](uint64_t bound) { return random() % bound; };
  Request request{};
  const uint64_t kind = below(100);
  request.kind = kind < 55 ? Request::Kind::kRead : kind < 92 ? Request::Kind::kWrite : kind < 97 ? Request::Kind::kPunch : Request::Kind::kCut;
  request.file = below(kFiles);
  request.offset = below(2) == 0 ? align_down(below(file_bytes), kBlockBytes) : below(file_bytes);
  request.length = 1 + (below(3) == 0 ? below(20'000) : below(most_bytes));
  if (request.kind != Request::Kind::kRead) request.length = std::min(request.length, file_bytes - request.offset);
  return request;
}

StoreOptions small_memory(uint64_t bytes) {
  StoreOptions options;
  options.node = "test";
  options.memory_bytes = bytes;
  options.capacity_bytes = 8 * kGiB;
  options.extent_bytes = 64 * kMiB;
  return options;
}

// One thread, a clock that moves on order, reads of the volume that are held for as long as the seed says.
class MemoryWaits : public ::testing::Test {
 protected:
  void open(uint64_t memory_bytes) {
    StoreOptions options = small_memory(memory_bytes);
    options.background = false;
    options.index_directory = directory_.path() + "/index";
    auto store = open_store(volume_, options, clock_, "test");
    ASSERT_TRUE(store) << store.error().message;
    store_ = std::move(*store);
  }
  void TearDown() override {
    volume_->let_go();
    for (Handle* handle : handles_) store_->release(handle);
    EXPECT_TRUE(store_->close());
  }
  template <class T, class Call>
  Result<T> wait(Call call) {
    return await<T>(*store_, call, [] {});
  }
  void make_files(uint64_t file_bytes) {
    for (size_t file = 0; file < kFiles; ++file) {
      auto made = store_->create(kRootId, fmt::format("f{}", file), 0644, {.read = true, .write = true}, kCaller);
      ASSERT_TRUE(made);
      handles_.push_back(made->second);
      for (uint64_t at = 0; at < file_bytes; at += kMiB) {
        const std::string bytes = content(file, at, std::min(kMiB, file_bytes - at));
        auto written = wait<size_t>([&](auto done) { store_->write(made->second, at, std::as_bytes(std::span(bytes)), std::move(done)); });
        ASSERT_TRUE(written) << written.error().message;
        ASSERT_EQ(*written, bytes.size());
      }
      ASSERT_TRUE(wait<void>([&](auto done) { store_->flush(made->second, std::move(done)); }));
    }
    ASSERT_TRUE(wait<void>([&](auto done) { store_->drain(false, std::move(done)); }));
    store_->drop_caches();
  }
  void begin(const Request& request) {
    Handle* handle = handles_[request.file];
    const auto count = [this](const auto& result) {
      ++answered_;
      if (!result) ADD_FAILURE() << result.error().message;
    };
    ++asked_;
    switch (request.kind) {
      case Request::Kind::kRead:
        return store_->read(handle, request.offset, request.length, [count, request](Result<ReadReply> reply) {
          count(reply);
          EXPECT_TRUE(!reply || is_content(request.file, request.offset, *reply));
        });
      case Request::Kind::kWrite: {
        const std::string bytes = content(request.file, request.offset, request.length);
        return store_->write(handle, request.offset, std::as_bytes(std::span(bytes)), [count](Result<size_t> written) { count(written); });
      }
      case Request::Kind::kPunch:
        return store_->allocate(handle, Store::AllocateMode::kPunchHole, request.offset, request.length, [count](Status status) { count(status); });
      case Request::Kind::kCut:
        SetAttributes change;
        change.size_bytes = request.offset + request.length;
        return store_->set_attributes(store_->object_of(handle), handle, change, kCaller, [count](Result<Stat> done) { count(done); });
    }
  }
  void hold_reads() {
    volume_->hold([](const IoRequest& request) { return request.kind == IoRequest::Kind::kRead; });
  }
  void expect_all_answered() {
    volume_->let_go();
    // Work that answers nobody, as bodies that are read and put aside again and again, is no better than none.
    uint64_t before = 0;
    for (int rounds = 0; answered_ < asked_ && rounds < 5'000; ++rounds) {
      if (before != answered_) rounds = 0;
      before = answered_;
      clock_.advance_ns(1'000'000);
      store_->pump();
    }
    EXPECT_EQ(answered_, asked_) << store_->status().waiting_writes << " wait; memory used " << store_->status().memory_used_bytes
                                 << ", dirty " << store_->status().memory_dirty_bytes;
  }

  test::TestDirectory directory_;
  ManualClock clock_{1'700'000'000'000'000'000};
  std::shared_ptr<HoldingVolume> volume_ = std::make_shared<HoldingVolume>(make_sim_volume());
  std::unique_ptr<Store> store_;
  std::vector<Handle*> handles_;
  std::atomic<uint64_t> asked_{0}, answered_{0};
};

class MemoryWaitsSeeds : public MemoryWaits, public ::testing::WithParamInterface<uint64_t> {};

TEST_P(MemoryWaitsSeeds, EveryRequestIsAnswered) {
  std::mt19937_64 random(GetParam());
  const uint64_t memory = GetParam() % 2 == 0 ? 2 * kMiB : 4 * kMiB;
  const uint64_t file_bytes = 3 * kMiB + 300'000, most_bytes = GetParam() % 3 == 0 ? 3 * kMiB : kMiB;
  open(memory);
  make_files(file_bytes);
  for (int round = 0; round < 12; ++round) {
    if (random() % 4 != 0) hold_reads();
    for (size_t i = 0, count = 1 + random() % 60; i < count; ++i) {
      begin(next_request(random, file_bytes, most_bytes));
      for (uint64_t pumps = random() % 3; pumps > 0; --pumps) store_->pump();
      if (random() % 20 == 0) volume_->let_go();
    }
    clock_.advance_ns(static_cast<int64_t>(random() % 2'000'000'000));
    if (random() % 3 == 0) expect_all_answered();
    if (random() % 5 == 0) store_->drop_caches();
  }
  expect_all_answered();
}
INSTANTIATE_TEST_SUITE_P(Seeds, MemoryWaitsSeeds, ::testing::Range(first_seed(), first_seed() + static_cast<unsigned>(histories_here(12))));

// The bodies' first units are in RAM and fill it: those that want them and one more must not keep them from each other.
TEST_F(MemoryWaits, ReadersOfWhatIsHalfInRamDoNotWaitForEachOther) {
  open(4 * kMiB);
  make_files(2 * kMiB);
  for (size_t file = 0; file < kFiles; ++file) begin({Request::Kind::kRead, file, 0, kUnitBytes});
  expect_all_answered();
  hold_reads();
  for (int round = 0; round < 8; ++round)
    for (size_t file = 0; file < kFiles; ++file) begin({Request::Kind::kRead, file, 0, kMiB});
  expect_all_answered();
}

// What a request behind others lacks came with theirs.
TEST_F(MemoryWaits, OneThatHasAllItNeedsIsAnsweredWhateverItsPlace) {
  open(4 * kMiB);
  make_files(3 * kMiB);
  hold_reads();
  for (size_t file = 0; file < kFiles; ++file) begin({Request::Kind::kRead, file, 0, kMiB});
  const uint64_t asked = asked_;
  begin({Request::Kind::kRead, 0, 0, kUnitBytes});  // is being read for the first of them
  store_->pump();
  EXPECT_LT(answered_, asked_);
  bool answered_at_once = false;
  store_->read(handles_[0], 0, kUnitBytes, [&](const Result<ReadReply>& reply) { answered_at_once = reply.has_value(); });
  volume_->let_go();
  for (int i = 0; i < 5; ++i) store_->pump();
  EXPECT_TRUE(answered_at_once);
  EXPECT_GT(answered_, 0u);
  EXPECT_LE(asked, asked_);
  expect_all_answered();
}

// Reads that follow each other without end, and writers between them: each goes on.
TEST_F(MemoryWaits, ReadersDoNotKeepAWriterOutForEver) {
  open(4 * kMiB);
  make_files(3 * kMiB);
  hold_reads();
  std::mt19937_64 random(1);
  uint64_t written = 0;
  const std::string bytes = content(0, 0, kMiB);
  // The memory for readers is under way all the time: with each answer comes the next request.
  for (int i = 0; i < 40; ++i) begin({Request::Kind::kRead, random() % kFiles, align_down(random() % (2 * kMiB), kBlockBytes), kMiB});
  store_->write(handles_[0], 0, std::as_bytes(std::span(bytes)), [&](const Result<size_t>& result) { written = result.value_or(0); });
  for (int i = 0; i < 2'000 && written == 0; ++i) {
    volume_->let_go();
    hold_reads();
    while (asked_ - answered_ < 40) begin({Request::Kind::kRead, random() % kFiles, align_down(random() % (2 * kMiB), kBlockBytes), kMiB});
    clock_.advance_ns(1'000'000);
    store_->pump();
  }
  EXPECT_EQ(written, kMiB);
  expect_all_answered();
}

// More than is kept of them in RAM: the rest lies on the volume until its turn comes.
TEST_F(MemoryWaits, WritesThatWaitBeyondTheirBoundAreParked) {
  constexpr uint64_t kFileBytes = 8 * kMiB;
  open(2 * kMiB);
  make_files(kUnitBytes);
  for (uint64_t at = 0; at < kFileBytes; at += kMiB)
    for (size_t file = 0; file < kFiles; ++file) begin({Request::Kind::kWrite, file, at, kMiB});
  EXPECT_GT(store_->status().waiting_parked_bytes, 16 * kMiB);
  EXPECT_LE(store_->status().waiting_bytes, 64 * kMiB);
  expect_all_answered();
  EXPECT_EQ(store_->status().waiting_parked_bytes, 0u);
  EXPECT_EQ(store_->status().waiting_bytes, 0u);
  for (size_t file = 0; file < kFiles; ++file) {
    auto reply = wait<ReadReply>([&](auto done) { store_->read(handles_[file], kFileBytes - kMiB, kMiB, std::move(done)); });
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->bytes, kMiB);
    EXPECT_EQ(reply->pieces.size() > 0 ? *static_cast<const char*>(reply->pieces[0].iov_base) : 0, content(file, kFileBytes - kMiB, 1)[0]);
    EXPECT_TRUE(is_content(file, kFileBytes - kMiB, *reply));
  }
}

// With the store's own threads, memory files and all. A hang is found by the time limit of the program.
TEST(MemoryWaitsThreads, EveryRequestIsAnswered) {
  constexpr size_t kThreads = 24;
  constexpr int kRequests = 60;
  const uint64_t file_bytes = 3 * kMiB + 300'000;
  StoreOptions options = small_memory(8 * kMiB);
  options.flush_interval_ms = 5;
  options.memory_file_min_bytes = kMiB;
  ThreadedStore store(options);
  store.pass_through();
  {
    Client client(*store.operator->(), 1);
    for (size_t file = 0; file < kFiles; ++file) {
      auto made = store->create(kRootId, fmt::format("f{}", file), 0644, {.read = true, .write = true}, client.caller());
      ASSERT_TRUE(made);
      ASSERT_EQ(client.write_all(made->second, content(file, 0, file_bytes)), Code::kNoData);
      ASSERT_EQ(client.close(made->second), Code::kNoData);
    }
    ASSERT_TRUE(await<void>([&](auto done) { store->drain(false, std::move(done)); }));
    store->drop_caches();
  }
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&store, thread] {
      std::mt19937_64 random(first_seed() * 1000 + thread);
      Client client(*store.operator->(), thread);
      const bool reads_only = thread % 3 != 0;
      for (int i = 0; i < kRequests; ++i) {
        Request request = next_request(random, file_bytes, kMiB);
        if (reads_only) request.kind = Request::Kind::kRead;
        Handle* handle = client.open(kRootId, fmt::format("f{}", request.file), {.read = true, .write = request.kind != Request::Kind::kRead});
        ASSERT_NE(handle, nullptr);
        if (request.kind == Request::Kind::kRead) {
          auto reply = await<ReadReply>([&](auto done) { store->read(handle, request.offset, request.length, std::move(done)); });
          ASSERT_TRUE(reply) << reply.error().message;
          EXPECT_TRUE(is_content(request.file, request.offset, *reply));
        } else if (request.kind == Request::Kind::kWrite) {
          EXPECT_EQ(client.write_at(handle, request.offset, content(request.file, request.offset, request.length)), Code::kNoData);
        } else {
          EXPECT_TRUE(await<void>([&](auto done) {
            store->allocate(handle, Store::AllocateMode::kPunchHole, request.offset, request.length, std::move(done));
          }));
        }
        EXPECT_EQ(client.close(handle), Code::kNoData);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store->status().waiting_writes, 0u);
}

}  // namespace memory_waits_test
}  // namespace kvcachefs::testing

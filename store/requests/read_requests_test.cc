// Reads of clients, and the search for data and holes, over bodies on a volume in memory. No store.
#include "store/requests/read_requests.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "store/load/testing/load_fixture.h"
#include "store/requests/mapped_reads.h"

namespace kvcachefs {
namespace read_requests_test {

class ReadRequestsTest : public LoadFixture {
 protected:
  ~ReadRequestsTest() override { ahead.finish(); }

  std::unique_ptr<Handle> open(const ObjectPtr& body) {
    auto handle = std::make_unique<Handle>();
    handle->object = body;
    const auto lock = body->lock();
    body->add_handle();  // until the end: the table keeps it
    return handle;
  }
  struct ReadAnswer {
    int count = 0;
    Result<ReadReply> result = ReadReply{};
    std::vector<std::byte> bytes() const {
      std::vector<std::byte> all;
      for (const iovec& piece : result->pieces) {
        const auto* begin = static_cast<const std::byte*>(piece.iov_base);
        all.insert(all.end(), begin, begin + piece.iov_len);
      }
      return all;
    }
  };
  void read(Handle& handle, uint64_t offset, size_t length, ReadAnswer& answer) {
    requests.read(&handle, offset, length, [&answer](Result<ReadReply> reply) {
      ++answer.count;
      answer.result = std::move(reply);
    });
  }
  // Of a read that must be answered inside the call.
  std::vector<std::byte> read_now(Handle& handle, uint64_t offset, size_t length) {
    ReadAnswer answer;
    read(handle, offset, length, answer);
    EXPECT_EQ(answer.count, 1);
    EXPECT_TRUE(answer.result) << answer.result.error().message;
    if (!answer.result) return {};
    EXPECT_EQ(answer.result->bytes, answer.bytes().size());
    return answer.bytes();
  }
  std::vector<std::byte> part_of(const ObjectPtr& body, uint64_t offset, uint64_t length) {
    const auto all = bytes_of(body->size_bytes, body->id.value);
    return {all.begin() + static_cast<ptrdiff_t>(offset), all.begin() + static_cast<ptrdiff_t>(offset + length)};
  }
  std::optional<Result<uint64_t>> seek(Handle& handle, SeekFor what, uint64_t offset) {
    std::optional<Result<uint64_t>> found;
    requests.seek(&handle, what, offset, [&found](Result<uint64_t> result) { found = std::move(result); });
    return found;
  }
  // A file 1:1 with a backing file, which holds only its first bytes.
  ObjectPtr raw_body(uint64_t size_bytes, const std::vector<std::byte>& first) {
    const ObjectPtr body = object(put_body(4096));
    auto made = extents.make(PlaceKind::kRaw);
    EXPECT_TRUE(made) << made.error().message;
    const std::span<const std::byte> piece(first);
    EXPECT_TRUE(made->file->write({&piece, 1}, 0));
    const auto lock = body->lock();
    body->raw = made->file;
    body->base.place = {PlaceKind::kRaw, made->id, 0, 0};
    body->size_bytes = size_bytes;
    return body;
  }

  UnverifiedBodies unverified{{index, tree, reader, quarantine}, {}};
  FileMover mover{{pool, files, policy, clock, counters, false, [](uint64_t) { return false; }}};
  BackingFiles backing{{*volume, extents, tree, files, policy, accesses, unverified, counters, clock, false}};
  RequestClock request_clock{clock};
  ReadAhead ahead{{accesses, tree, loader, extents, pool, files, policy, cache, mover, backing, counters, request_clock, false}};
  ReadRequests requests{{*volume, accesses, cache, loader, ahead, opener, resumer, counters, request_clock}};
  MappedReads mapped{{mover, policy, backing, ahead, resumer, false}};
};

TEST_F(ReadRequestsTest, WhatIsMissingIsLoadedAndTheNextReadComesFromRam) {
  const ObjectPtr body = object(put_body(3 * kUnitBytes + 100));
  const auto handle = open(body);
  EXPECT_EQ(read_now(*handle, kUnitBytes - 10, 20), part_of(body, kUnitBytes - 10, 20));
  EXPECT_EQ(counters.read_bytes_from_ram, 0u);
  const size_t before = reads.size();
  EXPECT_GT(before, 0u);
  EXPECT_EQ(read_now(*handle, 0, kUnitBytes), part_of(body, 0, kUnitBytes));
  EXPECT_EQ(read_now(*handle, 2 * kUnitBytes, 2 * kUnitBytes), part_of(body, 2 * kUnitBytes, kUnitBytes + 100)) << "cut at the end";
  EXPECT_EQ(reads.size(), before) << "units behind the wanted ones came with them";
  EXPECT_EQ(counters.read_bytes_from_ram, 2 * kUnitBytes + 100);
  EXPECT_EQ(counters.read_requests, 3u);
  EXPECT_TRUE(read_now(*handle, body->size_bytes, 10).empty());
  const auto lock = body->lock();
  EXPECT_TRUE(body->wanted.empty()) << "an answered read keeps no unit from being given up";
}

TEST_F(ReadRequestsTest, ReadsHereAndThereInABodyThatIsLargeForTheMemoryLeaveEachOtherTheirUnits) {
  const ObjectPtr body = object(put_body(20 * kMiB));
  ASSERT_GT(body->size_bytes, pool.limit_bytes());
  const auto handle = open(body);
  const auto read_all = [&] {
    for (const uint64_t offset : {uint64_t{0}, 6 * kMiB, 12 * kMiB}) EXPECT_EQ(read_now(*handle, offset + 1, 10), part_of(body, offset + 1, 10));
  };
  read_all();
  const size_t before = reads.size();
  read_all();
  EXPECT_EQ(reads.size(), before);
}

TEST_F(ReadRequestsTest, AReadThatIsLargeForTheMemoryComesInPieces) {
  pool.set_limit_bytes(4 * kMiB);
  const ObjectPtr body = object(put_body(6 * kMiB + 5));
  const auto handle = open(body);
  ASSERT_GT(body->size_bytes, cache.most_read_bytes());
  EXPECT_EQ(read_now(*handle, 3, 7 * kMiB), part_of(body, 3, 6 * kMiB + 2));
  EXPECT_LE(pool.held_bytes(), pool.limit_bytes());
}

TEST_F(ReadRequestsTest, AReadThatFindsNoMemoryWaitsForItAndHoldsNothing) {
  const ObjectPtr body = object(put_body(2 * kUnitBytes));
  const auto handle = open(body);
  Reservation all = pool.try_reserve(pool.limit_bytes() - kSealingBytes);
  ASSERT_GT(all.bytes(), 0u);
  ReadAnswer answer;
  read(*handle, 0, 2 * kUnitBytes, answer);
  while (resumer.resume()) {
  }
  EXPECT_EQ(answer.count, 0);
  {
    const auto lock = body->lock();
    EXPECT_TRUE(body->wanted.empty());
  }
  all = Reservation();
  EXPECT_TRUE(resumer.resume());
  ASSERT_EQ(answer.count, 1);
  EXPECT_EQ(answer.bytes(), part_of(body, 0, 2 * kUnitBytes));
}

TEST_F(ReadRequestsTest, ErrorsOfTheVolumeAndQuarantineAreToldAndNothingElse) {
  const ObjectPtr body = object(put_body(5000));
  const auto handle = open(body);
  on_read = [](const VolumeCall&) { return Fault{.sys_errno = EIO}; };
  ReadAnswer failed;
  read(*handle, 0, 100, failed);
  ASSERT_EQ(failed.count, 1);
  ASSERT_FALSE(failed.result);
  EXPECT_EQ(failed.result.error().code, Code::kIo);
  on_read = nullptr;
  {
    const auto lock = body->lock();
    body->base.quarantined = true;
  }
  ReadAnswer refused;
  read(*handle, 0, 100, refused);
  ASSERT_EQ(refused.count, 1);
  ASSERT_FALSE(refused.result);
  EXPECT_EQ(refused.result.error().code, Code::kCorrupt);
}

TEST_F(ReadRequestsTest, ABodyThatIsRawByTheTimeItIsReadIsReadThere) {
  const ObjectPtr body = object(put_body(5000));
  const auto handle = open(body);
  const std::vector<std::byte> other = bytes_of(700, 9);
  const ObjectPtr source = raw_body(700, other);
  bool begun = false;
  on_read = [&](const VolumeCall&) {  // the body is emptied and sized anew while its old bytes are on their way
    if (std::exchange(begun, true)) return Fault{};
    const auto lock = body->lock();
    body->raw = source->raw;
    body->base.place = source->base.place;
    ++body->base.version;
    body->size_bytes = 700;
    return Fault{};
  };
  EXPECT_EQ(read_now(*handle, 0, 5000), other);
  EXPECT_EQ(counters.read_bytes_from_volume, 5000u + 700u);
}

TEST_F(ReadRequestsTest, WhatABackingFileLacksReadsAsZeros) {
  const std::vector<std::byte> first = bytes_of(1000, 3);
  const ObjectPtr body = raw_body(5000, first);
  const auto handle = open(body);
  std::vector<std::byte> expected(first.begin() + 100, first.end());
  expected.resize(4900);
  EXPECT_EQ(read_now(*handle, 100, 10'000), expected);
  EXPECT_TRUE(read_now(*handle, 5000, 10).empty());
}

TEST_F(ReadRequestsTest, ReadsOfRawFilesBeyondTheirBudgetWaitForTheirTurn) {
  const ObjectPtr body = raw_body(5000, bytes_of(5000, 3));
  const auto handle = open(body);
  ReadAnswer first, second;
  bool begun = false;
  on_read = [&](const VolumeCall&) {
    if (std::exchange(begun, true)) return Fault{};
    read(*handle, 0, 10, second);  // while the first takes all that may be under way
    EXPECT_EQ(second.count, 0);
    EXPECT_EQ(requests.raw_waiting(), 1u);
    return Fault{};
  };
  read(*handle, 0, 64 * kMiB, first);
  EXPECT_EQ(first.count, 1);
  ASSERT_EQ(second.count, 1);
  EXPECT_EQ(second.bytes(), bytes_of(10, 3));
  EXPECT_EQ(requests.raw_waiting(), 0u);
}

TEST_F(ReadRequestsTest, DataAndHolesAreFoundInWhatIsNotInRam) {
  const ObjectId id = put_body(40 * kUnitBytes, PlaceKind::kSolo);
  const ObjectPtr body = object(id);
  const auto handle = open(body);
  EXPECT_EQ(*requests.seek_now(handle.get(), SeekFor::kData, 5), 5u) << "taken for data without a read";
  EXPECT_EQ(*requests.seek_now(handle.get(), SeekFor::kHole, 5), body->size_bytes);
  EXPECT_TRUE(reads.empty());
  auto found = seek(*handle, SeekFor::kHole, 5);
  ASSERT_TRUE(found && *found);
  EXPECT_EQ(**found, body->size_bytes) << "it is read to the end for that";
  EXPECT_FALSE(reads.empty());
  EXPECT_EQ(**seek(*handle, SeekFor::kData, 77), 77u);
  for (const SeekFor what : {SeekFor::kData, SeekFor::kHole}) {
    found = seek(*handle, what, body->size_bytes);
    ASSERT_TRUE(found);
    ASSERT_FALSE(*found);
    EXPECT_EQ(found->error().code, Code::kNoData);
  }
}

TEST_F(ReadRequestsTest, AHoleOfARawFileIsCutAtTheEndOfTheFile) {
  const ObjectPtr body = raw_body(kMiB, bytes_of(4096, 3));
  const auto handle = open(body);
  EXPECT_EQ(**seek(*handle, SeekFor::kData, 0), 0u);
  EXPECT_EQ(**seek(*handle, SeekFor::kHole, 0), 4096u);
  EXPECT_EQ(**seek(*handle, SeekFor::kHole, 8192), 8192u) << "the backing file is shorter";
  EXPECT_FALSE(*seek(*handle, SeekFor::kData, 8192));
}

TEST_F(ReadRequestsTest, AnOpenWaitsForALoadThatMakesTheBodyOneFile) {
  ASSERT_TRUE(options.resolve({.backing_bytes = kGiB, .memory_bytes = kGiB}, "/index"));
  ASSERT_TRUE(backing.expect_passthrough());
  const ObjectPtr body = object(put_body(4 * kMiB, PlaceKind::kSolo));
  const auto handle = open(body);
  int opens = 0, early = 0;
  mapped.await_loads(handle.get(), [&] { ++early; });
  EXPECT_EQ(early, 1) << "nothing is being loaded";
  mapped.note_read(handle.get());
  ASSERT_TRUE(policy.loads_into_files());
  ASSERT_TRUE(policy.takes(body->size_bytes));
  bool begun = false;
  on_read = [&](const VolumeCall&) {
    if (std::exchange(begun, true)) return Fault{};
    mapped.await_loads(handle.get(), [&] { ++opens; });
    EXPECT_EQ(opens, 0);
    return Fault{};
  };
  Answer answer;
  load(body, answer);
  EXPECT_TRUE(answer.is_good());
  EXPECT_EQ(opens, 1);
  const auto lock = body->lock();
  EXPECT_TRUE(body->whole_in_file());
}

TEST_F(ReadRequestsTest, ReadersOfOneBodyOnSeveralThreadsAreAllAnswered) {
  const ObjectPtr body = object(put_body(6 * kUnitBytes));
  constexpr int kThreads = 4, kRounds = 20;
  std::atomic<int> answered{0}, right{0};
  std::vector<std::thread> threads;
  for (int each = 0; each < kThreads; ++each)
    threads.emplace_back([&, each] {
      const auto handle = open(body);
      for (int round = 0; round < kRounds; ++round) {
        const uint64_t offset = static_cast<uint64_t>((each + round) % 6) * kUnitBytes;
        requests.read(handle.get(), offset, kUnitBytes, [&](Result<ReadReply> reply) {
          right += reply && reply->bytes == kUnitBytes;
          ++answered;
        });
        if (round % 5 == 0) cache.drop_clean(kMiB);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered, kThreads * kRounds);
  EXPECT_EQ(right, kThreads * kRounds);
}

}  // namespace read_requests_test
}  // namespace kvcachefs

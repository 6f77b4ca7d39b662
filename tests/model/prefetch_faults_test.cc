// Reading ahead while the volume fails or stalls: the error of a chunk is nobody else's, a read that takes for ever
// holds up nobody else, and the store still closes.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/volume/fault_volume.h"
#include "tests/model/holding_volume.h"
#include "tests/model/threaded_store.h"

namespace kvcachefs::testing {
namespace prefetch_faults_test {

using namespace std::chrono_literals;

// Where a body lies on the volume.
struct Range {
  std::string path;
  uint64_t offset = 0, length = 0;
  bool overlaps(const std::string& other, uint64_t from, uint64_t bytes) const {
    return other.ends_with(path) && from < offset + length && offset < from + bytes;
  }
};

uint64_t bytes_of(const IoRequest& request) {
  uint64_t bytes = 0;
  for (const auto& piece : request.pieces) bytes += piece.size();
  return bytes;
}
bool is_read_of(const IoRequest& request, const Range& range) {
  return request.kind == IoRequest::Kind::kRead &&
         range.overlaps(request.file->path(), request.offset, bytes_of(request));
}

// Whether a thread of this process waits for something that does not come: it did not run at all for a good while.
bool stays_asleep(pid_t thread) {
  const auto switches = [&] {  // "?": it is not asleep, or has ended
    std::ifstream lines(fmt::format("/proc/self/task/{}/status", thread));
    std::string line, found;
    for (bool asleep = false; std::getline(lines, line);) {
      if (line.starts_with("State:")) asleep = line.find('S', 6) != std::string::npos;
      if (line.find("ctxt_switches") != std::string::npos && asleep) found += line;
    }
    return found.empty() ? std::string("?") : found;
  };
  const std::string before = switches();
  for (int sample = 0; sample < 100; ++sample) {
    if (before == "?" || switches() != before) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

// A read in work, or answered.
struct PendingRead {
  std::atomic<int> answers{0};
  std::optional<Result<std::string>> answer;  // set before `answers`

  void wait() const {
    while (answers == 0) std::this_thread::sleep_for(1ms);
  }
};

// One chain of `chunks` bodies that lie one after another in one extent, none of them in RAM, on a volume whose reads
// can be held and fail.
class PrefetchFaults : public ::testing::Test {
 protected:
  void make(uint64_t chunks, uint64_t chunk_bytes) {
    chunk_bytes_ = chunk_bytes;
    StoreOptions options;
    options.memory_bytes = 64 * kMiB;
    options.pack_below_bytes = 8 * kMiB;
    options.extent_bytes = 64 * kMiB;
    options.flush_interval_ms = 60'000;  // all is laid out together
    store_ = std::make_unique<ThreadedStore>(options, [this](std::shared_ptr<Volume> inner) {
      volume_ = std::make_shared<HoldingVolume>(
          make_fault_volume(std::move(inner), [this](const VolumeCall& call) { return fault(call); }));
      return volume_;
    });
    Client client(store(), 1);
    for (uint64_t chunk = 0; chunk < chunks; ++chunk)
      client.publish(kRootId, name(chunk), {chunk, 1, chunk_bytes});
    remount();
    for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
      ranges_.push_back(find(chunk));
      ASSERT_EQ(ranges_.back().path, ranges_.front().path) << "not in one extent";
    }
    remount();  // nothing is known of readers
  }
  void TearDown() override {
    if (volume_) volume_->let_go();
    store_.reset();
  }

  Store& store() { return *store_->operator->(); }
  void remount() {
    store_->close();
    store_->mount();
  }
  static std::string name(uint64_t chunk) { return fmt::format("p@{:06x}.kv", chunk); }
  Range find(uint64_t chunk) {
    const auto found = store().lookup(kRootId, name(chunk), {});
    EXPECT_TRUE(found);
    const auto facts = store().describe(found->id, {});
    EXPECT_TRUE(facts);
    for (const auto& [key, value] : *facts) {
      if (key != "place") continue;
      const size_t colon = value.rfind(':'), plus = value.rfind('+');
      return {value.substr(0, colon), std::stoull(value.substr(colon + 1, plus - colon - 1)),
              std::stoull(value.substr(plus + 1))};
    }
    ADD_FAILURE() << name(chunk) << " has no place";
    return {};
  }

  // As an engine does before it reads: has the chain read ahead.
  void probe_all() {
    for (uint64_t chunk = 0; chunk < ranges_.size(); ++chunk)
      EXPECT_TRUE(store().lookup(kRootId, name(chunk), {.uid = 0, .gid = 0, .thread_id = 7}));
  }
  // `begin` has bodies read ahead; true once `enough` is. The planner rightly leaves bodies out where the reader pauses:
  // for 20 ms between its first two lookups, for 50 ms later on, or for seconds before the plan is made. A machine
  // that takes a processor away for so long makes such pauses: then all is begun anew, by a store that knows nothing of
  // readers.
  bool read_ahead_until(const std::function<bool()>& enough, const std::function<void()>& begin,
                        const std::function<void()>& give_up = [] {}) {
    constexpr int kMostAttempts = 10;
    constexpr int kMostPauses = 2'000;  // counted, not timed: a process that was stopped has its time as well
    for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
      begin();
      for (int pause = 0; pause < kMostPauses; ++pause) {
        if (enough()) return true;
        std::this_thread::sleep_for(1ms);
      }
      volume_->let_go();
      give_up();
      remount();
    }
    return false;
  }
  // Whether reads of all these are held.
  bool are_held(const std::vector<uint64_t>& chunks) {
    return volume_->holds([&](const std::vector<IoRequest>& held) {
      return std::ranges::all_of(chunks, [&](uint64_t chunk) {
        return std::ranges::any_of(held, [&](const IoRequest& request) { return is_read_of(request, ranges_[chunk]); });
      });
    });
  }
  Handle* open(uint64_t chunk) {
    const auto found = store().lookup(kRootId, name(chunk), {.uid = 0, .gid = 0, .thread_id = 7});
    if (!found) return nullptr;
    auto opened = store().open(found->id, {}, {.uid = 0, .gid = 0, .thread_id = 7});
    EXPECT_TRUE(opened);
    return opened ? *opened : nullptr;
  }
  std::shared_ptr<PendingRead> start_read(Handle* handle) {
    auto pending = std::make_shared<PendingRead>();
    store().read(handle, 0, chunk_bytes_, [pending](Result<ReadReply> reply) {
      std::string body;
      if (reply)
        for (const iovec& piece : reply->pieces) body.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
      if (pending->answers == 0)
        pending->answer = reply ? Result<std::string>(std::move(body)) : std::unexpected(reply.error());
      ++pending->answers;
    });
    return pending;
  }
  std::shared_ptr<PendingRead> read(uint64_t chunk) {
    Handle* handle = open(chunk);
    auto pending = start_read(handle);
    pending->wait();
    store().release(handle);
    return pending;
  }
  static void expect_whole(const PendingRead& read, uint64_t chunk) {
    ASSERT_EQ(read.answers, 1) << name(chunk);
    ASSERT_TRUE(*read.answer) << name(chunk) << ": " << read.answer->error().message;
    EXPECT_TRUE(is_whole(**read.answer, chunk));
  }
  static void expect_io_error(const PendingRead& read, uint64_t chunk) {
    ASSERT_EQ(read.answers, 1) << name(chunk);
    ASSERT_FALSE(*read.answer) << name(chunk) << " was read from a place that cannot be read";
    EXPECT_EQ(read.answer->error().code, Code::kIo) << read.answer->error().message;
  }

  void set_bad(std::optional<Range> bad) {
    const std::lock_guard lock(bad_mutex_);
    bad_ = std::move(bad);
  }
  Fault fault(const VolumeCall& call) {
    const std::lock_guard lock(bad_mutex_);
    if (call.kind != VolumeCall::Kind::kRead || !bad_) return {};
    if (!bad_->overlaps(call.path, call.offset, call.length)) return {};
    ++failed_;
    return {.sys_errno = EIO};
  }

  uint64_t chunk_bytes_ = 0;
  std::mutex bad_mutex_;
  std::optional<Range> bad_;
  std::atomic<uint64_t> failed_{0};
  std::vector<Range> ranges_;
  std::shared_ptr<HoldingVolume> volume_;
  std::unique_ptr<ThreadedStore> store_;
};

TEST_F(PrefetchFaults, AnErrorMetWhileReadingAheadIsToldToReadersOfThatChunkOnly) {
  constexpr uint64_t kChunks = 12, kBad = 5;
  make(kChunks, 200'000);
  set_bad(ranges_[kBad]);
  const auto begin = [&] {
    failed_ = 0;
    probe_all();
  };
  ASSERT_TRUE(read_ahead_until([&] { return failed_ > 0; }, begin));  // nobody has asked for the bytes yet
  for (uint64_t chunk = 0; chunk < kChunks; ++chunk) {
    const auto seen = read(chunk);
    chunk == kBad ? expect_io_error(*seen, chunk) : expect_whole(*seen, chunk);
  }
  EXPECT_EQ(store().status().objects_quarantined, 0u);
  set_bad({});
  expect_whole(*read(kBad), kBad);  // nothing remembers it
  remount();
  for (uint64_t chunk = 0; chunk < kChunks; ++chunk) expect_whole(*read(chunk), chunk);
}

// Neighbours on the volume are read ahead in one read. Who asks for one of them meanwhile waits for that read.
TEST_F(PrefetchFaults, WhoWaitsForAReadAheadThatFailsInTheMiddleGetsWhatCanBeRead) {
  constexpr uint64_t kChunks = 12;
  make(kChunks, 200'000);
  const auto begin = [&] {
    volume_->hold([](const IoRequest& request) { return request.kind == IoRequest::Kind::kRead && !request.urgent; });
    probe_all();
  };
  std::vector<uint64_t> together;  // the chunks of one such read
  const auto three_together = [&](const std::vector<IoRequest>& held) {
    for (const IoRequest& request : held) {
      together.clear();
      for (uint64_t chunk = 0; chunk < kChunks; ++chunk)
        if (is_read_of(request, ranges_[chunk])) together.push_back(chunk);
      if (together.size() >= 3) return true;
    }
    return false;
  };
  ASSERT_TRUE(read_ahead_until([&] { return volume_->holds(three_together); }, begin));
  const uint64_t bad = together[1];
  std::vector<Handle*> handles;
  std::vector<std::shared_ptr<PendingRead>> reads;
  for (const uint64_t chunk : together) {
    handles.push_back(open(chunk));
    reads.push_back(start_read(handles.back()));
  }
  set_bad(ranges_[bad]);
  volume_->let_go();
  for (size_t i = 0; i < together.size(); ++i) {
    reads[i]->wait();
    together[i] == bad ? expect_io_error(*reads[i], bad) : expect_whole(*reads[i], together[i]);
    store().release(handles[i]);
  }
  EXPECT_GT(failed_, 0u);
  set_bad({});
  for (uint64_t chunk = 0; chunk < kChunks; ++chunk) expect_whole(*read(chunk), chunk);
}

// A body that cannot be read ahead now keeps its place in the chain.
TEST_F(PrefetchFaults, ABodyThatIsEmptyAtTheMomentKeepsItsNeighbours) {
  make(8, 200'000);
  const ObjectId before = store().lookup(kRootId, name(1), {})->id;
  const ObjectId emptied = store().lookup(kRootId, name(2), {})->id;
  const auto leads_to_it = [&] {
    const auto facts = store().describe(before, {});
    return facts && std::ranges::any_of(*facts, [&](const auto& fact) {
      return fact.first == "successors" && fact.second.starts_with(fmt::format("{}:", emptied.value));
    });
  };
  ASSERT_TRUE(leads_to_it());
  SetAttributes change;
  change.size_bytes = 0;
  ASSERT_TRUE(await<Stat>([&](auto done) { store().set_attributes(emptied, nullptr, change, {}, std::move(done)); }));
  const auto is_past_it = [&] { return store().status().prefetch_read_bytes >= 5 * 200'000; };
  ASSERT_TRUE(read_ahead_until(is_past_it, [&] { expect_whole(*read(0), 0); }));
  EXPECT_TRUE(leads_to_it());
}

TEST_F(PrefetchFaults, TheSizesThatLookupsSeeSayHowMuchIsReadAhead) {
  make(64, 65'536);
  const auto begin = [&] {
    volume_->hold([](const IoRequest& request) { return request.kind == IoRequest::Kind::kRead; });
    probe_all();
  };
  const auto is_all = [&](const std::vector<IoRequest>& held) {
    uint64_t bytes = 0;
    for (const IoRequest& request : held) bytes += bytes_of(request);
    return bytes == 64 * 65'536;
  };
  EXPECT_TRUE(read_ahead_until([&] { return volume_->holds(is_all); }, begin)) << "taken for 1 MiB each it were 8 of them";
  volume_->let_go();
}

// The reader is right behind: it need not wait until a whole read of 1 MiB has its memory.
TEST_F(PrefetchFaults, TheFirstReadAheadIsSmallAndTheOthersAreWhole) {
  constexpr uint64_t kChunks = 64;
  make(kChunks, 65'536);
  Handle* handle = nullptr;
  std::shared_ptr<PendingRead> first;
  const auto begin = [&] {
    volume_->hold([](const IoRequest& request) { return request.kind == IoRequest::Kind::kRead && !request.urgent; });
    handle = open(0);
    first = start_read(handle);
  };
  const auto end = [&] {
    volume_->let_go();
    first->wait();
    store().release(handle);
  };
  std::vector<uint64_t> sizes;
  const auto is_all = [&](const std::vector<IoRequest>& held) {
    sizes.clear();
    for (const IoRequest& request : held) sizes.push_back(bytes_of(request));
    return std::accumulate(sizes.begin(), sizes.end(), uint64_t{0}) == (kChunks - 1) * 65'536;
  };
  ASSERT_TRUE(read_ahead_until([&] { return volume_->holds(is_all); }, begin, end));
  EXPECT_EQ(sizes, (std::vector<uint64_t>{256 * kKiB, kMiB, kMiB, kMiB, 704 * kKiB}));
  end();
}

TEST_F(PrefetchFaults, AReadThatStallsHoldsUpNobodyElse) {
  constexpr uint64_t kChunks = 8, kStalled = 3;
  make(kChunks, kMiB);
  const auto begin = [&] {
    volume_->hold([range = ranges_[kStalled]](const IoRequest& request) { return is_read_of(request, range); });
    probe_all();
  };
  ASSERT_TRUE(read_ahead_until([&] { return are_held({kStalled}); }, begin));
  Handle* const handle = open(kStalled);
  const auto stalled = start_read(handle);
  for (int pass = 0; pass < 2; ++pass) {
    for (uint64_t chunk = 0; chunk < kChunks; ++chunk)
      if (chunk != kStalled) expect_whole(*read(chunk), chunk);
    store().drop_caches();
  }
  // Writers, names and what makes them durable go on, too.
  Client client(store(), 2);
  client.publish(kRootId, name(kChunks), {kChunks, 1, kMiB});
  EXPECT_EQ(client.unlink(kRootId, name(kStalled)), Code::kNoData);
  EXPECT_EQ(code_of(await<void>([&](auto done) { store().drain(true, std::move(done)); })), Code::kNoData);
  EXPECT_EQ(stalled->answers, 0);
  volume_->let_go();
  stalled->wait();
  expect_whole(*stalled, kStalled);
  store().release(handle);
  remount();
  EXPECT_EQ(open(kStalled), nullptr);
  for (uint64_t chunk = 0; chunk <= kChunks; ++chunk)
    if (chunk != kStalled) expect_whole(*read(chunk), chunk);
}

TEST_F(PrefetchFaults, AStoreThatIsClosedWhileReadsAheadStallWaitsForThemAndCloses) {
  constexpr uint64_t kChunks = 8;
  make(kChunks, kMiB);
  const auto begin = [&] {
    volume_->hold([](const IoRequest& request) { return request.kind == IoRequest::Kind::kRead; });
    probe_all();
  };
  ASSERT_TRUE(read_ahead_until([&] { return are_held({0, 1}); }, begin));
  EXPECT_EQ(Client(store(), 3).unlink(kRootId, name(1)), Code::kNoData);
  std::atomic<bool> closed{false};
  std::atomic<pid_t> thread{0};
  std::jthread closer([&] {
    thread = gettid();
    store_->close();
    closed = true;
  });
  // However slow the machine: it either comes back, or waits.
  while (!closed && (thread == 0 || !stays_asleep(thread))) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(closed) << "memory was given back that the volume still writes to";
  volume_->let_go();
  closer.join();
  store_->mount();
  EXPECT_EQ(open(1), nullptr);
  for (uint64_t chunk = 0; chunk < kChunks; ++chunk)
    if (chunk != 1) expect_whole(*read(chunk), chunk);
}

// As at the end of a daemon that is told to go while clients wait for a dead disk: each is answered, once.
TEST_F(PrefetchFaults, AStoreThatIsClosedWhileReadersWaitAnswersAllOfThem) {
  constexpr uint64_t kChunks = 24;  // more than fit in memory
  // Such clients never close. Kept for ever, for who looks for leaks at the end.
  static auto& abandoned = *new std::vector<Handle*>;
  make(kChunks, kMiB);
  ASSERT_TRUE(store().set_option("memory", "16M"));
  volume_->hold([](const IoRequest& request) { return request.kind == IoRequest::Kind::kRead; });
  probe_all();
  std::vector<std::shared_ptr<PendingRead>> reads;
  for (uint64_t chunk = 0; chunk < kChunks; ++chunk) {
    abandoned.push_back(open(chunk));
    reads.push_back(start_read(abandoned.back()));
  }
  std::jthread stopper([&] { store().stop(); });
  std::this_thread::sleep_for(100ms);
  volume_->let_go();
  stopper.join();  // from here on whom the answers went to is gone
  uint64_t whole = 0;
  for (uint64_t chunk = 0; chunk < kChunks; ++chunk) {
    EXPECT_EQ(reads[chunk]->answers, 1) << name(chunk);
    if (reads[chunk]->answers == 0 || !*reads[chunk]->answer) continue;
    EXPECT_TRUE(is_whole(**reads[chunk]->answer, chunk));
    ++whole;
  }
  EXPECT_GT(whole, 0u);
  store_->close();
  for (uint64_t chunk = 0; chunk < kChunks; ++chunk) EXPECT_EQ(reads[chunk]->answers, 1) << name(chunk);
  store_->mount();
  for (uint64_t chunk = 0; chunk < kChunks; ++chunk) expect_whole(*read(chunk), chunk);
}

// Replies that the kernel has not taken yet hold almost all memory.
TEST_F(PrefetchFaults, WhatFindsNoMemoryIsReadAheadWhenThereIsSome) {
  constexpr uint64_t kChunks = 24, kKept = 14;
  make(kChunks, kMiB);
  ASSERT_TRUE(store().set_option("memory", "16M"));
  ASSERT_TRUE(store().set_option("prefetch", "off"));
  std::vector<Result<ReadReply>> kept;
  for (uint64_t chunk = 0; chunk < kKept; ++chunk) {
    Handle* const handle = open(kChunks - 1 - chunk);
    kept.push_back(await<ReadReply>([&](auto done) { store().read(handle, 0, kMiB, std::move(done)); }));
    ASSERT_TRUE(kept.back());
    store().release(handle);
  }
  ASSERT_TRUE(store().set_option("prefetch", "on"));
  const auto probe = [&] {
    for (uint64_t chunk = 0; chunk < 8; ++chunk)
      EXPECT_TRUE(store().lookup(kRootId, name(chunk), {.uid = 0, .gid = 0, .thread_id = 8}));
  };
  const auto comes = [&](const std::function<bool()>& there) {
    constexpr int kMostPauses = 20'000;
    for (int pause = 1; !there() && pause < kMostPauses; ++pause) {
      std::this_thread::sleep_for(1ms);
      if (pause % 2000 == 0) probe();  // or it is given up on a machine that is this slow
    }
    return there();
  };
  probe();
  // It fills what is left, but for sealing.
  EXPECT_TRUE(comes([&] { return store().status().memory_used_bytes >= 15 * kMiB; }));
  std::this_thread::sleep_for(30ms);  // and is refused more
  EXPECT_EQ(store().status().prefetch_wasted_bytes, 0u) << "one body pushed out another";
  kept.clear();
  comes([&] { return store().status().prefetch_read_bytes >= 8 * kMiB; });
  EXPECT_EQ(store().status().prefetch_read_bytes, 8 * kMiB) << "a hole was left";
}

TEST_F(PrefetchFaults, ReadingAheadBeginsWhenTheAnswerIsOut) {
  make(8, 300'000);
  const auto begin = [&] {
    store().hold_read_ahead();
    probe_all();
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(store().status().prefetch_read_bytes, 0u);
    store().resume_read_ahead();
  };
  EXPECT_TRUE(read_ahead_until([&] { return store().status().prefetch_read_bytes > 0; }, begin));
}

TEST_F(PrefetchFaults, AReadOfTheVolumeDoesNotHoldUpReadingAhead) {
  make(8, 300'000);
  const auto begin = [&] {
    store().hold_read_ahead();
    probe_all();
    expect_whole(*read(0), 0);  // not in RAM: it resumes by itself
  };
  const auto resume = [&] { store().resume_read_ahead(); };
  EXPECT_TRUE(read_ahead_until([&] { return store().status().prefetch_read_bytes > 0; }, begin, resume));
  resume();
}

// The same by time: one read in five takes hundreds of times as long as the others.
TEST_F(PrefetchFaults, AVolumeThatStallsNowAndThenIsSlowAndNothingElse) {
  constexpr uint64_t kChunks = 40;
  std::atomic<uint64_t> calls{0};
  StoreOptions options;
  options.memory_bytes = 16 * kMiB;
  options.pack_below_bytes = 8 * kMiB;
  ThreadedStore slow(options, [&](std::shared_ptr<Volume> inner) {
    return make_fault_volume(std::move(inner), [&](const VolumeCall& call) -> Fault {
      if (call.kind != VolumeCall::Kind::kRead || ++calls % 5 != 0) return {};
      return {.delay_ns = 30'000'000};
    });
  });
  {
    Client client(*slow.operator->(), 1);
    for (uint64_t chunk = 0; chunk < kChunks; ++chunk) client.publish(kRootId, name(chunk), {chunk, 1, 600'000});
  }
  for (int life = 0; life < 2; ++life) {
    slow.close();
    slow.mount();
    std::vector<std::jthread> readers;
    for (uint64_t thread = 0; thread < 4; ++thread)
      readers.emplace_back([&, thread] {
        Client client(*slow.operator->(), thread);
        for (uint64_t chunk = 0; chunk < kChunks; ++chunk)
          static_cast<void>(slow->lookup(kRootId, name(chunk), client.caller()));
        for (uint64_t chunk = thread; chunk < kChunks; chunk += 2) {
          Handle* handle = client.open(kRootId, name(chunk), {});
          ASSERT_NE(handle, nullptr);
          EXPECT_TRUE(is_whole(client.read_all(handle), chunk));
          slow->release(handle);
        }
      });
    readers.clear();
    EXPECT_GT(slow->status().prefetch_read_bytes, 0u);
    EXPECT_EQ(slow->status().errors_volume_read, 0u);
    slow->drop_caches();
    for (uint64_t chunk = 0; chunk < kChunks; ++chunk) static_cast<void>(slow->lookup(kRootId, name(chunk), {}));
  }
}

}  // namespace prefetch_faults_test
}  // namespace kvcachefs::testing

// The store with its own threads, under many clients at once: what was published reads whole, nothing hangs, memory
// stays bounded. Meant for the sanitizers as much as for its own assertions.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/volume/fault_volume.h"
#include "tests/model/threaded_store.h"

namespace kvcachefs::testing {
namespace store_threads_test {

std::chrono::seconds duration() {
  if (std::getenv("KVCACHEFS_LONG") != nullptr) return std::chrono::seconds(300);
  if (std::getenv("KVCACHEFS_QUICK") != nullptr) return std::chrono::seconds(3);
  return std::chrono::seconds(8);
}

constexpr uint64_t kNames = 24;
std::string chunk_name(uint64_t name) { return "chunk" + std::to_string(name); }

uint64_t random_body_bytes(Client& client) {
  switch (client.below(4)) {
    case 0: return sizeof(BodyHead) + client.below(5'000);
    case 1: return 65'536;
    case 2: return sizeof(BodyHead) + client.below(900'000);
    default: return sizeof(BodyHead) + client.below(3'000'000);
  }
}

void one_action(Client& client, Store& store, uint64_t thread, std::atomic<uint64_t>& version) {
  const uint64_t name = client.below(kNames);
  switch (client.below(20)) {
    case 0: case 1: case 2: case 3: case 4:
      client.publish(kRootId, chunk_name(name), {name, ++version, random_body_bytes(client)});
      return;
    case 5: case 6: {  // the final name written in place: only this thread's own, so that nobody sees it half-written
      const uint64_t own = kNames + thread;
      Handle* handle = client.open(kRootId, chunk_name(own), {.read = true, .write = true, .truncate = true});
      if (handle == nullptr) {
        auto made = store.create(kRootId, chunk_name(own), 0644, {.read = true, .write = true}, client.caller());
        ASSERT_TRUE(made) << made.error().message;
        handle = made->second;
      }
      ASSERT_EQ(client.write_all(handle, make_body({own, ++version, random_body_bytes(client)})), Code::kNoData);
      EXPECT_TRUE(is_whole(client.read_all(handle), own));
      ASSERT_EQ(client.close(handle), Code::kNoData);
      handle = client.open(kRootId, chunk_name(own), {});
      ASSERT_NE(handle, nullptr);
      if (client.below(2) == 0) store.note_mapped_read(handle);
      EXPECT_TRUE(is_whole(client.read_all(handle), own));
      store.release(handle);
      return;
    }
    case 7: {
      const Code code = client.unlink(kRootId, chunk_name(name));
      EXPECT_TRUE(code == Code::kNoData || code == Code::kNotFound);
      return;
    }
    case 8: store.drop_caches(); return;
    case 9: {
      auto drained = await<void>([&](auto done) { store.drain(client.below(2) == 0, std::move(done)); });
      EXPECT_TRUE(drained) << drained.error().message;
      return;
    }
    case 10: {
      const char* const sizes[] = {"16M", "20M", "48M"};
      EXPECT_TRUE(store.set_option("memory", sizes[client.below(3)]));
      return;
    }
    case 11: {
      auto listed = store.list(kRootId, 0, 1000);
      EXPECT_TRUE(listed) << listed.error().message;
      store.status();
      store.space();
      return;
    }
    case 12: {  // written again piece by piece, in place, with the same bytes: a reader sees no difference
      Handle* handle = client.open(kRootId, chunk_name(kNames + thread), {.read = true, .write = true});
      if (handle == nullptr) return;
      const std::string body = client.read_all(handle);
      if (!body.empty()) {
        const size_t at = client.below(body.size());
        ASSERT_EQ(client.write_at(handle, at, std::string_view(body).substr(at, 1 + client.below(400'000))), Code::kNoData);
        if (client.below(3) == 0) {
          auto synced = await<void>([&](auto done) { store.fsync(handle, std::move(done)); });
          EXPECT_TRUE(synced) << synced.error().message;
        }
      }
      ASSERT_EQ(client.close(handle), Code::kNoData);
      return;
    }
    case 13: {
      auto found = store.lookup(kRootId, chunk_name(name), client.caller());
      if (!found) return;
      Status status = store.set_xattr(found->id, "user.reader", std::to_string(thread), Store::XattrMode::kAny);
      EXPECT_TRUE(status || status.error().code == Code::kNotFound);
      return;
    }
    default: {
      Handle* handle = client.open(kRootId, chunk_name(name), {});
      if (handle == nullptr) return;
      if (client.below(2) == 0) {
        if (const auto body = client.read_passed(kRootId, chunk_name(name))) {
          EXPECT_TRUE(is_whole(*body, name)) << "passed through";
        }
      }
      EXPECT_TRUE(is_whole(client.read_all(handle), name));
      store.release(handle);
      return;
    }
  }
}

void check_all(ThreadedStore& store, uint64_t names) {
  Client client(*store.operator->(), 1);
  for (uint64_t name = 0; name < names; ++name) {
    Handle* handle = client.open(kRootId, chunk_name(name), {});
    if (handle == nullptr) continue;
    EXPECT_TRUE(is_whole(client.read_all(handle), name));
    store->release(handle);
  }
  const StoreStatus status = store->status();
  EXPECT_EQ(status.errors_checksum + status.errors_volume_read + status.errors_volume_write + status.errors_journal, 0u);
  EXPECT_EQ(status.objects_quarantined, 0u);
  EXPECT_EQ(status.open_handles, 0u);
  EXPECT_EQ(status.waiting_writes, 0u);
}

// It still works: a body comes into a memory file, as soon as one is ready, and is passed through.
void expect_passed_through(ThreadedStore& store, std::atomic<uint64_t>& version) {
  constexpr int kTries = 1000;
  Client client(*store.operator->(), 1);
  std::optional<std::string> body;
  for (int i = 0; i < kTries && !body; ++i) {
    client.publish(kRootId, chunk_name(0), {0, ++version, 2 * kMiB});
    body = client.read_passed(kRootId, chunk_name(0));
    if (!body) usleep(10'000);
  }
  ASSERT_TRUE(body);
  EXPECT_TRUE(is_whole(*body, 0));
  EXPECT_GT(store->status().memory_file_opens, 0u);
}

void run_clients(ThreadedStore& store, uint64_t threads) {
  std::atomic<uint64_t> version{0};
  const auto end = std::chrono::steady_clock::now() + duration() / 2;
  std::atomic<uint64_t> actions{0};
  {
    std::vector<std::jthread> clients;
    for (uint64_t thread = 0; thread < threads; ++thread)
      clients.emplace_back([&, thread] {
        Client client(*store.operator->(), first_seed() * 1000 + thread);
        while (!::testing::Test::HasFailure() && std::chrono::steady_clock::now() < end) {
          one_action(client, *store.operator->(), thread, version);
          ++actions;
        }
      });
  }
  const StoreStatus status = store->status();
  fmt::print("{} actions, {} versions, {} bodies in files, {} passed through\n", actions.load(), version.load(),
             status.memory_files_taken, status.memory_file_opens);
  if (status.memory_files) expect_passed_through(store, version);
  EXPECT_LE(status.memory_file_bytes, status.memory_limit_bytes);
  check_all(store, kNames + threads);
  store.close();
  store.mount();
  check_all(store, kNames + threads);
}

TEST(StoreThreads, ClientsAtOnceSeeWholeBodies) {
  StoreOptions options;
  options.memory_bytes = 16 * kMiB;
  options.flush_interval_ms = 5;
  options.pack_below_bytes = kMiB;
  options.extent_bytes = 16 * kMiB;
  ThreadedStore store(options);
  run_clients(store, 6);
}

TEST(StoreThreads, ClientsAtOnceWithMemoryFiles) {
  StoreOptions options;
  options.memory_bytes = 48 * kMiB;
  options.memory_file_min_bytes = 256 * kKiB;
  options.flush_interval_ms = 5;
  options.pack_below_bytes = kMiB;
  options.extent_bytes = 16 * kMiB;
  ThreadedStore store(options);
  if (!store.pass_through()) GTEST_SKIP() << "no memory files here";
  run_clients(store, 6);
}

TEST(StoreThreads, ClientsAtOnceWithDurableCloses) {
  StoreOptions options;
  options.memory_bytes = 24 * kMiB;
  options.durability = Durability::kClose;
  options.extent_bytes = 16 * kMiB;
  ThreadedStore store(options);
  run_clients(store, 4);
}

// Many bodies in the making at once, of eight times the memory together, none of them finished: the store must spill, and
// never wait for a close that cannot come.
class UnfinishedFilesBeyondMemory : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(StoreThreads, UnfinishedFilesBeyondMemory, ::testing::Bool(),
                         [](const auto& each) { return each.param ? "InMemoryFiles" : "InBlocks"; });

TEST_P(UnfinishedFilesBeyondMemory, DoNotDeadlock) {
  constexpr uint64_t kThreads = 32, kFileBytes = 4 * kMiB;
  StoreOptions options;
  options.memory_bytes = 16 * kMiB;
  options.memory_file_min_bytes = kMiB;
  ThreadedStore store(options);
  if (GetParam()) {
    if (!store.pass_through()) GTEST_SKIP() << "no memory files here";
    Client(*store.operator->(), 1).publish(kRootId, "as large as those to come", {0, 1, kFileBytes});
  }
  std::atomic<uint64_t> written{0}, most_memory{0};
  std::atomic<bool> stop{false};
  std::jthread watcher([&] {
    while (!stop) {
      most_memory = std::max(most_memory.load(), store->status().memory_used_bytes);
      usleep(500);
    }
  });
  std::vector<Handle*> handles(kThreads, nullptr);
  {
    std::vector<std::jthread> writers;
    for (uint64_t thread = 0; thread < kThreads; ++thread)
      writers.emplace_back([&, thread] {
        Client client(*store.operator->(), thread);
        auto made = store->create(kRootId, chunk_name(thread), 0644, {.read = true, .write = true}, client.caller());
        ASSERT_TRUE(made) << made.error().message;
        handles[thread] = made->second;
        const std::string body = make_body({thread, 1, kFileBytes});
        for (uint64_t at = 0; at < kFileBytes; at += 128 * kKiB)
          ASSERT_EQ(client.write_at(made->second, at, std::string_view(body).substr(at, 128 * kKiB)), Code::kNoData);
        ++written;
      });
  }
  ASSERT_EQ(written.load(), kThreads);
  Client client(*store.operator->(), 1);
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    EXPECT_TRUE(is_whole(client.read_all(handles[thread]), thread));
    EXPECT_EQ(client.close(handles[thread]), Code::kNoData);
  }
  stop = true;
  watcher.join();
  fmt::print("at most {} MiB of memory\n", most_memory.load() >> 20);
  EXPECT_LE(most_memory.load(), options.memory_bytes);
  store.close();
  store.mount();
  check_all(store, kNames + kThreads);
}

// Holds the first sync of a solo extent until it is let go.
class HeldSync {
 public:
  Fault operator()(const VolumeCall& call) {
    if (call.kind != VolumeCall::Kind::kSync || !call.path.ends_with(".solo")) return {};
    std::unique_lock lock(mutex_);
    if (std::exchange(held_, true)) return {};
    changed_.notify_all();
    changed_.wait(lock, [&] { return let_go_; });
    return {};
  }
  void wait_until_held() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_; });
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    let_go_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false, let_go_ = false;
};

// A hang is the failure. Who asks for the very file that is being synced has to wait for it.
TEST(StoreThreads, ACloseIsAnsweredWhileUpkeepSyncsWhatOthersWrote) {
  StoreOptions options;
  options.memory_bytes = 32 * kMiB;
  options.durability = Durability::kClose;
  HeldSync sync;
  ManualClock clock(1'700'000'000'000'000'000);
  ThreadedStore store(
      options,
      [&](std::shared_ptr<Volume> inner) {
        return make_fault_volume(std::move(inner), [&](const VolumeCall& call) { return sync(call); });
      },
      clock);
  Client client(*store.operator->(), 1);
  const auto put = [&](const std::string& name) {
    auto made = store->create(kRootId, name, 0644, {.read = true, .write = true}, client.caller());
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_EQ(client.write_all(made->second, std::string(5 * kMiB, 'x')), Code::kNoData);
    EXPECT_EQ(client.close(made->second), Code::kNoData);
  };
  put("a");
  clock.advance_ns(10'000'000'000);
  sync.wait_until_held();
  put("b");
  Handle* handle = client.open(kRootId, "a", {.read = true, .write = true});
  ASSERT_NE(handle, nullptr);
  std::promise<Status> promise;
  auto answer = promise.get_future();
  store->fsync(handle, [&](Status status) { promise.set_value(std::move(status)); });
  EXPECT_NE(answer.wait_for(std::chrono::milliseconds(50)), std::future_status::ready);
  sync.let_go();
  EXPECT_TRUE(answer.get());
  store->release(handle);
}

// Who finds no room waits until what was removed is given back; the volume never has more than its capacity.
TEST(StoreThreads, AFullVolumeGivesBackWhatIsRemovedAndStaysWithinItsCapacity) {
  constexpr uint64_t kThreads = 4, kOwnNames = 6;
  constexpr uint64_t kHeadersBytes = kMiB;  // of pack extents
  StoreOptions options;
  options.memory_bytes = 24 * kMiB;
  options.evict = false;
  options.capacity_bytes = 48 * kMiB;
  options.keep_free_bytes = 1;
  options.flush_interval_ms = 5;
  options.pack_below_bytes = kMiB;
  options.extent_bytes = 16 * kMiB;
  ThreadedStore store(options);
  std::atomic<uint64_t> version{0}, refused{0}, most_bytes{0};
  std::atomic<bool> stop{false};
  std::jthread watcher([&] {
    while (!stop) {
      most_bytes = std::max(most_bytes.load(), store.allocated_bytes());
      usleep(2000);
    }
  });
  const auto end = std::chrono::steady_clock::now() + duration() / 2;
  {
    std::vector<std::jthread> writers;
    for (uint64_t thread = 0; thread < kThreads; ++thread)
      writers.emplace_back([&, thread] {
        Client client(*store.operator->(), first_seed() * 1000 + thread);
        while (!::testing::Test::HasFailure() && std::chrono::steady_clock::now() < end) {
          const uint64_t name = thread * kOwnNames + client.below(kOwnNames);
          const std::string temporary = chunk_name(name) + ".tmp";
          auto made = store->create(kRootId, temporary, 0644, {.read = false, .write = true}, client.caller());
          Code code = made ? Code::kNoData : made.error().code;
          if (made) {
            code = client.write_all(made->second, make_body({name, ++version, sizeof(BodyHead) + client.below(4'000'000)}));
            ASSERT_EQ(client.close(made->second), code);
          }
          if (code == Code::kNoData) {
            ASSERT_EQ(client.rename(kRootId, temporary, kRootId, chunk_name(name)), Code::kNoData);
            continue;
          }
          ASSERT_EQ(code, Code::kNoSpace);
          ++refused;
          if (made) {
            ASSERT_EQ(client.unlink(kRootId, temporary), Code::kNoData);
          }
          client.unlink(kRootId, chunk_name(name));
        }
      });
  }
  stop = true;
  watcher.join();
  fmt::print("{} versions, {} refused, at most {} KiB\n", version.load(), refused.load(), most_bytes.load() >> 10);
  EXPECT_LE(most_bytes.load(), options.capacity_bytes + kHeadersBytes);
  check_all(store, kThreads * kOwnNames);
  store.close();
  store.mount();
}

}  // namespace store_threads_test
}  // namespace kvcachefs::testing

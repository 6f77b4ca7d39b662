// The store with its own threads, under many clients at once: what was published reads whole, nothing hangs, memory
// stays bounded. Meant for the sanitizers as much as for its own assertions.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/base/clock.h"
#include "store/store.h"
#include "store/volume/volume.h"

namespace kvcachefs::testing {
namespace {

// A store on a temporary directory, used by any number of threads.
class ThreadedStore {
 public:
  explicit ThreadedStore(const StoreOptions& options) : options_(options) {
    const char* base = std::getenv("TMPDIR");
    root_ = std::string(base != nullptr ? base : "/tmp") + "/kvcachefs-threads-XXXXXX";
    if (mkdtemp(root_.data()) == nullptr) std::abort();
    options_.node = "test";
    mount();
  }
  ~ThreadedStore() {
    if (store_) close();
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  ThreadedStore(const ThreadedStore&) = delete;
  ThreadedStore& operator=(const ThreadedStore&) = delete;

  Store* operator->() { return store_.get(); }
  void mount() {
    auto volume = open_posix_volume(root_, {});
    ASSERT_TRUE(volume) << volume.error().message;
    auto store = open_store(*volume, options_, system_clock(), "threads test");
    ASSERT_TRUE(store) << store.error().message;
    store_ = std::move(*store);
  }
  uint64_t allocated_bytes() const {  // of extents
    uint64_t bytes = 0;
    std::error_code gone;  // while we look
    for (auto entry = std::filesystem::recursive_directory_iterator(root_, gone); entry != std::filesystem::recursive_directory_iterator();
         entry.increment(gone)) {
      struct stat info {};
      if (entry->path().string().find("/extents/") != std::string::npos && ::stat(entry->path().c_str(), &info) == 0 &&
          S_ISREG(info.st_mode))
        bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    }
    return bytes;
  }
  void close() {
    Status status = store_->close();
    EXPECT_TRUE(status) << status.error().message;
    store_.reset();
  }

 private:
  std::string root_;
  StoreOptions options_;
  std::unique_ptr<Store> store_;
};

// Waits for a completion. A hang is found by the time limit of the test program.
template <class T, class Call>
Result<T> await(Call call) {
  std::promise<Result<T>> promise;
  auto answer = promise.get_future();
  call([&](Result<T> result) { promise.set_value(std::move(result)); });
  return answer.get();
}

template <class T>
Code code_of(const Result<T>& result) {
  return result ? Code::kNoData : result.error().code;  // kNoData: it went well
}

// A body that says what it is: (name, version) in its head, and bytes that follow from them. So a reader can tell a whole
// body of any version from a torn or a mixed one.
struct BodyHead {
  uint64_t name = 0, version = 0, size_bytes = 0;
};

uint64_t word_at(const BodyHead& head, uint64_t index) {
  uint64_t value = (head.name * 0x9e3779b97f4a7c15u) ^ (head.version * 0xc2b2ae3d27d4eb4fu) ^ (index * 0x165667b19e3779f9u);
  value ^= value >> 31;
  return value * 0xd6e8feb86659fd93u;
}

std::string make_body(const BodyHead& head) {
  std::string body(head.size_bytes, 0);
  std::memcpy(body.data(), &head, sizeof head);
  for (uint64_t at = sizeof head; at + 8 <= body.size(); at += 8) {
    const uint64_t word = word_at(head, at);
    std::memcpy(body.data() + at, &word, 8);
  }
  return body;
}

::testing::AssertionResult is_whole(const std::string& body, uint64_t name) {
  BodyHead head;
  if (body.size() < sizeof head) return ::testing::AssertionFailure() << "only " << body.size() << " bytes";
  std::memcpy(&head, body.data(), sizeof head);
  if (head.name != name || head.size_bytes != body.size())
    return ::testing::AssertionFailure() << fmt::format("{} bytes under name {} say: name {}, version {}, {} bytes", body.size(),
                                                      name, head.name, head.version, head.size_bytes);
  for (uint64_t at = sizeof head; at + 8 <= body.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, body.data() + at, 8);
    if (word != word_at(head, at))
      return ::testing::AssertionFailure() << fmt::format("name {} version {}: other bytes at {}", name, head.version, at);
  }
  return ::testing::AssertionSuccess();
}

// One client thread.
class Client {
 public:
  Client(Store& store, uint64_t seed)
      : store_(store), random_(seed), caller_{.uid = 0, .gid = 0, .thread_id = static_cast<uint32_t>(gettid())} {}

  uint64_t below(uint64_t bound) { return random_() % bound; }
  const Caller& caller() const { return caller_; }

  Code write_at(Handle* handle, uint64_t offset, std::string_view bytes) {
    return code_of(await<size_t>([&](auto done) {
      store_.write(handle, offset, std::as_bytes(std::span(bytes)), std::move(done));
    }));
  }
  Code write_all(Handle* handle, const std::string& body) {
    const size_t piece = below(2) == 0 ? kMiB : 1 + below(200'000);
    for (size_t at = 0; at < body.size(); at += piece)
      if (Code code = write_at(handle, at, std::string_view(body).substr(at, piece)); code != Code::kNoData) return code;
    return Code::kNoData;
  }
  Code flush(Handle* handle) {
    return code_of(await<void>([&](auto done) { store_.flush(handle, std::move(done)); }));
  }
  Code close(Handle* handle) {
    const Code code = flush(handle);
    store_.release(handle);
    return code;
  }
  Code rename(ObjectId from, const std::string& name, ObjectId to, const std::string& new_name) {
    return code_of(await<void>(
        [&](auto done) { store_.rename(from, name, to, new_name, RenameMode::kReplace, caller_, std::move(done)); }));
  }
  Code unlink(ObjectId directory, const std::string& name) {
    return code_of(await<void>([&](auto done) { store_.unlink(directory, name, caller_, std::move(done)); }));
  }

  // Temporary name, body, rename. The bodies of one name all have one temporary name a thread.
  void publish(ObjectId directory, const std::string& name, const BodyHead& head) {
    const std::string temporary = fmt::format("{}.{}.tmp", name, caller_.thread_id);
    auto made = store_.create(directory, temporary, 0644, {.read = false, .write = true}, caller_);
    ASSERT_TRUE(made) << made.error().message;
    ASSERT_EQ(write_all(made->second, make_body(head)), Code::kNoData);
    const bool renamed_while_open = below(4) == 0;
    ASSERT_EQ(renamed_while_open ? flush(made->second) : close(made->second), Code::kNoData);
    ASSERT_EQ(rename(directory, temporary, directory, name), Code::kNoData);
    ASSERT_EQ(renamed_while_open ? close(made->second) : Code::kNoData, Code::kNoData);
  }

  // The whole of an open file; an error fails the test.
  std::string read_all(Handle* handle) {
    const size_t piece = below(2) == 0 ? kMiB : 1 + below(300'000);
    std::string body;
    while (true) {
      auto reply = await<ReadReply>([&](auto done) { store_.read(handle, body.size(), piece, std::move(done)); });
      if (!reply) {
        ADD_FAILURE() << reply.error().message;
        return body;
      }
      for (const iovec& each : reply->pieces) body.append(static_cast<const char*>(each.iov_base), each.iov_len);
      if (reply->bytes < piece) return body;
    }
  }
  // Null if the name is absent now.
  Handle* open(ObjectId directory, const std::string& name, const OpenRequest& request) {
    constexpr int kMaxStale = 100;
    for (int attempt = 0; attempt < kMaxStale; ++attempt) {
      auto found = store_.lookup(directory, name, caller_);
      if (!found) {
        EXPECT_EQ(found.error().code, Code::kNotFound) << found.error().message;
        return nullptr;
      }
      auto opened = store_.open(found->id, request, caller_);
      if (opened) return *opened;
      if (opened.error().code == Code::kNotFound) return nullptr;  // unlinked since the lookup
      EXPECT_EQ(opened.error().code, Code::kStale) << opened.error().message;
    }
    ADD_FAILURE() << name << " stays stale";
    return nullptr;
  }

 private:
  Store& store_;
  std::mt19937_64 random_;
  Caller caller_;
};

std::chrono::seconds duration() {
  if (std::getenv("KVCACHEFS_LONG") != nullptr) return std::chrono::seconds(300);
  if (std::getenv("KVCACHEFS_QUICK") != nullptr) return std::chrono::seconds(3);
  return std::chrono::seconds(8);
}

uint64_t first_seed() {
  const char* seed = std::getenv("KVCACHEFS_SEED");
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1;
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

void run_clients(const StoreOptions& options, uint64_t threads) {
  ThreadedStore store(options);
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
  fmt::print("{} actions, {} versions\n", actions.load(), version.load());
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
  run_clients(options, 6);
}

TEST(StoreThreads, ClientsAtOnceWithDurableCloses) {
  StoreOptions options;
  options.memory_bytes = 24 * kMiB;
  options.durability = Durability::kClose;
  options.extent_bytes = 16 * kMiB;
  run_clients(options, 4);
}

// Many bodies in the making at once, of eight times the memory together, none of them finished: the store must spill, and
// never wait for a close that cannot come.
TEST(StoreThreads, UnfinishedFilesBeyondMemoryDoNotDeadlock) {
  constexpr uint64_t kThreads = 32, kFileBytes = 4 * kMiB;
  constexpr uint64_t kSlackBytes = 16 * kMiB;  // what the flusher may take past the limit
  StoreOptions options;
  options.memory_bytes = 16 * kMiB;
  ThreadedStore store(options);
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
  EXPECT_LE(most_memory.load(), options.memory_bytes + kSlackBytes);
  store.close();
  store.mount();
  check_all(store, kNames + kThreads);
}

// Who finds no room waits until what was removed is given back; the volume never has more than its capacity.
TEST(StoreThreads, AFullVolumeGivesBackWhatIsRemovedAndStaysWithinItsCapacity) {
  constexpr uint64_t kThreads = 4, kOwnNames = 6;
  constexpr uint64_t kHeadersBytes = kMiB;  // of pack extents
  StoreOptions options;
  options.memory_bytes = 24 * kMiB;
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

}  // namespace
}  // namespace kvcachefs::testing

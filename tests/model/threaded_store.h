// A store with its own threads on a temporary directory, clients that use it from threads of theirs, and bodies that
// say what they are. For the tests with many threads.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/base/clock.h"
#include "store/store.h"
#include "store/volume/volume.h"

namespace kvcachefs::testing {

// A store on a temporary directory, used by any number of threads.
class ThreadedStore {
 public:
  // What is between the store and its volume (faults, delays), made anew by each mount.
  using Wrap = std::function<std::shared_ptr<Volume>(std::shared_ptr<Volume>)>;

  explicit ThreadedStore(const StoreOptions& options, Wrap wrap = {}, Clock& clock = system_clock())
      : options_(options), wrap_(std::move(wrap)), clock_(clock) {
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
    auto store = open_store(wrap_ ? wrap_(*volume) : *volume, options_, clock_, "threads test");
    ASSERT_TRUE(store) << store.error().message;
    store_ = std::move(*store);
    if (passes_through_) {
      Status status = store_->expect_passthrough();
      ASSERT_TRUE(status) << status.error().message;
    }
  }
  // As a driver that can pass bodies through says it; false: there are no memory files on this machine.
  bool pass_through() {
    passes_through_ = store_->expect_passthrough().has_value();
    return passes_through_;
  }
  // Blocks of extents. Looked at twice, for files come and go while the first are counted: one that was given back is not
  // added to what took its space since.
  uint64_t allocated_bytes() const {
    const auto before = extent_blocks();
    uint64_t blocks = 0;
    for (const auto& [path, after] : extent_blocks())
      if (auto at = before.find(path); at != before.end()) blocks += std::min(at->second, after);
    return blocks * 512;
  }
  void close() {
    Status status = store_->close();
    EXPECT_TRUE(status) << status.error().message;
    store_.reset();
  }

 private:
  std::map<std::string, uint64_t> extent_blocks() const {
    std::map<std::string, uint64_t> blocks;
    std::error_code gone;  // while we look
    for (auto entry = std::filesystem::recursive_directory_iterator(root_, gone); entry != std::filesystem::recursive_directory_iterator();
         entry.increment(gone)) {
      struct stat info {};
      if (entry->path().string().find("/extents/") != std::string::npos && ::stat(entry->path().c_str(), &info) == 0 &&
          S_ISREG(info.st_mode))
        blocks.emplace(entry->path(), static_cast<uint64_t>(info.st_blocks));
    }
    return blocks;
  }

  std::string root_;
  bool passes_through_ = false;
  StoreOptions options_;
  Wrap wrap_;
  Clock& clock_;
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

inline uint64_t word_at(const BodyHead& head, uint64_t index) {
  uint64_t value = (head.name * 0x9e3779b97f4a7c15u) ^ (head.version * 0xc2b2ae3d27d4eb4fu) ^ (index * 0x165667b19e3779f9u);
  value ^= value >> 31;
  return value * 0xd6e8feb86659fd93u;
}

inline std::string make_body(const BodyHead& head) {
  std::string body(head.size_bytes, 0);
  std::memcpy(body.data(), &head, sizeof head);
  for (uint64_t at = sizeof head; at + 8 <= body.size(); at += 8) {
    const uint64_t word = word_at(head, at);
    std::memcpy(body.data() + at, &word, 8);
  }
  return body;
}

inline ::testing::AssertionResult is_whole(const std::string& body, uint64_t name) {
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
  // The whole of a file as a client of passthrough reads it; none if it is absent or not passed through now.
  std::optional<std::string> read_passed(ObjectId directory, const std::string& name) {
    auto found = store_.lookup(directory, name, caller_);
    const BackingFile file = found ? store_.backing_file(found->id) : BackingFile{};
    struct stat info {};
    if (file.descriptor < 0 || fstat(file.descriptor, &info) != 0) return std::nullopt;
    std::string body(static_cast<size_t>(info.st_size), 0);
    EXPECT_EQ(pread(file.descriptor, body.data(), body.size(), 0), info.st_size);
    store_.count_passthrough_open(found->id, /*direct=*/false, file.in_memory);
    return body;
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

inline uint64_t first_seed() {
  const char* seed = std::getenv("KVCACHEFS_SEED");
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1;
}

}  // namespace kvcachefs::testing

// Reading ahead is a hint: with it and without it the same calls give the same bytes. One sequence of random calls goes
// to two stores of small memory, one with prefetch and one without, and to a plain map. A failure prints the seed;
// KVCACHEFS_SEED=n runs that one, KVCACHEFS_QUICK=1 and KVCACHEFS_LONG=1 fewer and more.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/testing/test_store.h"
#include "tests/model/await.h"

namespace kvcachefs::testing {
namespace prefetch_property_test {

constexpr uint64_t kChains = 3, kChunks = 20;
constexpr int kSteps = 80;
constexpr uint64_t kLargestBytes = 1'800'000;

using Content = std::shared_ptr<std::string>;  // of an object, whatever names and handles it has

StoreOptions options_for(uint64_t seed, bool prefetch) {
  StoreOptions options;
  options.memory_bytes = 16 * kMiB;
  const uint64_t pack_below[] = {kMiB, 64 * kKiB, 512 * kMiB};
  options.pack_below_bytes = pack_below[seed % 3];
  options.inline_below_bytes = seed % 4 == 0 ? 4096 : 0;
  options.extent_bytes = (seed % 2 == 0 ? 1 : 16) * kMiB;
  options.durability = seed % 5 == 0 ? Durability::kClose : Durability::kNone;
  options.flush_interval_ms = seed % 2 == 0 ? 1 : 200;
  options.prefetch = prefetch;
  return options;
}

class Twins {
 public:
  explicit Twins(uint64_t seed)
      : random_(seed), with_(options_for(seed, true)), without_(options_for(seed, false)), stores_{&with_, &without_} {
    for (TestStore* store : stores_)
      for (uint64_t chain = 0; chain < kChains; ++chain) store->mkdir(directory(chain));
  }
  ~Twins() { close_all(); }

  void step() {
    ++step_;
    const uint64_t chain = below(kChains), chunk = below(kChunks);
    switch (below(16)) {
      case 0: case 1: return write_chain(chain);
      case 2: case 3: case 4: case 5: return read_chain(chain);
      case 6: return read_part(path(chain, chunk));
      case 7: return write_in_place(path(chain, chunk));
      case 8: return resize(path(chain, chunk));
      case 9: return publish(path(chain, chunk));
      case 10: return unlink(path(chain, chunk));
      case 11: return hold_open(path(chain, chunk));
      case 12: return each([](TestStore& store) { store->drop_caches(); });
      case 13: {
        const char* const size = below(2) == 0 ? "16M" : "24M";
        return each([&](TestStore& store) { EXPECT_TRUE(store->set_option("memory", size)); });
      }
      case 14: return each([](TestStore& store) { store.drain(); });
      default: return one_in(3) ? live_again() : each([](TestStore& store) { store.settle(); });
    }
  }

  // Everything, in the order of the chains; then again after a remount.
  void verify() {
    for (int again = 0; again < 2; ++again) {
      for (uint64_t chain = 0; chain < kChains; ++chain)
        for (uint64_t chunk = 0; chunk < kChunks; ++chunk) compare(path(chain, chunk));
      if (again == 0) live_again();
    }
    const StoreStatus without = without_->status();
    read_ahead_without_ += without.prefetch_read_bytes;
    EXPECT_EQ(read_ahead_without_, 0u);
    note_prefetch();
  }
  uint64_t used() const { return used_; }

 private:
  struct Open {
    std::array<Handle*, 2> handles;
    Content content;
  };

  uint64_t below(uint64_t bound) { return random_() % bound; }
  bool one_in(uint64_t n) { return below(n) == 0; }
  static std::string directory(uint64_t chain) { return fmt::format("d{}", chain); }
  static std::string path(uint64_t chain, uint64_t chunk) { return fmt::format("d{}/p@{:04x}.kv", chain, chunk); }
  std::string random_body() {
    const uint64_t sizes[] = {below(5'000), 65'536, below(200'000), below(700'000), below(kLargestBytes)};
    return TestStore::payload(static_cast<int>(random_() >> 34), sizes[below(5)]);
  }
  template <class Call>
  void each(Call call) {
    for (TestStore* store : stores_) call(*store);
  }
  const Content* find(const std::string& path) const {
    const auto found = names_.find(path);
    return found == names_.end() ? nullptr : &found->second;
  }
  std::string what(size_t twin, const std::string& path) const {
    return fmt::format("step {}, {} prefetch, {}", step_, twin == 0 ? "with" : "without", path);
  }
  // Background work happens at other times in the two.
  void pump_some() {
    each([&](TestStore& store) {
      for (uint64_t i = below(4); i > 0; --i) store->pump();
      for (uint64_t i = below(8); i > 0; --i) store->help();
      if (one_in(3)) store->leave_off();
    });
  }

  std::string read(size_t twin, Handle* handle, uint64_t offset, size_t length) {
    Store& store = *stores_[twin]->operator->();
    const auto reply = await<ReadReply>(
        store, [&](auto done) { store.read(handle, offset, length, std::move(done)); },
        [&] { fmt::print(stderr, "step {}\n", step_); });
    if (!reply) return "(" + reply.error().message + ")";
    std::string bytes;
    for (const iovec& piece : reply->pieces) bytes.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    return bytes;
  }
  void compare_handles(const Open& open, const std::string& path) {
    for (size_t twin = 0; twin < 2; ++twin) {
      const uint64_t offset = below(open.content->size() + 1), length = 1 + below(700'000);
      const std::string seen = read(twin, open.handles[twin], offset, length);
      EXPECT_TRUE(seen == open.content->substr(offset, length)) << what(twin, path);
    }
  }
  void compare(const std::string& path) {
    const Content* content = find(path);
    for (const size_t twin : {1u, 0u}) {  // last the one that reads ahead: its loads are under way when this returns
      ASSERT_EQ(stores_[twin]->exists(path), content != nullptr) << what(twin, path);
      if (content == nullptr) continue;
      EXPECT_TRUE(stores_[twin]->read_file(path) == **content) << what(twin, path);
    }
  }

  void publish(const std::string& path) {
    const std::string body = random_body();
    each([&](TestStore& store) {
      ASSERT_TRUE(store.write_file(path + ".tmp", body));
      ASSERT_TRUE(store.rename(path + ".tmp", path));
    });
    names_[path] = std::make_shared<std::string>(body);
    pump_some();
  }
  void write_chain(uint64_t chain) {
    std::vector<uint64_t> order(kChunks);
    for (uint64_t chunk = 0; chunk < kChunks; ++chunk) order[chunk] = chunk;
    each([&](TestStore& store) {
      for (const uint64_t chunk : order) store.exists(path(chain, chunk));
    });
    if (one_in(2)) std::shuffle(order.begin(), order.end(), random_);
    for (const uint64_t chunk : order)
      if (!one_in(5)) publish(path(chain, chunk));
  }
  void read_chain(uint64_t chain) {
    if (one_in(2)) each([](TestStore& store) { store->drop_caches(); });
    if (!one_in(3))
      each([&](TestStore& store) {
        for (uint64_t chunk = 0; chunk < kChunks; ++chunk) store.exists(path(chain, chunk));
      });
    const uint64_t end = one_in(3) ? below(kChunks) : kChunks;
    for (uint64_t chunk = one_in(4) ? below(kChunks) : 0; chunk < end; ++chunk) {
      pump_some();
      compare(path(chain, chunk));
      // What is read ahead changes under it.
      const uint64_t other = chunk + 1 + below(4);
      if (!one_in(5) || other >= kChunks) continue;
      switch (below(6)) {
        case 0: unlink(path(chain, other)); break;
        case 1: publish(path(chain, other)); break;
        case 2: resize(path(chain, other)); break;
        default: write_in_place(path(chain, other)); break;
      }
    }
  }
  void read_part(const std::string& path) {
    const Content* content = find(path);
    if (content == nullptr) return;
    Open open{open_both(path, {}), *content};
    for (int i = 0; i < 3; ++i) compare_handles(open, path);
    release(open);
  }
  void write_in_place(const std::string& path) {
    const Content* content = find(path);
    if (content == nullptr) return;
    std::string& bytes = **content;
    const uint64_t at = below(bytes.size() + 1);
    const uint64_t length = 1 + below(one_in(2) ? 4'000 : 300'000);
    const std::string piece = TestStore::payload(static_cast<int>(random_() >> 34), length);
    Open open{open_both(path, {.read = true, .write = true}), *content};
    for (size_t twin = 0; twin < 2; ++twin) stores_[twin]->pwrite(open.handles[twin], at, piece);
    if (bytes.size() < at + piece.size()) bytes.resize(at + piece.size(), 0);
    bytes.replace(at, piece.size(), piece);
    pump_some();
    compare_handles(open, path);
    for (size_t twin = 0; twin < 2; ++twin) EXPECT_TRUE(stores_[twin]->close(open.handles[twin]));
  }
  void resize(const std::string& path) {
    const Content* content = find(path);
    if (content == nullptr) return;
    const uint64_t first = below(kLargestBytes), then = below(kLargestBytes);
    for (const uint64_t size : {one_in(2) ? first : below((*content)->size() + 1), then}) {
      each([&](TestStore& store) { store.truncate(path, size); });
      (*content)->resize(size, 0);
      if (one_in(2)) break;
    }
  }
  void unlink(const std::string& path) {
    const bool there = names_.erase(path) > 0;
    for (size_t twin = 0; twin < 2; ++twin) EXPECT_EQ(stores_[twin]->unlink(path), there) << what(twin, path);
  }
  void hold_open(const std::string& path) {
    if (open_.size() > 6) {
      compare_handles(open_.front(), "what was opened before");
      release(open_.front());
      open_.erase(open_.begin());
    }
    if (const Content* content = find(path)) open_.push_back({open_both(path, {}), *content});
  }
  std::array<Handle*, 2> open_both(const std::string& path, OpenRequest request) {
    return {with_.open(path, request), without_.open(path, request)};
  }
  void release(const Open& open) {
    for (size_t twin = 0; twin < 2; ++twin) stores_[twin]->operator->()->release(open.handles[twin]);
  }
  void close_all() {
    for (const Open& open : open_) release(open);
    open_.clear();
  }
  void note_prefetch() { used_ += with_->status().prefetch_used_bytes; }
  void live_again() {
    close_all();
    note_prefetch();
    read_ahead_without_ += without_->status().prefetch_read_bytes;
    const bool crash = one_in(3);
    each([&](TestStore& store) {
      if (crash) store.drain();
      crash ? store.crash() : store.remount();
    });
  }

  std::mt19937_64 random_;
  TestStore with_, without_;
  std::array<TestStore*, 2> stores_;
  std::map<std::string, Content> names_;
  std::vector<Open> open_;
  uint64_t used_ = 0, read_ahead_without_ = 0;
  int step_ = 0;
};

std::chrono::seconds duration() {
  if (std::getenv("KVCACHEFS_LONG") != nullptr) return std::chrono::seconds(600);
  if (std::getenv("KVCACHEFS_QUICK") != nullptr) return std::chrono::seconds(3);
  return std::chrono::seconds(8);
}

uint64_t run_round(uint64_t seed) {
  fmt::print("KVCACHEFS_SEED={}\n", seed);
  Twins twins(seed);
  for (int step = 0; step < kSteps && !::testing::Test::HasFailure(); ++step) twins.step();
  if (!::testing::Test::HasFailure()) twins.verify();
  return twins.used();
}

TEST(PrefetchProperty, ReadsAreTheSameWithAndWithoutIt) {
  const char* one = std::getenv("KVCACHEFS_SEED");
  uint64_t seed = one != nullptr ? std::strtoull(one, nullptr, 10) : 1;
  if (one == nullptr && std::getenv("KVCACHEFS_LONG") != nullptr)
    seed = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  const auto end = std::chrono::steady_clock::now() + duration();
  uint64_t used = 0, rounds = 0;
  do {
    used += run_round(seed + rounds);
    ++rounds;
  } while (one == nullptr && !HasFailure() && std::chrono::steady_clock::now() < end);
  fmt::print("{} rounds, {} MiB read ahead and used\n", rounds, used >> 20);
  EXPECT_TRUE(used > 0 || HasFailure()) << "nothing was read ahead: this has tested nothing";
}

}  // namespace prefetch_property_test
}  // namespace kvcachefs::testing

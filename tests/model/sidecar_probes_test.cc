// A client that probes for and reads a small file beside each body, `<name>.metadata`, before it reads the bodies themselves:
// what it probes for is taken for the bodies. One thread, a clock that only the test moves, a volume in RAM.
#include <cstdlib>
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
namespace sidecar_probes_test {

constexpr uint64_t kBodies = 16;
constexpr uint64_t kBodyBytes = 256 * kKiB + 4096;
constexpr uint64_t kSidecarBytes = 4096;
constexpr int64_t kMillisecond = 1'000'000;
constexpr Caller kWriter{.uid = 0, .gid = 0, .thread_id = 1}, kProber{.uid = 0, .gid = 0, .thread_id = 7};

class SidecarProbes : public ::testing::Test {
 protected:
  SidecarProbes() {
    if (directory_.path().empty()) std::abort();
    options_.background = false;
    options_.node = "test";
    options_.index_directory = directory_.path() + "/index";
    options_.memory_bytes = 64 * kMiB;
    mount();
  }
  ~SidecarProbes() override { close(); }
  void mount() {
    auto store = open_store(volume_, options_, clock_, "test");
    if (!store) std::abort();
    store_ = std::move(*store);
  }
  void close() {
    EXPECT_TRUE(store_->close());
    store_.reset();
  }
  void pass_time(int64_t ns) {
    clock_.advance_ns(ns);
    for (int quiet = 0; quiet < 3;) quiet = store_->pump() ? 0 : quiet + 1;
  }
  template <class T, class Call>
  Result<T> wait(Call call) {
    return await<T>(*store_, call, [] {});
  }

  static std::string body(uint64_t n) { return fmt::format("model@4@0@{:032x}@bfloat16.kvcache.safetensors", n + 0x1234'5678'9abc); }
  static std::string sidecar(uint64_t n) { return body(n) + ".metadata"; }
  bool lookup(const std::string& name, const Caller& caller, ObjectId parent = kRootId) {
    clock_.advance_ns(kMillisecond / 50);
    return store_->lookup(parent, name, caller).has_value();
  }
  // With the lookups that the kernel makes.
  void put(const std::string& name, uint64_t bytes, ObjectId parent = kRootId) {
    clock_.advance_ns(kMillisecond / 10);
    const std::string temporary = name + fmt::format(".tmp{:08x}", ++temporaries_ * 0x1234567);
    EXPECT_FALSE(lookup(temporary, kWriter, parent));
    auto made = store_->create(parent, temporary, 0644, {.read = false, .write = true}, kWriter);
    ASSERT_TRUE(made);
    const std::string content(bytes, name.back());
    EXPECT_TRUE(wait<size_t>([&](auto done) {
      store_->write(made->second, 0, std::as_bytes(std::span(content)), std::move(done));
    }));
    EXPECT_TRUE(wait<void>([&](auto done) { store_->flush(made->second, std::move(done)); }));
    store_->release(made->second);
    EXPECT_FALSE(lookup(name, kWriter, parent));
    EXPECT_TRUE(wait<void>([&](auto done) {
      store_->rename(parent, temporary, parent, name, RenameMode::kReplace, kWriter, std::move(done));
    }));
  }
  void put_pairs(const std::vector<uint64_t>& order) {
    for (uint64_t n : order) {
      put(body(n), kBodyBytes);
      put(sidecar(n), kSidecarBytes);
    }
    EXPECT_TRUE(wait<void>([&](auto done) { store_->drain(true, std::move(done)); }));
  }
  // Two threads' worth of disorder.
  static std::vector<uint64_t> in_disorder() {
    std::vector<uint64_t> order;
    for (uint64_t n = 0; n < kBodies; ++n) order.push_back(n * 7 % kBodies);
    return order;
  }
  void probe_absent() {
    for (uint64_t n = 0; n < kBodies; ++n) EXPECT_FALSE(lookup(sidecar(n), kProber));
  }
  // Opened and read whole by a thread that looked it up.
  void read(const std::string& name, uint64_t bytes, const Caller& caller) {
    clock_.advance_ns(kMillisecond / 50);
    auto found = store_->lookup(kRootId, name, caller);
    ASSERT_TRUE(found) << name;
    auto handle = store_->open(found->id, {}, caller);
    ASSERT_TRUE(handle);
    {
      auto reply = wait<ReadReply>([&](auto done) { store_->read(*handle, 0, bytes, std::move(done)); });
      ASSERT_TRUE(reply);
      EXPECT_EQ(reply->bytes, bytes);
    }
    store_->release(*handle);
  }
  void read_sidecars() {
    for (uint64_t n = 0; n < kBodies; ++n) {
      read(sidecar(n), kSidecarBytes, kProber);
      pass_time(0);
    }
    pass_time(3 * kMillisecond);
  }
  uint64_t id_of(const std::string& name) {
    clock_.advance_ns(1'000 * kMillisecond);  // no burst: it teaches nothing
    return store_->lookup(kRootId, name, {})->id.value;
  }
  std::string fact(const std::string& name, const std::string& wanted) {
    const auto facts = store_->describe(ObjectId{id_of(name)}, {});
    if (!facts) return "?";
    for (const auto& [key, value] : *facts)
      if (key == wanted) return value;
    return "";
  }
  // The bodies follow each other, and so do the sidecars, but neither the other.
  void expect_chains() {
    for (uint64_t n = 0; n + 1 < kBodies; ++n) {
      EXPECT_EQ(fact(body(n + 1), "predecessor"), std::to_string(id_of(body(n)))) << n;
      EXPECT_EQ(fact(body(n), "successors").find(','), std::string::npos) << n;
      const std::string after = fact(sidecar(n), "successors");
      EXPECT_TRUE(after.empty() || after.starts_with(std::to_string(id_of(sidecar(n + 1))) + ":")) << n << ": " << after;
    }
    EXPECT_EQ(fact(body(kBodies - 1), "successors"), "");
  }

  test::TestDirectory directory_;  // for the index
  ManualClock clock_{1'700'000'000'000'000'000};
  StoreOptions options_;
  std::shared_ptr<Volume> volume_ = make_sim_volume();
  std::unique_ptr<Store> store_;
  uint64_t temporaries_ = 0;
};

TEST_F(SidecarProbes, OfAbsentOnesAnnounceTheBodies) {
  probe_absent();
  pass_time(500 * kMillisecond);  // the prompt is computed
  put_pairs(in_disorder());
  expect_chains();
}

TEST_F(SidecarProbes, ReadTheBodiesAheadOfTheirFirstOpen) {
  probe_absent();
  pass_time(500 * kMillisecond);
  put_pairs(in_disorder());
  close();
  mount();
  read_sidecars();
  const StoreStatus probed = store_->status();
  EXPECT_GE(probed.prefetch_read_bytes, kBodies * kBodyBytes) << "of the bodies, before any of them was opened";
  for (uint64_t n = 0; n < kBodies; ++n) {
    read(body(n), kBodyBytes, {.uid = 0, .gid = 0, .thread_id = 20 + static_cast<uint32_t>(n % 4)});
    pass_time(kMillisecond / 10);
  }
  const StoreStatus status = store_->status();
  EXPECT_EQ(status.read_bytes_from_volume, probed.read_bytes_from_volume) << "a body was read on demand, or twice";
  EXPECT_GE(status.prefetch_used_bytes, kBodies * kBodyBytes);
  store_->drop_caches();
  EXPECT_EQ(store_->status().prefetch_wasted_bytes, 0u);
  expect_chains();
}

TEST_F(SidecarProbes, WithoutProbesTheOrderOfTheWritesIsThatOfTheBodies) {
  put_pairs({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
  expect_chains();
}

// By the thread that probed for them, which looks each body up again: the last does not lead to the first.
TEST_F(SidecarProbes, ThePassOverTheBodiesIsNoOrderOfItsOwn) {
  put_pairs({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
  close();
  mount();
  read_sidecars();
  for (uint64_t n = 0; n < kBodies; ++n) {
    read(body(n), kBodyBytes, kProber);
    pass_time(0);
  }
  EXPECT_EQ(fact(body(kBodies - 1), "successors"), "");
  EXPECT_EQ(fact(body(0), "predecessor"), "");
}

TEST_F(SidecarProbes, ThePlaceOfADirectoryIsThatOfTheBodyInIt) {
  std::vector<ObjectId> bodies;
  for (const char* name : {"aa", "bb", "cc"}) EXPECT_FALSE(lookup(name, kProber));
  pass_time(500 * kMillisecond);
  for (const char* name : {"cc", "bb", "aa"}) {  // not in that order
    auto made = store_->make_directory(kRootId, name, 0755, kWriter);
    ASSERT_TRUE(made);
    put(sidecar(0), kSidecarBytes, made->id);  // first, of a client that does it the other way round
    put(body(0), kBodyBytes, made->id);
    clock_.advance_ns(1'000 * kMillisecond);  // no burst: it teaches nothing
    bodies.push_back(store_->lookup(made->id, body(0), {})->id);
  }
  const auto facts = store_->describe(bodies[1], {});  // in bb
  ASSERT_TRUE(facts);
  std::string before;
  for (const auto& [key, value] : *facts)
    if (key == "predecessor") before = value;
  EXPECT_EQ(before, std::to_string(bodies[2].value));
}

// A name that only ends like a sidecar's is a file of its own.
TEST_F(SidecarProbes, WithoutBodiesTheyAreFilesLikeOthers) {
  for (uint64_t n = 0; n < kBodies; ++n) put(sidecar(n), kBodyBytes);
  close();
  mount();
  for (uint64_t n = 0; n < kBodies; ++n) EXPECT_TRUE(lookup(sidecar(n), kProber));
  pass_time(3 * kMillisecond);
  EXPECT_EQ(store_->status().prefetch_read_bytes, kBodies * kBodyBytes);
  for (uint64_t n = 0; n < kBodies; ++n) read(sidecar(n), kBodyBytes, kProber);
  EXPECT_EQ(store_->status().prefetch_used_bytes, kBodies * kBodyBytes);
}

}  // namespace sidecar_probes_test
}  // namespace kvcachefs::testing

// When the bulk lane works, and when it rests. Calls to the volume stop here on order, so that what is under way is known.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/volume/fault_volume.h"
#include "tests/model/threaded_store.h"

namespace kvcachefs::testing {
namespace seal_lane_test {

constexpr size_t kBodyBytes = 100'000;

// Writes to the volume that wait for leave.
class Gate {
 public:
  using Rule = std::function<bool(const VolumeCall&)>;

  void shut(Rule rule) {
    const std::lock_guard lock(mutex_);
    rule_ = std::move(rule);
  }
  void wait_until_held() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_ > 0; });
  }
  // Those held go on; others are held still.
  void let_one_go() {
    std::unique_lock lock(mutex_);
    ++leave_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return leave_ == 0; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    rule_ = {};
    changed_.notify_all();
  }
  Fault pass(const VolumeCall& call) {
    std::unique_lock lock(mutex_);
    if (call.kind != VolumeCall::Kind::kWrite || !rule_ || !rule_(call)) return {};
    ++held_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !rule_ || leave_ > 0; });
    if (leave_ > 0) --leave_;
    --held_;
    changed_.notify_all();
    return {};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Rule rule_;
  int held_ = 0, leave_ = 0;
};

// The lane looks at the clock once a turn.
class LaneClock final : public Clock {
 public:
  int64_t realtime_ns() const override { return system_clock().realtime_ns(); }
  int64_t monotonic_ns() const override {
    if (std::this_thread::get_id() == lane_.load()) ++turns_;
    return system_clock().monotonic_ns();
  }
  void set_lane(std::thread::id lane) { lane_ = lane; }
  uint64_t turns() const { return turns_; }

 private:
  std::atomic<std::thread::id> lane_;
  mutable std::atomic<uint64_t> turns_{0};
};

class SealLane : public ::testing::Test {
 protected:
  ~SealLane() override { gate_.open(); }

  void start(uint64_t memory_bytes, uint64_t capacity_bytes = 0) {
    StoreOptions options;
    options.memory_bytes = memory_bytes;
    options.evict = false;
    options.capacity_bytes = capacity_bytes;
    options.flush_interval_ms = 1;
    store_ = std::make_unique<ThreadedStore>(
        options,
        [this](std::shared_ptr<Volume> inner) {
          return make_fault_volume(std::move(inner), [this](const VolumeCall& call) { return look_at(call); });
        },
        clock_);
    client_ = std::make_unique<Client>(*store(), 1);
  }
  Store* store() { return store_->operator->(); }

  Handle* create(const std::string& name, const std::string& content) {
    auto made = store()->create(kRootId, name, 0644, {.read = false, .write = true}, client_->caller());
    EXPECT_TRUE(made) << made.error().message;
    if (!content.empty()) {
      EXPECT_EQ(client_->write_all(made->second, content), Code::kNoData);
    }
    return made->second;
  }
  void put(const std::string& name, const std::string& content) {
    ASSERT_EQ(client_->close(create(name, content)), Code::kNoData);
  }
  // A deadline turns what never comes into a failure.
  static bool comes(const std::function<bool()>& there) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!there()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  bool comes_to_rest() {
    return comes([&] {
      const uint64_t before = clock_.turns();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return clock_.turns() == before;
    });
  }
  bool is_sealed(uint64_t bodies) {
    return comes([&] { return store()->status().sealed_bodies >= bodies; });
  }
  static bool is_body_of_a_pack(const VolumeCall& call) { return call.path.ends_with(".pack") && call.length >= kBodyBytes; }

  Fault look_at(const VolumeCall& call) {
    if (is_body_of_a_pack(call)) clock_.set_lane(std::this_thread::get_id());
    if (call.kind == VolumeCall::Kind::kCreate && call.path.ends_with(".solo")) ++spilled_;
    return gate_.pass(call);
  }

  LaneClock clock_;
  Gate gate_;
  std::atomic<int> spilled_{0};
  std::unique_ptr<ThreadedStore> store_;
  std::unique_ptr<Client> client_;
};

TEST_F(SealLane, WhatIsMoreThanABatchDoesNotWaitForTheNextInterval) {
  constexpr int kFiles = 9'000;  // a batch has 8192
  start(256 * kMiB);
  gate_.shut(is_body_of_a_pack);
  put("first", std::string(kBodyBytes, 'a'));
  gate_.wait_until_held();  // the lane is busy with this one
  put("second", std::string(kBodyBytes, 'b'));
  for (int i = 0; i < kFiles; ++i) put(std::to_string(i), "");
  gate_.let_one_go();
  gate_.wait_until_held();  // it has the second now, and all that goes with it
  ASSERT_TRUE(store()->set_option("flush_interval_ms", "60000"));
  gate_.open();
  EXPECT_TRUE(is_sealed(2 + kFiles));
}

TEST_F(SealLane, NothingIsSpilledWhileACommitIsAboutToGiveMemoryBack) {
  constexpr int kFiles = 8;
  start(32 * kMiB);
  gate_.shut([](const VolumeCall& call) { return call.path.find("journal") != std::string::npos; });
  for (int i = 0; i < kFiles; ++i) put(std::to_string(i), std::string(2 * kMiB, 'a'));
  EXPECT_TRUE(is_sealed(kFiles));
  Handle* half = create("half", std::string(12 * kMiB, 'b'));
  std::atomic<int> written{0};
  const std::string piece(kMiB, 'c');
  for (uint64_t at = 12 * kMiB; at < 20 * kMiB; at += kMiB)
    store()->write(half, at, std::as_bytes(std::span(piece)), [&](Result<size_t> result) { written += result ? 1 : 0; });
  EXPECT_LT(written, 8) << "some were to wait";
  const uint64_t before = clock_.turns();
  EXPECT_TRUE(comes([&] { return clock_.turns() > before + 10; }));
  EXPECT_EQ(spilled_, 0);
  gate_.open();
  EXPECT_TRUE(comes([&] { return written == 8; }));
  EXPECT_EQ(client_->close(half), Code::kNoData);
}

TEST_F(SealLane, ItRestsWhileFilesAreOpenThatCannotBeSealed) {
  start(32 * kMiB, 64 * kMiB);
  const std::string body(kBodyBytes, 'a');
  put("changed", body);
  EXPECT_TRUE(is_sealed(1));
  Handle* unfinished = create("unfinished", body);
  Handle* silent = create("silent", body);
  EXPECT_EQ(client_->flush(silent), Code::kNoData);
  EXPECT_TRUE(is_sealed(2)) << "nobody writes it any more";
  Handle* did_not_fit = client_->open(kRootId, "changed", {.read = false, .write = true});
  EXPECT_EQ(client_->write_at(did_not_fit, 0, "b"), Code::kNoData);
  EXPECT_EQ(client_->write_at(did_not_fit, 100 * kMiB, "b"), Code::kNoSpace);
  EXPECT_EQ(client_->flush(did_not_fit), Code::kNoSpace);
  EXPECT_TRUE(comes_to_rest());
  store()->release(did_not_fit);  // and is what it was
  EXPECT_TRUE(comes_to_rest());
  EXPECT_EQ(client_->flush(unfinished), Code::kNoData);
  EXPECT_TRUE(is_sealed(3));
  EXPECT_TRUE(comes_to_rest());
  EXPECT_EQ(client_->write_at(unfinished, 0, "b"), Code::kNoData);
  EXPECT_TRUE(comes_to_rest());
  store()->release(unfinished);  // as a client that was killed
  EXPECT_TRUE(is_sealed(4));
  store()->release(silent);
}

}  // namespace seal_lane_test
}  // namespace kvcachefs::testing

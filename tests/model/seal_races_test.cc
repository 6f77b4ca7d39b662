// What clients do to an object between the snapshot of its body and the moment the journal has it. Appends to the journal take
// their time here, so that there is such a moment.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/volume/fault_volume.h"
#include "tests/model/threaded_store.h"

namespace kvcachefs::testing {
namespace seal_races_test {

constexpr int kTries = 25;

class SealRaces : public ::testing::Test {
 protected:
  static StoreOptions options() {
    StoreOptions options;
    options.memory_bytes = 32 * kMiB;
    options.flush_interval_ms = 1;
    options.raw_above_bytes = kMiB;
    return options;
  }
  Fault fault_of(const VolumeCall& call) const {
    if (call.kind != VolumeCall::Kind::kWrite || call.path.find("journal") == std::string::npos) return {};
    if (journal_fails) return {.sys_errno = EIO};
    return {.delay_ns = 10'000'000};
  }
  // Somewhere between before the snapshot and after the commit.
  static void wait_a_little(int attempt) { std::this_thread::sleep_for(std::chrono::milliseconds(attempt)); }

  void create_empty(Client& client, const std::string& name) {
    auto made = store->create(kRootId, name, 0644, {.read = false, .write = true}, client.caller());
    ASSERT_TRUE(made) << made.error().message;
    ASSERT_EQ(client.close(made->second), Code::kNoData);
  }
  Code drain() {
    return code_of(await<void>([&](auto done) { store->drain(true, std::move(done)); }));
  }

  std::atomic<bool> journal_fails{false};
  ThreadedStore store{options(), [this](std::shared_ptr<Volume> inner) {
                        return make_fault_volume(std::move(inner), [this](const VolumeCall& call) { return fault_of(call); });
                      }};
};

TEST_F(SealRaces, AFileThatBecomesRawWhileItsEmptyBodyIsSealed) {
  constexpr uint64_t kRawBytes = 3 * kMiB;
  const std::string content(100'000, 'r');
  {
    Client client(*store.operator->(), 1);
    for (int attempt = 0; attempt < kTries; ++attempt) {
      const std::string name = fmt::format("raw{}", attempt);
      create_empty(client, name);
      wait_a_little(attempt);
      Handle* handle = client.open(kRootId, name, {.read = true, .write = true});
      ASSERT_NE(handle, nullptr);
      SetAttributes size;
      size.size_bytes = kRawBytes;
      ASSERT_EQ(code_of(await<Stat>([&](auto done) {
                  store->set_attributes(store->object_of(handle), handle, size, client.caller(), std::move(done));
                })),
                Code::kNoData);
      ASSERT_EQ(client.write_at(handle, kMiB, content), Code::kNoData);
      ASSERT_EQ(client.close(handle), Code::kNoData);
    }
    ASSERT_EQ(drain(), Code::kNoData);
  }
  store.close();
  store.mount();
  Client client(*store.operator->(), 2);
  for (int attempt = 0; attempt < kTries; ++attempt) {
    Handle* handle = client.open(kRootId, fmt::format("raw{}", attempt), {});
    ASSERT_NE(handle, nullptr) << attempt;
    const std::string body = client.read_all(handle);
    EXPECT_EQ(body.size(), kRawBytes);
    EXPECT_TRUE(body.substr(kMiB, content.size()) == content) << attempt;
    store->release(handle);
  }
}

TEST_F(SealRaces, WhatIsUnlinkedWhileItIsJournaledLeavesNothing) {
  {
    Client client(*store.operator->(), 1);
    for (int attempt = 0; attempt < 2 * kTries; ++attempt) {
      const std::string name = fmt::format("gone{}", attempt);
      client.publish(kRootId, name, {1, 1, 100'000});
      wait_a_little(attempt / 2);
      ASSERT_EQ(client.unlink(kRootId, name), Code::kNoData);
    }
    for (int round = 0; round < 3; ++round) ASSERT_EQ(drain(), Code::kNoData);
  }
  store.close();
  EXPECT_EQ(store.allocated_bytes(), 0u);
  store.mount();
  EXPECT_EQ(store->status().objects_total, 0u) << "objects that no name refers to";
}

TEST_F(SealRaces, ADrainIsAnsweredAlsoIfTheJournalTakesNothing) {
  Client client(*store.operator->(), 1);
  journal_fails = true;
  create_empty(client, "empty");
  EXPECT_NE(drain(), Code::kNoData);
  journal_fails = false;
  EXPECT_EQ(drain(), Code::kNoData);
  store.close();
  store.mount();
  Client after(*store.operator->(), 2);
  Handle* handle = after.open(kRootId, "empty", {});
  ASSERT_NE(handle, nullptr);
  store->release(handle);
}

}  // namespace seal_races_test
}  // namespace kvcachefs::testing

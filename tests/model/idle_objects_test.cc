// Objects leave RAM when they are idle and come back when they are used: a change must reach the one that is in the table
// then, and nothing left over from before may push that one out.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/model/threaded_store.h"

namespace kvcachefs::testing {
namespace idle_objects_test {

constexpr uint64_t kFiles = 2, kBodyBytes = 20'000;
std::string file_name(uint64_t file) { return fmt::format("idle{}.kv", file); }

std::chrono::milliseconds duration() {
  return std::chrono::milliseconds(std::getenv("KVCACHEFS_LONG") != nullptr ? 30'000 : 3'000);
}

// Opens and closes what others change: each close of the last handle is a chance to be forgotten.
void open_and_close(ThreadedStore& store, uint64_t seed, const std::atomic<bool>& stop) {
  Client client(*store.operator->(), seed);
  while (!stop)
    if (Handle* handle = client.open(kRootId, file_name(client.below(kFiles)), {})) store->release(handle);
}

void make_idle(Store& store) {
  ASSERT_EQ(code_of(await<void>([&](auto done) { store.drain(false, std::move(done)); })), Code::kNoData);
  store.drop_caches();
}

// One file and its attributes, changed and looked at by one thread.
void change_and_look(ThreadedStore& store, uint64_t file, std::atomic<uint64_t>& changes, const std::atomic<bool>& stop) {
  Client client(*store.operator->(), file);
  for (uint64_t version = 1; !stop && !::testing::Test::HasFailure(); ++version, ++changes) {
    make_idle(*store.operator->());
    const std::string body = make_body({file, version, kBodyBytes}), value = std::to_string(version);
    Handle* handle = client.open(kRootId, file_name(file), {.read = false, .write = true});
    ASSERT_NE(handle, nullptr);
    const ObjectId id = store->object_of(handle);
    ASSERT_EQ(client.write_at(handle, 0, body), Code::kNoData);
    ASSERT_EQ(client.close(handle), Code::kNoData);
    handle = client.open(kRootId, file_name(file), {});
    ASSERT_NE(handle, nullptr);
    EXPECT_TRUE(client.read_all(handle) == body) << "version " << version << " of " << file_name(file) << " is lost";
    store->release(handle);

    make_idle(*store.operator->());
    ASSERT_TRUE(store->set_xattr(id, "user.version", value, Store::XattrMode::kAny));
    EXPECT_EQ(store->get_xattr(id, "user.version").value_or("none"), value);
    SetAttributes mode;
    mode.mode = 0600 + static_cast<uint32_t>(version % 64);
    ASSERT_EQ(code_of(await<Stat>([&](auto done) { store->set_attributes(id, nullptr, mode, client.caller(), std::move(done)); })),
              Code::kNoData);
    make_idle(*store.operator->());
    EXPECT_EQ(store->get_xattr(id, "user.version").value_or("none"), value);
    auto stat = store->stat(id);
    ASSERT_TRUE(stat) << stat.error().message;
    EXPECT_EQ(stat->mode & 07777u, *mode.mode);
  }
}

TEST(IdleObjects, ChangesAreNotLostWhileOthersOpenAndClose) {
  StoreOptions options;
  options.memory_bytes = 16 * kMiB;
  options.flush_interval_ms = 1;
  ThreadedStore store(options);
  {
    Client client(*store.operator->(), 1);
    for (uint64_t file = 0; file < kFiles; ++file) client.publish(kRootId, file_name(file), {file, 0, kBodyBytes});
  }
  std::atomic<uint64_t> changes{0};
  {
    std::atomic<bool> stop{false};
    std::vector<std::jthread> clients;
    for (uint64_t file = 0; file < kFiles; ++file)
      clients.emplace_back([&, file] { change_and_look(store, file, changes, stop); });
    for (uint64_t reader = 0; reader < 4; ++reader)
      clients.emplace_back([&, reader] { open_and_close(store, 100 + reader, stop); });
    std::this_thread::sleep_for(duration());
    stop = true;
  }
  EXPECT_GT(changes, 0u);
  const StoreStatus status = store->status();
  EXPECT_EQ(status.open_handles, 0u);
  EXPECT_EQ(status.errors_checksum + status.objects_quarantined, 0u);
  store.close();
}

}  // namespace idle_objects_test
}  // namespace kvcachefs::testing

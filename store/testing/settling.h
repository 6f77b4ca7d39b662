// Helpers for tests of a store on one thread (pump), and a volume that is soon full.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "store/base/units.h"
#include "store/store.h"
#include "store/testing/test_store.h"

namespace kvcachefs::testing {

// Waits for an answer and does not a step more: what was not journaled before it is lost in the crash that follows.
template <class T, class Call>
Result<T> await(TestStore& store, Call call) {
  auto result = std::make_shared<std::optional<Result<T>>>();
  call([result](Result<T> answer) { result->emplace(std::move(answer)); });
  for (int i = 0; i < 100'000 && !*result; ++i) store->pump();
  if (!*result) return fail(Code::kCanceled, "a request was never answered");
  return std::move(**result);
}

inline Status sync_file(TestStore& store, Handle* handle) {
  return await<void>(store, [&](auto done) { store->fsync(handle, std::move(done)); });
}

inline Status drain(TestStore& store) {
  return await<void>(store, [&](auto done) { store->drain(true, std::move(done)); });
}

// And some background work more.
inline void drain_and_work(TestStore& store) {
  EXPECT_TRUE(drain(store));
  for (int i = 0; i < 20; ++i) store->pump();
}

inline Stat find(TestStore& store, const std::string& name, ObjectId directory = kRootId) {
  auto found = store->lookup(directory, name, {.thread_id = 1});
  EXPECT_TRUE(found) << found.error().message;
  return found.value_or(Stat{});
}

inline Status link(TestStore& store, const std::string& from, const std::string& to) {
  auto linked = await<Stat>(store, [&](auto done) { store->link(find(store, from).id, kRootId, to, {}, std::move(done)); });
  return linked ? Status() : std::unexpected(linked.error());
}

inline Status exchange(TestStore& store, const std::string& one, const std::string& other) {
  return await<void>(store, [&](auto done) {
    store->rename(kRootId, one, kRootId, other, RenameMode::kExchange, {.thread_id = 1}, std::move(done));
  });
}

inline Code truncate(TestStore& store, const std::string& name, uint64_t size_bytes) {
  SetAttributes change;
  change.size_bytes = size_bytes;
  auto done = await<Stat>(store, [&](auto reply) {
    store->set_attributes(find(store, name).id, nullptr, change, {.thread_id = 1}, std::move(reply));
  });
  return done ? Code::kNoData : done.error().code;
}

inline size_t count_names(TestStore& store) {
  size_t count = 0;
  for (uint64_t after = 0;;) {
    auto page = store->list(kRootId, after, 1000);
    if (!page || page->empty()) return count;
    count += page->size();
    after = page->back().cookie;
  }
}

class SmallVolume : public ::testing::Test {
 protected:
  static StoreOptions options() {
    StoreOptions options;
    options.evict = false;  // what happens at a full volume is the matter here
    options.capacity_bytes = 17 * kMiB;  // 16 for bodies, and 1 for journals before a checkpoint
    options.keep_free_bytes = 1;
    return options;
  }
  void expect_within_capacity() {
    constexpr uint64_t kHeadersBytes = 64 * kKiB;  // of extents
    const StoreStatus status = store_->status();
    EXPECT_LE(status.physical_bytes + status.staged_bytes, status.limit_bytes);
    EXPECT_LE(store_.allocated_bytes(), status.limit_bytes + kHeadersBytes);
  }
  TestStore store_{options()};
};

}  // namespace kvcachefs::testing

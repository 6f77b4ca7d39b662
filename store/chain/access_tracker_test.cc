#include "store/chain/access_tracker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>

#include "store/base/units.h"

namespace kvcachefs {
namespace access_tracker_test {

constexpr ObjectId kParent{1};

ObjectId id_of(uint64_t number) { return ObjectId::make(0, 1, number); }

// The rows that a store would keep.
struct Rows {
  std::map<uint64_t, SuccessorsRecord> rows;
  size_t lookups = 0;

  AccessTracker::FindRow find() {
    return [this](ObjectId id) -> std::optional<SuccessorsRecord> {
      ++lookups;
      auto row = rows.find(id.value);
      if (row == rows.end()) return std::nullopt;
      return row->second;
    };
  }
  void keep(std::vector<SuccessorsRecord> changed) {
    for (SuccessorsRecord& row : changed) rows.insert_or_assign(row.id.value, std::move(row));
  }
};

// One request that reads `count` chunks of 64 KiB in the order of their numbers.
void read_all(AccessTracker& tracker, uint64_t count, int64_t& now_ns) {
  for (uint64_t i = 1; i <= count; ++i) {
    const auto handle = reinterpret_cast<const void*>(i);
    tracker.probed(7, kParent, "chunk-" + std::to_string(i), id_of(i), false, 64 * kKiB, now_ns += 1'000'000);
    tracker.opened(7, handle, id_of(i), 64 * kKiB, now_ns += 1000);
    tracker.read(handle, id_of(i), 0, 64 * kKiB, now_ns += 1000);
    tracker.closed(handle, id_of(i), now_ns += 1000);
  }
}

TEST(AccessTracker, PlansWhatFollowedTheLastTimeAlsoAfterTheRowsWereStored) {
  Rows stored;
  int64_t now_ns = 1'000'000'000;
  {
    AccessTracker tracker(stored.find(), 64 * kMiB, 256 * kMiB);
    read_all(tracker, 20, now_ns);
    stored.keep(tracker.changed_rows(1000));
  }
  ASSERT_FALSE(stored.rows.empty());
  AccessTracker tracker(stored.find(), 64 * kMiB, 256 * kMiB);  // the next run
  bool kicked = false;
  tracker.set_kick([&] { kicked = true; });
  now_ns += 60'000'000'000;
  read_all(tracker, 4, now_ns);
  EXPECT_TRUE(kicked);
  EXPECT_GT(stored.lookups, 0u);
  const Plan plan = tracker.plan(now_ns, 256 * kMiB);
  ASSERT_FALSE(plan.loads.empty());
  EXPECT_EQ(plan.loads.front().id, id_of(5));
}

TEST(AccessTracker, NothingIsPlannedWhereReadingAheadIsOff) {
  Rows stored;
  int64_t now_ns = 1'000'000'000;
  AccessTracker tracker(stored.find(), 0, 256 * kMiB);
  read_all(tracker, 20, now_ns);
  now_ns += 60'000'000'000;
  read_all(tracker, 4, now_ns);
  EXPECT_TRUE(tracker.plan(now_ns, 256 * kMiB).loads.empty());
}

TEST(AccessTracker, RowsThatWereNotKeptAreToldAgain) {
  Rows stored;
  int64_t now_ns = 1'000'000'000;
  AccessTracker tracker(stored.find(), 64 * kMiB, 256 * kMiB);
  read_all(tracker, 20, now_ns);
  const std::vector<SuccessorsRecord> first = tracker.changed_rows(1000);
  ASSERT_FALSE(first.empty());
  EXPECT_TRUE(tracker.changed_rows(1000).empty());
  tracker.not_kept(first);
  EXPECT_EQ(tracker.changed_rows(1000).size(), first.size());
}

TEST(AccessTracker, IsToldFromSeveralThreads) {
  Rows stored;
  AccessTracker tracker([](ObjectId) { return std::nullopt; }, 64 * kMiB, 256 * kMiB);
  std::vector<std::thread> clients;
  for (uint32_t client = 1; client <= 4; ++client)
    clients.emplace_back([&tracker, client] {
      for (uint64_t i = 1; i <= 200; ++i) {
        const auto handle = reinterpret_cast<const void*>(client * 1000 + i);
        tracker.opened(client, handle, id_of(client * 1000 + i), kKiB, static_cast<int64_t>(i) * 1000);
        tracker.read(handle, id_of(client * 1000 + i), 0, kKiB, static_cast<int64_t>(i) * 1000);
        tracker.closed(handle, id_of(client * 1000 + i), static_cast<int64_t>(i) * 1000);
      }
    });
  for (int i = 0; i < 100; ++i) static_cast<void>(tracker.plan(i * 1000, kMiB));
  for (std::thread& client : clients) client.join();
  EXPECT_FALSE(tracker.changed_rows(10'000).empty());
}

}  // namespace access_tracker_test
}  // namespace kvcachefs

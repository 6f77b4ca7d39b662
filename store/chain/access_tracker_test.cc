#include "store/chain/access_tracker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
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

// Writes down what it is told.
class Told final : public AccessListener {
 public:
  void probed(uint32_t, ObjectId, std::string_view name, ObjectId, uint64_t) override { add("probed " + std::string(name)); }
  void directory_named(ObjectId, std::string_view name, ObjectId) override { add("directory " + std::string(name)); }
  void opened(ObjectId id, uint64_t) override { add("opened " + std::to_string(id.number())); }
  void written(ObjectId, uint64_t) override {}
  void created(ObjectId, std::string_view name, ObjectId) override { add("created " + std::string(name)); }
  void published(uint32_t, ObjectId, std::string_view name, ObjectId, uint64_t) override {
    if (while_published) while_published();
    add("published " + std::string(name));
  }
  void loaded_ahead(ObjectId id) override { add("loaded " + std::to_string(id.number())); }
  void deleted(ObjectId id) override { add("deleted " + std::to_string(id.number())); }

  std::vector<std::string> lines;
  std::function<void()> while_published;

 private:
  void add(std::string line) { lines.push_back(std::move(line)); }
};

TEST(AccessTracker, ReportsOfAThreadThatHoldsAreWorkedOffWhenItSettles) {
  Rows stored;
  Told told;
  int64_t now_ns = 1'000'000'000;
  AccessTracker tracker(stored.find(), 64 * kMiB, 256 * kMiB);
  tracker.set_listeners({&told});
  read_all(tracker, 20, now_ns);
  size_t kicks = 0;
  tracker.set_kick([&] { ++kicks; });
  now_ns += 60'000'000'000;
  told.lines.clear();
  for (uint64_t i = 1; i <= 4; ++i) {
    const auto handle = reinterpret_cast<const void*>(i);
    const size_t before = told.lines.size(), kicks_before = kicks;
    tracker.hold();
    tracker.probed(7, kParent, "chunk-" + std::to_string(i), id_of(i), false, 64 * kKiB, now_ns += 1'000'000);
    tracker.opened(7, handle, id_of(i), 64 * kKiB, now_ns += 1000);
    tracker.read(handle, id_of(i), 0, 64 * kKiB, now_ns += 1000);
    EXPECT_EQ(told.lines.size(), before);
    EXPECT_EQ(kicks, kicks_before);
    tracker.settle();
    EXPECT_EQ(told.lines.size(), before + 2);
    tracker.closed(handle, id_of(i), now_ns += 1000);
  }
  EXPECT_EQ(told.lines.front(), "probed chunk-1");
  EXPECT_EQ(told.lines[1], "opened 1");
  EXPECT_GT(kicks, 0u);
  const Plan plan = tracker.plan(now_ns, 256 * kMiB);
  ASSERT_FALSE(plan.loads.empty());
  EXPECT_EQ(plan.loads.front().id, id_of(5)) << "as without the pauses";
}

TEST(AccessTracker, WhatIsNotedKeepsItsOrder) {
  Rows stored;
  Told told;
  AccessTracker tracker(stored.find(), 64 * kMiB, 256 * kMiB);
  tracker.set_listeners({&told});
  tracker.hold();
  tracker.probed(7, kParent, "a", id_of(1), false, 1, 1);
  tracker.opened(7, nullptr, id_of(1), 1, 2);
  EXPECT_TRUE(told.lines.empty());
  std::thread([&] { tracker.deleted(id_of(1)); }).join();
  EXPECT_EQ(told.lines, (std::vector<std::string>{"probed a", "opened 1", "deleted 1"}));
  tracker.settle();
  EXPECT_EQ(told.lines.size(), 3u);
  tracker.opened(7, nullptr, id_of(2), 1, 3);
  EXPECT_EQ(told.lines.back(), "opened 2") << "a thread that does not hold is heard at once";
}

TEST(AccessTracker, ListenersAreToldOfARenameAfterTheAnswerAndInItsOrder) {
  Rows stored;
  Told told;
  AccessTracker tracker(stored.find(), 64 * kMiB, 256 * kMiB);
  tracker.set_listeners({&told});
  ChainOrigin origin = tracker.created(7, kParent, "a.tmp", id_of(1), 1);
  const ChainKey before = origin.key;
  told.lines.clear();
  tracker.hold();
  tracker.published(7, kParent, "a", id_of(1), origin, 1);
  EXPECT_NE(origin.key, before) << "its place in the chain is known at once";
  EXPECT_TRUE(told.lines.empty());
  std::thread([&] { tracker.deleted(id_of(1)); }).join();
  EXPECT_EQ(told.lines, (std::vector<std::string>{"published a", "deleted 1"}));
  tracker.settle();
  tracker.published(7, kParent, "b", id_of(2), origin, 1);
  EXPECT_EQ(told.lines.back(), "published b") << "a thread that does not hold is heard at once";
}

TEST(AccessTracker, ARemovalDoesNotOvertakeARenameThatIsBeingToldOf) {
  Rows stored;
  Told told;
  AccessTracker tracker(stored.find(), 64 * kMiB, 256 * kMiB);
  tracker.set_listeners({&told});
  ChainOrigin origin;
  std::thread remover;
  told.while_published = [&] {  // the notes count as worked off by now
    remover = std::thread([&] { tracker.deleted(id_of(1)); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the removal can be told of only if it does not wait
  };
  tracker.hold();
  tracker.published(7, kParent, "a", id_of(1), origin, 1);
  tracker.settle();
  remover.join();
  EXPECT_EQ(told.lines, (std::vector<std::string>{"published a", "deleted 1"}));
}

TEST(AccessTracker, WhatIsNotedWaitsAfterTheReleaseForAnyThreadThatSettles) {
  Rows stored;
  Told told;
  AccessTracker tracker(stored.find(), 64 * kMiB, 256 * kMiB);
  tracker.set_listeners({&told});
  for (uint64_t i = 1; i <= 2; ++i) {
    tracker.hold();
    tracker.opened(7, nullptr, id_of(i), 1, static_cast<int64_t>(i));
    tracker.release();
  }
  EXPECT_TRUE(told.lines.empty());
  std::thread([&] { tracker.settle(); }).join();
  EXPECT_EQ(told.lines, (std::vector<std::string>{"opened 1", "opened 2"}));
  tracker.hold();
  tracker.opened(7, nullptr, id_of(3), 1, 3);
  tracker.release();
  tracker.opened(7, nullptr, id_of(4), 1, 4);
  EXPECT_EQ(told.lines.size(), 4u) << "the thread does not hold any more, and is heard at once";
  EXPECT_EQ(told.lines[2], "opened 3");
}

TEST(AccessTracker, WhatAnotherCallWorkedOffIsPlannedAllTheSame) {
  Rows stored;
  int64_t now_ns = 1'000'000'000;
  AccessTracker tracker(stored.find(), 64 * kMiB, 256 * kMiB);
  read_all(tracker, 20, now_ns);
  size_t kicks = 0;
  tracker.set_kick([&] { ++kicks; });
  now_ns += 60'000'000'000;
  tracker.hold();
  for (uint64_t i = 1; i <= 4; ++i) tracker.probed(7, kParent, "chunk-" + std::to_string(i), id_of(i), false, 64 * kKiB, now_ns += 1'000'000);
  tracker.release();
  static_cast<void>(tracker.totals());
  EXPECT_EQ(kicks, 0u);
  tracker.settle();
  EXPECT_GT(kicks, 0u);
}

TEST(AccessTracker, AThreadThatHoldsForLongDoesNotPileUpNotes) {
  Rows stored;
  Told told;
  AccessTracker tracker(stored.find(), 64 * kMiB, 256 * kMiB);
  tracker.set_listeners({&told});
  tracker.hold();
  for (uint64_t i = 1; i <= 1000; ++i) tracker.opened(7, nullptr, id_of(i), 1, static_cast<int64_t>(i));
  EXPECT_GE(told.lines.size(), 500u);
  tracker.settle();
  ASSERT_EQ(told.lines.size(), 1000u);
  for (uint64_t i = 1; i <= 1000; ++i) ASSERT_EQ(told.lines[i - 1], "opened " + std::to_string(i));
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

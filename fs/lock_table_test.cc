// Locks as a program on a local file system gets them, and the table against a model that keeps a lock for every byte.
#include "fs/lock_table.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <optional>
#include <random>
#include <set>

namespace kvcachefs {
namespace lock_table_test {

using Outcome = LockTable::Outcome;
using Mode = LockTable::Mode;

constexpr ObjectId kFile{17}, kOther{18};

LockTable::Request flock(uint64_t owner, Mode mode) {
  return {.file = kFile, .family = LockTable::Family::kFlock, .mode = mode, .owner = owner, .handle = owner};
}
LockTable::Request record(uint64_t owner, Mode mode, uint64_t first, uint64_t last, ObjectId file = kFile) {
  return {.file = file, .family = LockTable::Family::kRecord, .mode = mode, .owner = owner, .handle = owner, .first = first, .last = last};
}

class Locks {
 public:
  LockTable table;
  int64_t now_ns = 0;

  Outcome now(const LockTable::Request& request) {
    std::optional<Outcome> outcome;
    table.set(request, false, next_token_++, now_ns, [&](Outcome given) { outcome = given; });
    if (!outcome) table.expire(now_ns + LockTable::kCloseNs);
    return outcome.value();
  }
  // Empty until the request is answered.
  std::shared_ptr<std::optional<Outcome>> begin(const LockTable::Request& request, bool waits, uint64_t* token = nullptr) {
    auto outcome = std::make_shared<std::optional<Outcome>>();
    if (token != nullptr) *token = next_token_;
    table.set(request, waits, next_token_++, now_ns, [outcome](Outcome given) {
      EXPECT_FALSE(outcome->has_value()) << "answered twice";
      *outcome = given;
    });
    return outcome;
  }

 private:
  uint64_t next_token_ = 1;
};

TEST(LockTable, FlockExcludesAndIsShared) {
  Locks locks;
  EXPECT_EQ(locks.now(flock(1, Mode::kShared)), Outcome::kGranted);
  EXPECT_EQ(locks.now(flock(2, Mode::kShared)), Outcome::kGranted);
  EXPECT_EQ(locks.now(flock(3, Mode::kExclusive)), Outcome::kWouldBlock);
  EXPECT_EQ(locks.now(flock(1, Mode::kUnlocked)), Outcome::kGranted);
  EXPECT_EQ(locks.now(flock(3, Mode::kExclusive)), Outcome::kWouldBlock);
  EXPECT_EQ(locks.now(flock(2, Mode::kUnlocked)), Outcome::kGranted);
  EXPECT_EQ(locks.now(flock(3, Mode::kExclusive)), Outcome::kGranted);
  EXPECT_EQ(locks.now(flock(3, Mode::kExclusive)), Outcome::kGranted);  // again
  EXPECT_EQ(locks.now(flock(1, Mode::kShared)), Outcome::kWouldBlock);
}

TEST(LockTable, FamiliesAndFilesAreApart) {
  Locks locks;
  EXPECT_EQ(locks.now(flock(1, Mode::kExclusive)), Outcome::kGranted);
  EXPECT_EQ(locks.now(record(2, Mode::kExclusive, 0, 99)), Outcome::kGranted);
  EXPECT_EQ(locks.now(record(3, Mode::kExclusive, 0, 99, kOther)), Outcome::kGranted);
}

TEST(LockTable, AnUpgradeThatCannotBeHadGivesUpTheLock) {
  Locks locks;
  EXPECT_EQ(locks.now(flock(1, Mode::kShared)), Outcome::kGranted);
  EXPECT_EQ(locks.now(flock(2, Mode::kShared)), Outcome::kGranted);
  EXPECT_EQ(locks.now(flock(1, Mode::kExclusive)), Outcome::kWouldBlock);
  EXPECT_EQ(locks.now(flock(2, Mode::kExclusive)), Outcome::kGranted);  // 1 has none any more
}

TEST(LockTable, WaitersAreGrantedInTurn) {
  Locks locks;
  EXPECT_EQ(locks.now(flock(1, Mode::kExclusive)), Outcome::kGranted);
  auto reader = locks.begin(flock(2, Mode::kShared), true);
  auto other_reader = locks.begin(flock(3, Mode::kShared), true);
  auto writer = locks.begin(flock(4, Mode::kExclusive), true);
  EXPECT_FALSE(reader->has_value());
  EXPECT_EQ(locks.now(flock(1, Mode::kUnlocked)), Outcome::kGranted);
  EXPECT_EQ(*reader, Outcome::kGranted);
  EXPECT_EQ(*other_reader, Outcome::kGranted);
  EXPECT_FALSE(writer->has_value());
  locks.table.released(kFile, 2);
  EXPECT_FALSE(writer->has_value());
  locks.table.released(kFile, 3);
  EXPECT_EQ(*writer, Outcome::kGranted);
}

TEST(LockTable, ASignalEndsAWait) {
  Locks locks;
  EXPECT_EQ(locks.now(flock(1, Mode::kExclusive)), Outcome::kGranted);
  uint64_t token = 0;
  auto waits = locks.begin(flock(2, Mode::kExclusive), true, &token);
  locks.table.interrupt(token + 100);
  EXPECT_FALSE(waits->has_value());
  locks.table.interrupt(token);
  EXPECT_EQ(*waits, Outcome::kInterrupted);
  locks.table.interrupt(token);
  locks.table.released(kFile, 1);
  EXPECT_EQ(locks.now(flock(3, Mode::kExclusive)), Outcome::kGranted);  // 2 took nothing
}

TEST(LockTable, ASignalBeforeTheWaitEndsItToo) {
  Locks locks;
  EXPECT_EQ(locks.now(flock(1, Mode::kExclusive)), Outcome::kGranted);
  locks.table.announce(77);
  locks.table.interrupt(77);
  std::optional<Outcome> outcome;
  locks.table.set(flock(2, Mode::kExclusive), true, 77, 0, [&](Outcome given) { outcome = given; });
  EXPECT_EQ(outcome, Outcome::kInterrupted);
}

TEST(LockTable, ACloseEndsTheRecordLocksOfItsOwnerAlone) {
  Locks locks;
  EXPECT_EQ(locks.now(record(1, Mode::kExclusive, 0, 9)), Outcome::kGranted);
  EXPECT_EQ(locks.now(record(2, Mode::kExclusive, 10, 19)), Outcome::kGranted);
  locks.table.flushed(kFile, /*handle=*/99, /*owner=*/1);  // another descriptor of the same file: all the same
  EXPECT_EQ(locks.now(record(3, Mode::kExclusive, 0, 9)), Outcome::kGranted);
  EXPECT_EQ(locks.now(record(3, Mode::kExclusive, 10, 19)), Outcome::kWouldBlock);
}

TEST(LockTable, FlockOutlivesTheCloseOfADuplicate) {
  Locks locks;
  EXPECT_EQ(locks.now(flock(1, Mode::kExclusive)), Outcome::kGranted);
  locks.table.flushed(kFile, /*handle=*/1, /*owner=*/500);  // as of a child that ends
  EXPECT_EQ(locks.now(flock(2, Mode::kExclusive)), Outcome::kWouldBlock);
}

// close() returns before RELEASE comes: a non-waiting request right after close() is not refused.
TEST(LockTable, WhatDoesNotWaitIsGivenWhatWasClosedAMomentAgo) {
  Locks locks;
  EXPECT_EQ(locks.now(flock(1, Mode::kExclusive)), Outcome::kGranted);
  locks.table.flushed(kFile, 1, 500);
  auto next = locks.begin(flock(2, Mode::kExclusive), false);
  EXPECT_FALSE(next->has_value());
  EXPECT_EQ(locks.table.expire(LockTable::kCloseNs - 1), std::optional(LockTable::kCloseNs));
  EXPECT_FALSE(next->has_value());
  locks.table.released(kFile, 1);
  EXPECT_EQ(*next, Outcome::kGranted);
  // Held by a handle of which no descriptor was closed: refused at once.
  EXPECT_EQ(*locks.begin(flock(3, Mode::kExclusive), false), Outcome::kWouldBlock);
}

TEST(LockTable, OneWhoseClosesAreNotToldMayBeClosedAtAnyTime) {
  Locks locks;
  LockTable::Request quiet = flock(1, Mode::kExclusive);
  quiet.closes_unseen = true;
  EXPECT_EQ(locks.now(quiet), Outcome::kGranted);
  auto next = locks.begin(flock(2, Mode::kExclusive), false);
  EXPECT_FALSE(next->has_value());
  locks.table.expire(LockTable::kCloseNs);
  EXPECT_EQ(*next, Outcome::kWouldBlock);
}

TEST(LockTable, TwoThatWaitForEachOtherAreToldOfIt) {
  Locks locks;
  EXPECT_EQ(locks.now(record(1, Mode::kExclusive, 0, 0)), Outcome::kGranted);
  EXPECT_EQ(locks.now(record(2, Mode::kExclusive, 0, 0, kOther)), Outcome::kGranted);
  EXPECT_EQ(locks.now(record(3, Mode::kExclusive, 5, 5)), Outcome::kGranted);
  auto first = locks.begin(record(1, Mode::kExclusive, 0, 0, kOther), true);
  EXPECT_FALSE(first->has_value());
  EXPECT_EQ(*locks.begin(record(2, Mode::kExclusive, 0, 0), true), Outcome::kDeadlock);
  EXPECT_FALSE(locks.begin(record(3, Mode::kExclusive, 0, 0), true)->has_value());  // no circle
  locks.table.interrupt_all();
  EXPECT_EQ(*first, Outcome::kInterrupted);
}

TEST(LockTable, TellsWhatIsInTheWay) {
  Locks locks;
  LockTable::Request held = record(1, Mode::kShared, 100, 199);
  held.process = 4711;
  EXPECT_EQ(locks.now(held), Outcome::kGranted);
  EXPECT_FALSE(locks.table.conflict(record(2, Mode::kShared, 0, 999)).has_value());
  const auto found = locks.table.conflict(record(2, Mode::kExclusive, 0, 999));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->first, 100U);
  EXPECT_EQ(found->last, 199U);
  EXPECT_EQ(found->process, 4711U);
  EXPECT_FALSE(locks.table.conflict(record(1, Mode::kExclusive, 0, 999)).has_value());  // its own
}

// Random record locks of five owners over 24 bytes, waiting ones included, compared with a model that stores the locks of each byte.
TEST(LockTable, AgreesWithAModelOfBytes) {
  constexpr uint64_t kBytes = 24, kOwners = 5;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    Locks locks;
    std::array<std::map<uint64_t, Mode>, kBytes> held;  // by byte, then owner
    struct Waiting {
      LockTable::Request request;
      std::shared_ptr<std::optional<Outcome>> outcome;
    };
    std::vector<Waiting> waiting;
    auto free = [&](const LockTable::Request& wanted) {
      for (uint64_t byte = wanted.first; byte <= wanted.last; ++byte)
        for (const auto& [owner, mode] : held[byte])
          if (owner != wanted.owner && (mode == Mode::kExclusive || wanted.mode == Mode::kExclusive)) return false;
      return true;
    };
    auto apply = [&](const LockTable::Request& wanted) {
      for (uint64_t byte = wanted.first; byte <= wanted.last; ++byte)
        if (wanted.mode == Mode::kUnlocked) held[byte].erase(wanted.owner);
        else held[byte][wanted.owner] = wanted.mode;
    };
    // Exactly the waiting requests that can be granted have been granted, oldest first.
    auto check_waiting = [&] {
      for (bool again = true; again;) {
        again = false;
        for (auto each = waiting.begin(); each != waiting.end(); ++each) {
          if (!free(each->request)) continue;
          ASSERT_EQ(*each->outcome, Outcome::kGranted) << "seed " << seed;
          apply(each->request);
          waiting.erase(each);
          again = true;
          break;
        }
      }
      for (const Waiting& each : waiting) ASSERT_FALSE(each.outcome->has_value()) << "seed " << seed;
    };
    for (int step = 0; step < 120; ++step) {
      const uint64_t a = random() % kBytes, b = random() % kBytes, owner = 1 + random() % kOwners;
      const auto mode = static_cast<Mode>(random() % 3);
      const auto wanted = record(owner, mode, std::min(a, b), std::max(a, b));
      const bool busy = std::any_of(waiting.begin(), waiting.end(), [&](const Waiting& each) { return each.request.owner == owner; });
      if (busy) {
        if (random() % 4 != 0) continue;
        locks.table.released(kFile, owner);  // everything of it
        for (auto& byte : held) byte.erase(owner);
      } else if (mode == Mode::kUnlocked || free(wanted)) {
        ASSERT_EQ(locks.now(wanted), Outcome::kGranted) << "seed " << seed;
        apply(wanted);
      } else if (random() % 3 != 0) {
        ASSERT_EQ(locks.now(wanted), Outcome::kWouldBlock) << "seed " << seed;
      } else {
        auto outcome = locks.begin(wanted, true);
        if (*outcome == Outcome::kDeadlock) continue;
        waiting.push_back({wanted, outcome});
      }
      check_waiting();
      const auto asked = record(kOwners + 1, Mode::kExclusive, std::min(a, b), std::max(a, b));
      ASSERT_EQ(locks.table.conflict(asked).has_value(), !free(asked)) << "seed " << seed;
    }
  }
}

TEST(LockTable, NoWayToALockPassesTheMost) {
  constexpr size_t kMost = 3;
  LockTable table(kMost);
  int64_t token = 0;
  const auto now = [&](const LockTable::Request& request) {
    std::optional<Outcome> outcome;
    table.set(request, false, static_cast<uint64_t>(++token), 0, [&](Outcome given) { outcome = given; });
    return outcome.value();
  };
  EXPECT_EQ(now(record(1, Mode::kExclusive, 0, 99)), Outcome::kGranted);
  EXPECT_EQ(now(record(2, Mode::kExclusive, 0, 9, kOther)), Outcome::kGranted);
  EXPECT_EQ(now(record(2, Mode::kExclusive, 20, 29, kOther)), Outcome::kGranted);
  EXPECT_EQ(now(record(2, Mode::kExclusive, 40, 49, kOther)), Outcome::kTooMany);
  EXPECT_EQ(now(record(1, Mode::kUnlocked, 50, 59)), Outcome::kTooMany) << "two would be left of one";
  EXPECT_EQ(now(record(1, Mode::kShared, 50, 59)), Outcome::kTooMany) << "three of one";
  EXPECT_EQ(now(record(1, Mode::kUnlocked, 50, 99)), Outcome::kGranted) << "it only becomes shorter";
  EXPECT_EQ(now(record(1, Mode::kShared, 0, 49)), Outcome::kGranted) << "one instead of one";
  // A request that waits: when it could be granted, another request has taken the last free entry.
  std::optional<Outcome> waiting;
  table.set(record(3, Mode::kExclusive, 20, 29, kOther), true, 1000, 0, [&](Outcome given) { waiting = given; });
  EXPECT_FALSE(waiting);
  EXPECT_EQ(now(record(2, Mode::kUnlocked, 0, 9, kOther)), Outcome::kGranted);
  EXPECT_EQ(now(record(1, Mode::kExclusive, 60, 69)), Outcome::kGranted);
  EXPECT_EQ(now(record(2, Mode::kUnlocked, 22, 25, kOther)), Outcome::kTooMany);
  EXPECT_EQ(now(record(2, Mode::kShared, 20, 29, kOther)), Outcome::kGranted);
  table.set(record(4, Mode::kShared, 20, 29, kOther), true, 1001, 0, [&](Outcome given) { EXPECT_EQ(given, Outcome::kTooMany); });
  EXPECT_EQ(now(record(2, Mode::kUnlocked, 20, 29, kOther)), Outcome::kGranted);
  EXPECT_EQ(waiting, Outcome::kGranted);
}

TEST(LockTable, OneThatWaitedIsRefusedWhereThereAreTooMany) {
  LockTable table(2);
  const auto now = [&](const LockTable::Request& request) {
    std::optional<Outcome> outcome;
    table.set(request, false, 1, 0, [&](Outcome given) { outcome = given; });
    return outcome.value();
  };
  ASSERT_EQ(now(record(1, Mode::kExclusive, 0, 99)), Outcome::kGranted);
  ASSERT_EQ(now(record(1, Mode::kExclusive, 200, 299)), Outcome::kGranted);
  std::optional<Outcome> waiting;
  table.set(record(2, Mode::kExclusive, 50, 99), true, 1000, 0, [&](Outcome given) { waiting = given; });
  EXPECT_FALSE(waiting);
  EXPECT_EQ(now(record(1, Mode::kUnlocked, 50, 99)), Outcome::kGranted);
  EXPECT_EQ(waiting, Outcome::kTooMany);
  EXPECT_EQ(now(record(2, Mode::kShared, 60, 60)), Outcome::kTooMany) << "nothing of it was counted";
}

}  // namespace lock_table_test
}  // namespace kvcachefs

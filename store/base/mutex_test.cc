#include "store/base/mutex.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace kvcachefs {
namespace mutex_test {

TEST(Mutex, IsTakenInTheOrderOfRanks) {
  SharedMutex<LockRank::kNames> names;
  Mutex<LockRank::kObject> object;
  LeafMutex leaf;
  std::shared_lock names_lock(names);
  std::lock_guard object_lock(object);
  std::unique_lock leaf_lock(leaf);
  leaf_lock.unlock();
  leaf_lock.lock();
  // Another thread has an order of its own.
  std::thread([&names] { std::shared_lock lock(names); }).join();
}

TEST(Mutex, IsReleasedInAnyOrder) {
  SharedMutex<LockRank::kNames> names;
  Mutex<LockRank::kObject> object;
  std::unique_lock names_lock(names);
  std::unique_lock object_lock(object);
  names_lock.unlock();
  object_lock.unlock();
  names_lock.lock();
  object_lock.lock();
}

TEST(Mutex, WakesAConditionVariable) {
  LeafMutex mutex;
  ConditionVariable ready;
  bool set = false;
  std::thread other([&] {
    std::lock_guard lock(mutex);
    set = true;
    ready.notify_one();
  });
  {
    std::unique_lock lock(mutex);
    ready.wait(lock, [&] { return set; });
  }
  other.join();
}

#if defined(KVCACHEFS_CHECK_LOCKS)
std::string number(LockRank rank) { return std::to_string(static_cast<int>(rank)); }
std::string against(LockRank rank) { return "lock order: taking rank " + number(rank); }

TEST(MutexDeathTest, AbortsOnAnAcquisitionAgainstTheOrder) {
  SharedMutex<LockRank::kNames> names;
  Mutex<LockRank::kObject> object;
  EXPECT_DEATH(
      {
        std::lock_guard object_lock(object);
        std::shared_lock names_lock(names);
      },
      against(LockRank::kNames) + " .*held: rank " + number(LockRank::kObject));
}

TEST(MutexDeathTest, AbortsOnTwoOfOneRank) {
  Mutex<LockRank::kObject> one, other;
  EXPECT_DEATH(
      {
        std::lock_guard first(one);
        std::lock_guard second(other);
      },
      against(LockRank::kObject));
}

TEST(MutexTest, LocksOfAnotherMachineAreNoneOfThisOnes) {
  SharedMutex<LockRank::kNames> names;
  LeafMutex leaf, other;
  std::lock_guard leaf_lock(leaf);
  {
    const AnotherMachine another;
    std::shared_lock names_lock(names);
    std::lock_guard other_lock(other);
  }
  EXPECT_DEATH(std::shared_lock(names).unlock(), against(LockRank::kNames) + " .*held: rank " + number(LockRank::kLeaf));
}

TEST(MutexDeathTest, CountsWhatWasOnlyTried) {
  LeafMutex leaf;
  SharedMutex<LockRank::kNames> names;
  Mutex<LockRank::kObject> object;
  EXPECT_DEATH(
      {
        std::lock_guard leaf_lock(leaf);
        std::unique_lock names_lock(names, std::try_to_lock);  // allowed: it does not wait
        if (names_lock.owns_lock()) std::lock_guard object_lock(object);
      },
      against(LockRank::kObject));
}
#endif

}  // namespace mutex_test
}  // namespace kvcachefs

#include "fs/opener_threads.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <latch>
#include <system_error>

#include "fs/locks.h"
#include "fs/side_thread.h"

namespace kvcachefs {
namespace opener_threads_test {

TEST(OpenerThreads, DoWhatTheyAreGivenBesideEachOther) {
  OpenerThreads threads;
  std::latch all_there(OpenerThreads::kMostThreads);
  std::atomic<int> done{0};
  for (size_t i = 0; i < OpenerThreads::kMostThreads; ++i)
    threads.run([&] {
      all_there.arrive_and_wait();
      ++done;
    });
  threads.stop();
  EXPECT_EQ(done, static_cast<int>(OpenerThreads::kMostThreads));
}

TEST(OpenerThreads, WhatIsQueuedIsDoneBeforeTheyEnd) {
  OpenerThreads threads;
  std::atomic<int> done{0};
  for (int i = 0; i < 1000; ++i) threads.run([&] { ++done; });
  threads.stop();
  EXPECT_EQ(done, 1000);
  threads.run([&] { ++done; });  // inside the call now
  EXPECT_EQ(done, 1001);
  threads.stop();
}

// A process in which no thread can be started: exits with 0 if `checks` returns true.
template <typename Checks>
void without_threads(Checks checks) {
  const rlimit none{.rlim_cur = 0, .rlim_max = 0};
  constexpr uid_t kUnprivileged = 65534;  // the limit does not bind root
  if (setrlimit(RLIMIT_NPROC, &none) != 0 || (geteuid() == 0 && setresuid(kUnprivileged, kUnprivileged, kUnprivileged) != 0)) std::_Exit(2);
  try {
    std::thread([] {}).join();
    std::_Exit(3);
  } catch (const std::system_error&) {
  }
  std::_Exit(checks() ? 0 : 1);
}

TEST(WithoutThreads, FilesAreOpenedInsideTheCall) {
  EXPECT_EXIT(without_threads([] {
                int done = 0;
                OpenerThreads threads;
                for (int i = 0; i < 2; ++i) threads.run([&] { ++done; });
                return done == 2;
              }),
              testing::ExitedWithCode(0), "");
}

TEST(WithoutThreads, JobsOfTheSideThreadAreDoneOneAfterAnotherInsideTheCall) {
  EXPECT_EXIT(without_threads([] {
                int done = 0;
                bool nested = false;
                SideThread side;
                side.run([&] {
                  side.run([&] { ++done; });
                  nested = done > 0;
                });
                side.run([&] { ++done; });
                return done == 2 && !nested;
              }),
              testing::ExitedWithCode(0), "");
}

TEST(WithoutThreads, ALockThatMaySoonBeHadIsRefusedAtOnce) {
  EXPECT_EXIT(without_threads([] {
                FileLocks locks;
                LockTable::Request held;
                held.file = ObjectId{7};
                held.mode = LockTable::Mode::kExclusive;
                held.owner = held.handle = 1;
                locks.table.set(held, false, 1, 0, [](LockTable::Outcome) {});
                locks.table.flushed(held.file, held.handle, held.owner);
                LockTable::Request wanted = held;
                wanted.owner = wanted.handle = 2;
                int refused = 0;
                locks.table.set(wanted, false, 2, 0, [&](LockTable::Outcome outcome) { refused += outcome == LockTable::Outcome::kWouldBlock; });
                const bool waited = refused == 0;
                locks.watch();
                return waited && refused == 1;
              }),
              testing::ExitedWithCode(0), "");
}

}  // namespace opener_threads_test
}  // namespace kvcachefs

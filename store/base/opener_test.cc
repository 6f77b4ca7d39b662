#include "store/base/opener.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

namespace kvcachefs {
namespace opener_test {

std::thread::id where(Opener& opener) {
  std::promise<std::thread::id> done;
  opener.run([&] { done.set_value(std::this_thread::get_id()); });
  return done.get_future().get();
}

TEST(Opener, WorkIsHandedOnOnlyByThreadsThatMustNotBlock) {
  Opener opener;
  opener.start();
  EXPECT_EQ(where(opener), std::this_thread::get_id());
  const MustNotBlock others_wait;
  EXPECT_NE(where(opener), std::this_thread::get_id());
  {
    const MustNotBlock nested;
  }
  EXPECT_TRUE(opener.is_needed_here());  // the outer one still holds
}

TEST(Opener, WithoutItsThreadWorkIsDoneWhereItComesUp) {
  Opener opener;
  const MustNotBlock others_wait;
  EXPECT_EQ(where(opener), std::this_thread::get_id());
  opener.start();
  opener.stop();
  EXPECT_FALSE(opener.is_needed_here());
  EXPECT_EQ(where(opener), std::this_thread::get_id());
  EXPECT_FALSE(opener.finish());
}

TEST(Opener, StopWaitsForWhatWasHandedOn) {
  Opener opener;
  opener.start();
  std::atomic<int> done{0};
  {
    const MustNotBlock others_wait;
    for (int i = 0; i < 100; ++i) opener.run([&] { ++done; });
  }
  opener.stop();
  opener.finish();
  EXPECT_EQ(done, 100);
}

}  // namespace opener_test
}  // namespace kvcachefs

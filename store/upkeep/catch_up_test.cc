#include "store/upkeep/catch_up.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace kvcachefs {
namespace catch_up_test {

constexpr int64_t kSecondNs = 1'000'000'000;

class CatchUpTest : public ::testing::Test {
 protected:
  CatchUpTest() { running_.set_ticked(true); }
  void pass(int seconds) {
    for (; seconds > 0; --seconds) {
      clock_.advance_ns(kSecondNs);
      running_.tick();
      catch_up_.tick();
    }
  }
  CatchUp::Then count() {
    return [this] { ++went_on_; };
  }
  void answer() {
    for (StatusCompletion& done : std::exchange(asked_, {})) done({});
  }

  ManualClock clock_{1000 * kSecondNs};
  RunningClock running_{clock_};
  std::vector<StatusCompletion> asked_;
  int went_on_ = 0;
  CatchUp catch_up_{&running_, [this](StatusCompletion done) { asked_.push_back(std::move(done)); }};
};

TEST_F(CatchUpTest, IsDueAfterThisProcessStoodStillUntilTheOthersWereReadOnce) {
  EXPECT_FALSE(catch_up_.is_due());
  pass(100);
  EXPECT_FALSE(catch_up_.is_due());
  clock_.advance_ns(60 * kSecondNs);  // SIGSTOP
  EXPECT_TRUE(catch_up_.is_due()) << "also before the next tick";
  catch_up_.read(count());
  EXPECT_EQ(went_on_, 0);
  EXPECT_TRUE(catch_up_.is_due()) << "others wait as well";
  answer();
  EXPECT_EQ(went_on_, 1);
  EXPECT_FALSE(catch_up_.is_due());
  pass(100);
  EXPECT_FALSE(catch_up_.is_due());
}

TEST_F(CatchUpTest, IsBehindUntilAllOthersWereReadButNotForEver) {
  EXPECT_FALSE(catch_up_.is_behind());
  clock_.advance_ns(60 * kSecondNs);  // SIGSTOP
  EXPECT_TRUE(catch_up_.is_behind());
  catch_up_.read(count());
  for (StatusCompletion& done : std::exchange(asked_, {})) done(fail(Code::kIo, "a node cannot be read"));
  EXPECT_EQ(went_on_, 1) << "a call goes on";
  EXPECT_FALSE(catch_up_.is_due());
  EXPECT_TRUE(catch_up_.is_behind());
  catch_up_.read(count());
  pass(11);
  EXPECT_EQ(went_on_, 2);
  EXPECT_TRUE(catch_up_.is_behind()) << "that took too long";
  catch_up_.read(count());
  answer();
  EXPECT_FALSE(catch_up_.is_behind());
  clock_.advance_ns(60 * kSecondNs);
  EXPECT_TRUE(catch_up_.is_behind());
  pass(60);
  EXPECT_FALSE(catch_up_.is_behind());
}

TEST_F(CatchUpTest, WhatWasReadBeforeAStopDoesNotCount) {
  catch_up_.read(count());
  clock_.advance_ns(60 * kSecondNs);
  answer();
  EXPECT_EQ(went_on_, 1);
  EXPECT_TRUE(catch_up_.is_due());
}

TEST_F(CatchUpTest, NoCallWaitsForLongerThanTenSeconds) {
  clock_.advance_ns(60 * kSecondNs);
  catch_up_.read(count());
  pass(9);
  EXPECT_EQ(went_on_, 0);
  pass(3);
  EXPECT_EQ(went_on_, 1);
  EXPECT_FALSE(catch_up_.is_due()) << "not each call again";
  answer();
  EXPECT_EQ(went_on_, 1) << "once";
}

TEST_F(CatchUpTest, AnotherStopMeanwhileIsNoPartOfTheWait) {
  clock_.advance_ns(60 * kSecondNs);
  catch_up_.read(count());
  pass(2);
  clock_.advance_ns(60 * kSecondNs);
  pass(2);
  EXPECT_EQ(went_on_, 0);
  answer();
  EXPECT_EQ(went_on_, 1);
}

}  // namespace catch_up_test
}  // namespace kvcachefs

// The lines of requests that wait for memory, over a pool that is just a number.
#include "store/cache/memory_waiters.h"

#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace kvcachefs {
namespace memory_waiters_test {

using Kind = MemoryWaiters::Kind;

class Lines : public ::testing::Test {
 protected:
  Lines() {
    waiters_.set_rules({.has_room_without_reads = [this](uint64_t lacks) { return lacks <= free_ + reading_; },
                        .nothing_moves = [this] { return nothing_moves_; },
                        .no_use = [this] { return no_use_; }});
  }
  // `lacks` is read each time: the memory that a request needs may come by other means.
  void add(Kind kind, const std::string& name, const uint64_t& lacks) {
    waiters_.add(kind, ObjectId{1}, lacks, now_ns_, [this, kind, name, &lacks](MemoryWaiters::Try& attempt) {
      attempt.lacks_bytes = lacks;
      if (lacks > 0 && (!attempt.may_take || lacks > free_)) return false;
      free_ -= lacks;
      if (kind == Kind::kReader) reading_ += lacks;
      went_.push_back(name);
      return true;
    }, [this, name](const Error& why) { went_.push_back(name + ": " + why.message); });
  }
  std::vector<std::string> resume() {
    went_.clear();
    waiters_.resume(now_ns_);
    return went_;
  }

  MemoryWaiters waiters_;
  uint64_t free_ = 0, reading_ = 0;
  int64_t now_ns_ = 0;
  bool nothing_moves_ = false;
  std::optional<Error> no_use_;
  std::vector<std::string> went_;
};
using Names = std::vector<std::string>;

TEST_F(Lines, MemoryGoesToTheFirstThoughLaterOnesNeedLess) {
  const uint64_t much = 10, little = 1;
  add(Kind::kReader, "large", much);
  add(Kind::kReader, "small", little);
  free_ = 9;
  EXPECT_EQ(resume(), Names{});
  EXPECT_EQ(waiters_.first_reader_lacks_bytes(), 10u);
  EXPECT_FALSE(waiters_.may_take_now(Kind::kReader));
  EXPECT_FALSE(waiters_.may_take_now(Kind::kWriter));
  free_ = 11;
  EXPECT_EQ(resume(), (Names{"large", "small"}));
  EXPECT_EQ(waiters_.first_reader_lacks_bytes(), 0u);
  EXPECT_TRUE(waiters_.nobody_waits());
  EXPECT_TRUE(waiters_.may_take_now(Kind::kWriter));
}

TEST_F(Lines, OneThatLacksNothingAnyMoreGoesOnWhateverItsPlace) {
  const uint64_t much = 10;
  uint64_t last = 5;
  add(Kind::kReader, "first", much);
  add(Kind::kReader, "second", much);
  add(Kind::kReader, "last", last);
  EXPECT_EQ(resume(), Names{});
  last = 0;
  waiters_.note_arrival();
  EXPECT_EQ(resume(), Names{"last"});
  EXPECT_EQ(waiters_.count(), 2u);
}

// A request that gets no memory must not keep those behind it from being refused.
TEST_F(Lines, WhereTheVolumeTakesNothingEachIsToldWhateverItsPlace) {
  const uint64_t one = 1, much = 10;
  add(Kind::kReader, "reader", much);
  add(Kind::kWriter, "first", much);
  add(Kind::kWriter, "second", one);
  now_ns_ = 9'000'000'000;
  add(Kind::kReader, "later", much);
  EXPECT_EQ(resume(), Names{});
  no_use_ = Error{Code::kIo, 0, "dead"};
  EXPECT_EQ(resume(), (Names{"first: dead", "second: dead"}));
  EXPECT_EQ(waiters_.count(), 2u);
  now_ns_ = 10'000'000'000;
  EXPECT_EQ(resume(), Names{"reader: dead"});
  EXPECT_EQ(waiters_.first_reader_lacks_bytes(), 10u);
  free_ = 10;
  EXPECT_EQ(resume(), Names{"later"});  // the unit it waited for has arrived
  EXPECT_TRUE(waiters_.nobody_waits());
}

TEST_F(Lines, ReadersThatCameBeforeGoFirst) {
  const uint64_t one = 1;
  add(Kind::kReader, "reader", one);
  add(Kind::kWriter, "writer", one);
  free_ = 2;
  EXPECT_EQ(resume(), (Names{"reader", "writer"}));
}

// Otherwise reads that follow each other without a pause would take all the memory for ever.
TEST_F(Lines, AWriterThatReadsAloneKeepOutIsNotPassedAnyMore) {
  const uint64_t one = 1, two = 2;
  free_ = 1;
  reading_ = 4;
  add(Kind::kWriter, "writer", two);
  EXPECT_EQ(resume(), Names{});
  EXPECT_FALSE(waiters_.may_take_now(Kind::kReader));
  add(Kind::kReader, "reader", one);
  EXPECT_EQ(resume(), Names{});  // although it would find what it lacks
  free_ = 2;                     // the first of the reads has ended
  reading_ = 3;
  EXPECT_EQ(resume(), Names{"writer"});
  EXPECT_EQ(waiters_.count(), 1u);
  free_ = 1;
  EXPECT_EQ(resume(), Names{"reader"});
}

// Waiting for the writer would not help it, and a restore would go at the speed at which the volume takes written bytes.
TEST_F(Lines, AWriterThatWaitsForTheVolumeIsPassed) {
  const uint64_t one = 1, two = 2;
  free_ = 1;
  reading_ = 0;
  add(Kind::kWriter, "writer", two);
  EXPECT_EQ(resume(), Names{});
  EXPECT_TRUE(waiters_.may_take_now(Kind::kReader));
  add(Kind::kReader, "reader", one);
  EXPECT_EQ(resume(), Names{"reader"});
}

// The writer seemed to have room, and finds none: others go on.
TEST_F(Lines, AWriterGoesFirstForATenthOfASecondAtATime) {
  const uint64_t one = 1, two = 2;
  free_ = 1;
  reading_ = 4;
  add(Kind::kWriter, "writer", two);
  add(Kind::kReader, "reader", one);
  EXPECT_EQ(resume(), Names{});
  EXPECT_EQ(resume(), Names{});
  now_ns_ += 100'000'000;
  EXPECT_EQ(resume(), Names{"reader"});
}

TEST_F(Lines, AReaderThatCameBeforeThatWriterGoesBeforeIt) {
  const uint64_t one = 1, two = 2;
  add(Kind::kReader, "reader", one);
  add(Kind::kWriter, "writer", two);
  EXPECT_EQ(resume(), Names{});
  free_ = 1;
  reading_ = 4;
  EXPECT_EQ(resume(), Names{"reader"});
}

TEST_F(Lines, ARequestThatNothingCanHelpIsToldOnce) {
  const uint64_t much = 10;
  add(Kind::kReader, "reader", much);
  ::testing::internal::CaptureStderr();
  resume();
  now_ns_ = 11'000'000'000;
  resume();  // something is being written: it may come back
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  nothing_moves_ = true;
  ::testing::internal::CaptureStderr();
  resume();
  resume();
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("object 1: a read has waited 11 s for 10"), std::string::npos) << told;
  EXPECT_EQ(told.find("a read has waited"), told.rfind("a read has waited")) << told;
}

}  // namespace memory_waiters_test
}  // namespace kvcachefs

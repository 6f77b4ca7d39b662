#include "store/tree/stale_opens.h"

#include <gtest/gtest.h>

#include <memory>

namespace kvcachefs {
namespace stale_opens_test {

constexpr ObjectId kHere{10};
constexpr uint32_t kThread = 7, kOther = 8;
constexpr int64_t kSecondNs = 1'000'000'000;

struct StaleOpensTest : ::testing::Test {
  ManualClock clock{kSecondNs};
  StaleOpens stale{clock};
  StaleOpens::Released released;
  ObjectPtr object = std::make_shared<Object>(ObjectId{100}, Attributes{});
  ObjectPtr other = std::make_shared<Object>(ObjectId{101}, Attributes{});
};

TEST_F(StaleOpensTest, TheRepetitionIsKnownOnceAndByItsThreadOnly) {
  stale.tell(kThread, {.open = true, .write = true}, released);
  EXPECT_FALSE(stale.told(kOther));
  EXPECT_FALSE(stale.looked_again(kOther, object).repeats);
  const auto told = stale.note_lookup(kThread, kHere, "a", true, released);
  ASSERT_TRUE(told);
  EXPECT_TRUE(told->write);
  EXPECT_FALSE(told->truncate);
  EXPECT_TRUE(stale.looked_again(kThread, object).repeats);
  EXPECT_FALSE(stale.knows(kThread));
  EXPECT_FALSE(stale.looked_again(kThread, object).repeats);
  EXPECT_TRUE(released.empty());
}

TEST_F(StaleOpensTest, WhatTheLookupFoundIsKeptUntilTheOpen) {
  stale.tell(kThread, {.open = true}, released);
  stale.note_lookup(kThread, kHere, "a", true, released);
  stale.keep(kThread, object, released);
  EXPECT_TRUE(released.empty());
  stale.keep(kThread, object, released);  // it looks twice: counted twice, kept once
  EXPECT_EQ(released, StaleOpens::Released{object});
  released.clear();
  stale.keep(kThread, other, released);
  EXPECT_EQ(released, StaleOpens::Released{object});
  EXPECT_EQ(stale.looked_again(kThread, other).kept, other);
}

TEST_F(StaleOpensTest, NothingIsKeptForAThreadThatWasNotTold) {
  stale.keep(kThread, object, released);
  EXPECT_EQ(released, StaleOpens::Released{object});
}

TEST_F(StaleOpensTest, ACallThatIsNoOpenIsRepeatedByWhatItFound) {
  EXPECT_TRUE(stale.tell_once(kThread, false, released, {}));
  stale.note_lookup(kThread, kHere, "a", true, released);
  stale.keep(kThread, object, released);
  const auto repeated = stale.looked_again(kThread, other);
  EXPECT_FALSE(repeated.repeats);
  EXPECT_EQ(repeated.kept, object);
}

// As READLINK, where the link leads to a file that its node, a peer, changes between the lookup and the open.
TEST_F(StaleOpensTest, ACallThatIsNoOpenIsRepeatedAlsoByWhatBecameOfWhatItFound) {
  const ObjectId id = ObjectId::make(1, 1, 100);
  const auto found = std::make_shared<Object>(id, Attributes{}), now = std::make_shared<Object>(id, Attributes{});
  EXPECT_TRUE(stale.tell_once(kThread, false, released, {}));
  EXPECT_FALSE(stale.repeats_open(kThread, id)) << "nothing was looked up";
  stale.note_lookup(kThread, kHere, "a", true, released);
  stale.keep(kThread, found, released);
  EXPECT_TRUE(stale.repeats_open(kThread, id));
  EXPECT_FALSE(stale.repeats_open(kOther, id));
  const auto repeated = stale.looked_again(kThread, now);
  EXPECT_TRUE(repeated.repeats);
  EXPECT_EQ(repeated.kept, found);
  EXPECT_FALSE(stale.repeats_open(kThread, id));
}

TEST_F(StaleOpensTest, AfterACallThatIsNoOpenAFileOfThisNodeIsOpenedAsItIsNow) {
  EXPECT_TRUE(stale.tell_once(kThread, false, released, {}));
  stale.note_lookup(kThread, kHere, "a", true, released);
  stale.keep(kThread, object, released);
  EXPECT_FALSE(stale.repeats_open(kThread, object->id));
}

TEST_F(StaleOpensTest, AnOpenIsRepeatedByWhatItFoundOrBlindly) {
  EXPECT_FALSE(stale.repeats_open(kThread, object->id));
  stale.tell(kThread, {.open = true}, released);
  EXPECT_TRUE(stale.repeats_open(kThread, object->id));
  clock.advance_ns(kSecondNs);
  EXPECT_FALSE(stale.repeats_open(kThread, object->id)) << "a blind repetition comes at once";
  stale.note_lookup(kThread, kHere, "a", true, released);
  stale.keep(kThread, object, released);
  EXPECT_TRUE(stale.repeats_open(kThread, object->id));
  EXPECT_FALSE(stale.repeats_open(kThread, other->id));
  clock.advance_ns(10 * kSecondNs);
  EXPECT_FALSE(stale.repeats_open(kThread, object->id));
}

TEST_F(StaleOpensTest, WhereTheNameIsGoneTheNextNameIsAnotherCall) {
  stale.tell(kThread, {.open = true}, released);
  EXPECT_TRUE(stale.note_lookup(kThread, kHere, "a", false, released));
  EXPECT_TRUE(stale.note_lookup(kThread, kHere, "a", true, released));  // the kernel may look twice
  EXPECT_TRUE(stale.note_lookup(kThread, kHere, "a", false, released));
  EXPECT_FALSE(stale.note_lookup(kThread, kHere, "b", true, released));
  EXPECT_FALSE(stale.knows(kThread));
}

TEST_F(StaleOpensTest, ABlindRepetitionIsNotToldAgain) {
  EXPECT_TRUE(stale.tell_unless_blind(kThread, {.open = true}, released));
  EXPECT_FALSE(stale.tell_unless_blind(kThread, {.open = true}, released));
  EXPECT_TRUE(stale.tell_unless_blind(kThread, {.open = true}, released));  // another call
  clock.advance_ns(kSecondNs);
  EXPECT_TRUE(stale.tell_unless_blind(kThread, {.open = true}, released));
  stale.note_lookup(kThread, kHere, "a", true, released);
  EXPECT_TRUE(stale.tell_unless_blind(kThread, {.open = true}, released));  // it looked: not a blind repetition
}

TEST_F(StaleOpensTest, ARepeatedCallThatDoesNotFindTheNameIsNotToldAgain) {
  EXPECT_TRUE(stale.tell_once(kThread, true, released, {}));
  stale.note_lookup(kThread, kHere, "a", false, released);
  EXPECT_FALSE(stale.tell_once(kThread, true, released, {}));
  EXPECT_TRUE(stale.tell_once(kThread, true, released, {}));
}

TEST_F(StaleOpensTest, ACallToCreateAFileAfterOneThatFoundSomethingIsALaterOne) {
  EXPECT_TRUE(stale.tell_once(kThread, true, released, {.open = true}));
  stale.note_lookup(kThread, kHere, "a", true, released);  // a link that leads nowhere: no open comes
  EXPECT_TRUE(stale.tell_once(kThread, true, released, {.open = true}));
  stale.note_lookup(kThread, kHere, "b", false, released);
  EXPECT_FALSE(stale.tell_once(kThread, true, released, {.open = true}));
}

TEST_F(StaleOpensTest, WhoDoesNotRepeatInTimeIsForgotten) {
  stale.tell(kThread, {.open = true}, released);
  stale.keep(kThread, object, released);
  stale.tell(kOther, {}, released);
  clock.advance_ns(kSecondNs);
  EXPECT_TRUE(stale.told(kThread));
  EXPECT_FALSE(stale.told(kOther));
  stale.expire(false, released);
  EXPECT_TRUE(stale.knows(kThread));
  EXPECT_FALSE(stale.knows(kOther));
  EXPECT_TRUE(released.empty());
  clock.advance_ns(9 * kSecondNs);
  stale.expire(false, released);
  EXPECT_FALSE(stale.knows(kThread));
  EXPECT_EQ(released, StaleOpens::Released{object});
}

TEST_F(StaleOpensTest, ThreadsAreBoundedAndWhatWasKeptForThemIsReleased) {
  stale.tell(1, {.open = true}, released);
  stale.keep(1, object, released);
  for (uint32_t thread = 2; thread < 20'000; ++thread) stale.tell(thread, {.open = true}, released);
  stale.expire(true, released);
  EXPECT_EQ(released, StaleOpens::Released{object});
}

TEST_F(StaleOpensTest, ThreadsThatAreNotVisibleAreKnownAsOneForASecond) {
  EXPECT_FALSE(stale.unknown_was_told());
  stale.tell(0, {.open = true}, released);
  EXPECT_TRUE(stale.unknown_was_told());
  EXPECT_FALSE(stale.told(0));
  EXPECT_FALSE(stale.looked_again(0, object).repeats);
  clock.advance_ns(kSecondNs);
  EXPECT_FALSE(stale.unknown_was_told());
}

}  // namespace stale_opens_test
}  // namespace kvcachefs

#include "store/cache/clean_bodies.h"

#include <gtest/gtest.h>

#include <string>

namespace kvcachefs {
namespace clean_bodies_test {

ObjectPtr object(uint64_t number) { return std::make_shared<Object>(ObjectId{number}, Attributes{}); }

TEST(CleanBodies, TheOneUsedLongestAgoGoesFirst) {
  CleanBodies bodies;
  for (uint64_t number : {1, 2, 3}) bodies.add(object(number));
  bodies.note_used(ObjectId{1});
  bodies.note_used(ObjectId{9});  // is not in the list
  EXPECT_EQ(bodies.take()->id, ObjectId{2});
  EXPECT_EQ(bodies.take()->id, ObjectId{3});
  EXPECT_EQ(bodies.take()->id, ObjectId{1});
  EXPECT_EQ(bodies.take(), nullptr);
}

TEST(CleanBodies, AnObjectThatWasGotAgainTakesThePlaceOfTheOneBefore) {
  CleanBodies bodies;
  bodies.add(object(1));
  const ObjectPtr again = object(1);
  bodies.add(again);
  EXPECT_EQ(bodies.count(), 1u);
  EXPECT_EQ(bodies.take(), again);
}

// An ending object gives its blocks back, which takes the pool's lock. Here its deleter takes the list's lock: if it were held, this would deadlock.
TEST(CleanBodies, AnObjectWhosePlaceIsTakenEndsWithoutTheLockOfTheList) {
  CleanBodies bodies;
  size_t seen = 0;
  bodies.add(ObjectPtr(new Object(ObjectId{1}, Attributes{}), [&](const Object* ended) {
    seen = bodies.count();
    delete ended;
  }));
  bodies.add(std::make_shared<Object>(ObjectId{1}, Attributes{}));
  EXPECT_EQ(seen, 1u);
}

// Both states of a peer's file have clean blocks: each is dropped in its turn.
TEST(CleanBodies, AnOutdatedObjectStaysBesideTheOneThatWasGotAgain) {
  CleanBodies bodies;
  const ObjectPtr before = object(1), now = object(1);
  before->attributes.xattrs = {{"user.a", std::string(10'000, 'x')}};
  bodies.add(before);
  before->outdated = ObjectId{77};
  bodies.add(now);
  EXPECT_EQ(bodies.count(), 2u);
  EXPECT_EQ(bodies.xattr_bytes(), 10'006u);
  bodies.add(before);
  EXPECT_EQ(bodies.count(), 2u);
  EXPECT_EQ(bodies.next_with_many_xattrs(), before);
  EXPECT_EQ(bodies.take(), now);
  bodies.remove(before);
  EXPECT_EQ(bodies.count(), 0u);
  EXPECT_EQ(bodies.xattr_bytes(), 0u);
}

TEST(CleanBodies, AForgottenObjectDoesNotEnter) {
  CleanBodies bodies;
  const ObjectPtr gone = object(1);
  {
    const auto lock = gone->lock();
    gone->forgotten = true;
  }
  bodies.add(gone);
  EXPECT_EQ(bodies.count(), 0u);
}

TEST(CleanBodies, ItKnowsWhichHaveManyXattrs) {
  CleanBodies bodies;
  const ObjectPtr few = object(1), many = object(2), more = object(3);
  few->attributes.xattrs = {{"user.a", std::string(100, 'x')}};
  many->attributes.xattrs = {{"user.a", std::string(10'000, 'x')}};
  for (const ObjectPtr& each : {few, many, more}) bodies.add(each);
  EXPECT_EQ(bodies.xattr_bytes(), 10'006u);
  EXPECT_EQ(bodies.next_with_many_xattrs(), many);
  more->attributes.xattrs = {{"user.b", std::string(20'000, 'x')}};
  bodies.note_xattrs(*more);
  EXPECT_EQ(bodies.xattr_bytes(), 30'012u);
  EXPECT_EQ(bodies.count_with_many_xattrs(), 2u);
  EXPECT_EQ(bodies.next_with_many_xattrs(), many);
  EXPECT_EQ(bodies.next_with_many_xattrs(), more);
  EXPECT_EQ(bodies.next_with_many_xattrs(), many);
  more->attributes.xattrs.clear();
  bodies.note_xattrs(*more);
  EXPECT_EQ(bodies.count_with_many_xattrs(), 1u);
  bodies.note_xattrs(*object(4));  // is not in the list
  bodies.remove(object(2));  // another object with that id
  EXPECT_EQ(bodies.count(), 3u);
  bodies.remove(more);
  EXPECT_EQ(bodies.count(), 2u);
  EXPECT_EQ(bodies.take(), few);
  EXPECT_EQ(bodies.take(), many);
  EXPECT_EQ(bodies.xattr_bytes(), 0u);
  EXPECT_EQ(bodies.next_with_many_xattrs(), nullptr);
}

}  // namespace clean_bodies_test
}  // namespace kvcachefs

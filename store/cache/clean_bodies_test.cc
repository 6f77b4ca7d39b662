#include "store/cache/clean_bodies.h"

#include <gtest/gtest.h>

namespace kvcachefs {
namespace clean_bodies_test {

ObjectPtr object(uint64_t number) { return std::make_shared<Object>(ObjectId{number}, Attributes{}); }

TEST(CleanBodies, TheOneUsedLongestAgoGoesFirst) {
  CleanBodies bodies;
  for (uint64_t number : {1, 2, 3}) bodies.add(object(number));
  bodies.note_used(ObjectId{1});
  bodies.note_used(ObjectId{9});  // is not here
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

// It gives its blocks back, which takes the lock of the pool. Here what ends it takes that of the list: were it held, this would wait for ever.
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

}  // namespace clean_bodies_test
}  // namespace kvcachefs

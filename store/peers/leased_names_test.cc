#include "store/peers/leased_names.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvcachefs {
namespace leased_names_test {

using Ids = std::vector<ObjectId>;

ObjectId id(uint32_t ordinal, uint64_t number) { return ObjectId::make(ordinal, 1, number); }

class LeasedNamesTest : public ::testing::Test {
 protected:
  bool add(const std::string& name, ObjectId child, ObjectId member, int64_t until_ns = 100) {
    return names_.add(name, {.child = child, .member = member, .directory = {}, .bytes = 10, .went_ns = 50, .until_ns = until_ns, .most_ns = 200});
  }
  ObjectId found(const Ids& members, const std::string& name) const {
    const auto entry = names_.find(members, name);
    return entry ? entry->child : ObjectId{};
  }
  const ObjectId directory_ = id(1, 1), other_ = id(2, 1);
  LeasedNames names_;
};

TEST_F(LeasedNamesTest, ANameIsFoundInADirectoryThatHasItsMember) {
  EXPECT_TRUE(add("x", id(1, 5), directory_));
  EXPECT_TRUE(add("x", id(2, 5), other_));
  EXPECT_EQ(found({id(0, 9), directory_}, "x"), id(1, 5));
  EXPECT_EQ(found({other_}, "x"), id(2, 5));
  EXPECT_EQ(found({id(0, 9)}, "x"), ObjectId{});
  EXPECT_EQ(found({directory_}, "y"), ObjectId{});
  EXPECT_TRUE(names_.has_name("x"));
  EXPECT_FALSE(names_.has_name("y"));
  size_t named = 0;
  names_.for_each([&](const std::string& name, const LeasedNames::Lease&) { named += name == "x" ? 1 : 0; });
  EXPECT_EQ(named, 2u);
  const auto listed = names_.list(Ids{directory_, other_}, 0, UINT64_MAX);
  ASSERT_EQ(listed.size(), 1u) << "once, where two members had it";
  EXPECT_EQ(listed[0].child, id(1, 5)) << "as a lookup finds it";
  EXPECT_TRUE(names_.remove(id(1, 5)));
  EXPECT_EQ(names_.list(Ids{directory_, other_}, 0, UINT64_MAX)[0].child, id(2, 5));
  EXPECT_EQ(names_.of_node(2), Ids{id(2, 5)});
}

TEST_F(LeasedNamesTest, ThereIsOneOfAFileAndOneOfAName) {
  EXPECT_TRUE(add("x", id(1, 5), directory_));
  EXPECT_FALSE(add("y", id(1, 5), directory_));
  EXPECT_FALSE(add("x", id(1, 6), directory_));
  EXPECT_EQ(names_.size(), 1u);
  EXPECT_EQ(names_.bytes(), 10u);
  EXPECT_TRUE(names_.remove(id(1, 5)));
  EXPECT_FALSE(names_.remove(id(1, 5)));
  EXPECT_TRUE(names_.empty());
  EXPECT_EQ(names_.bytes(), 0u);
}

TEST_F(LeasedNamesTest, AreListedByCookie) {
  for (uint64_t number = 0; number < 50; ++number) ASSERT_TRUE(add(std::to_string(number), id(1, 5 + number), number % 5 == 0 ? other_ : directory_));
  const Ids members{directory_};
  const auto all = names_.list(members, 0, UINT64_MAX);
  ASSERT_EQ(all.size(), 40u);
  for (size_t i = 1; i < all.size(); ++i) EXPECT_LT(all[i - 1].cookie, all[i].cookie);
  EXPECT_EQ(names_.list(members, all[9].cookie, all[19].cookie).size(), 10u);
  EXPECT_TRUE(names_.list(members, all.back().cookie, UINT64_MAX).empty());
  EXPECT_TRUE(names_.list(members, UINT64_MAX, UINT64_MAX).empty());
}

TEST_F(LeasedNamesTest, EndByTheirTimeUnlessTheyAreRenewedAndThenByTheirLast) {
  ASSERT_TRUE(add("x", id(1, 5), directory_));
  ASSERT_TRUE(add("y", id(1, 6), directory_, 120));
  int64_t renewed_ns = 150;
  const auto renew = [&](const LeasedNames::Lease& lease) { return lease.child == id(1, 5) ? renewed_ns : INT64_MIN; };
  EXPECT_EQ(names_.over(99, renew), Ids{});
  EXPECT_EQ(names_.over(100, renew), Ids{});
  EXPECT_EQ(names_.over(120, renew), Ids{id(1, 6)});
  ASSERT_TRUE(names_.remove(id(1, 6)));
  renewed_ns = 1000;
  EXPECT_EQ(names_.over(199, renew), Ids{});
  EXPECT_EQ(names_.over(200, renew), Ids{id(1, 5)});
  EXPECT_EQ(names_.went_before(50), Ids{});
  EXPECT_EQ(names_.went_before(51), Ids{id(1, 5)});
}

}  // namespace leased_names_test
}  // namespace kvcachefs

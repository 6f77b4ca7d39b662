#include "fs/listings.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace kvcachefs {
namespace listings_test {

std::vector<DirectoryItem> names(size_t count, size_t length, uint64_t first_cookie = 1) {
  std::vector<DirectoryItem> items;
  for (size_t i = 0; i < count; ++i) {
    const std::string digits = std::to_string(i);
    items.push_back({digits + std::string(length - digits.size(), 'x'), ObjectId{100 + i}, 0100000, first_cookie + i});
  }
  return items;
}

TEST(ListingPage, GivesWhatItWasMadeOf) {
  const auto items = names(50, 20, 7);
  ListingPage page(6, items);
  uint64_t after = 6;
  for (const DirectoryItem& item : items) {
    ASSERT_FALSE(page.empty());
    EXPECT_TRUE(page.continues(after));
    EXPECT_EQ(page.name(), item.name);
    EXPECT_EQ(page.item().id, item.id);
    EXPECT_EQ(page.item().type_bits, item.type_bits);
    EXPECT_EQ(page.item().cookie, item.cookie);
    page.pass();
    EXPECT_FALSE(page.continues(after)) << "who seeks back gets names as they are now";
    after = item.cookie;
  }
  EXPECT_TRUE(page.empty());
  EXPECT_TRUE(page.continues(after)) << "but there is no more in it";
  EXPECT_EQ(page.bytes(), sizeof(ListingPage)) << "and no memory";
}

TEST(Listings, APageIsThereForTheNextRequestOfItsDirectoryOnly) {
  Listings listings;
  const uint64_t one = listings.open(), other = listings.open();
  ASSERT_NE(one, other);
  EXPECT_FALSE(listings.take(one));
  listings.keep(one, ListingPage(5, names(3, 8)));
  EXPECT_FALSE(listings.take(other));
  const auto page = listings.take(one);
  ASSERT_TRUE(page);
  EXPECT_TRUE(page->continues(5));
  EXPECT_FALSE(listings.take(one)) << "a second request beside it reads its own";
  EXPECT_EQ(listings.bytes(), 0u);
  listings.keep(one, ListingPage(5, names(3, 8)));
  listings.keep(one, ListingPage(9, names(3, 8)));
  EXPECT_TRUE(listings.take(one)->continues(9));
  EXPECT_FALSE(listings.take(one));
  listings.keep(one, ListingPage(5, names(3, 8)));
  listings.close(one);
  EXPECT_EQ(listings.bytes(), 0u);
}

TEST(Listings, AllPagesTogetherAreBoundedAndTheOldestGoFirst) {
  constexpr size_t kMost = 1 << 20, kCount = 200;
  Listings listings(kMost);
  std::vector<uint64_t> opened;
  for (size_t i = 0; i < kCount; ++i) {
    opened.push_back(listings.open());
    listings.keep(opened.back(), ListingPage(i, names(1000, 60)));
    ASSERT_LE(listings.bytes(), kMost);
  }
  EXPECT_FALSE(listings.take(opened.front()));
  EXPECT_FALSE(listings.take(opened.at(kCount / 2)));
  EXPECT_TRUE(listings.take(opened.back()));
  for (const uint64_t each : opened) listings.close(each);
  EXPECT_EQ(listings.bytes(), 0u);
}

TEST(Listings, AmongOpenDirectoriesThoseReadLatelyKeepTheirs) {
  const size_t bytes = ListingPage(0, names(100, 60)).bytes();
  Listings listings(4 * (bytes + 256));
  const uint64_t busy = listings.open();
  listings.keep(busy, ListingPage(0, names(100, 60)));
  for (int i = 0; i < 100; ++i) {
    listings.keep(listings.open(), ListingPage(0, names(100, 60)));
    auto page = listings.take(busy);
    ASSERT_TRUE(page) << i;
    listings.keep(busy, *std::move(page));
  }
}

}  // namespace listings_test
}  // namespace kvcachefs

#include "store/chain/layout_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kvcachefs {
namespace layout_order_test {

ObjectId id(uint64_t n) { return ObjectId{n}; }
ChainKey key(uint64_t n) { return chain_key(ObjectId{9}, std::to_string(n)); }

void announce(Announcements& names, std::vector<uint64_t> order) {
  ChainKey before;
  for (uint64_t n : order) {
    names.note(before, ObjectId{}, key(n), ObjectId{}, 0);
    before = key(n);
  }
}

std::vector<uint64_t> range(uint64_t first, uint64_t end) {
  std::vector<uint64_t> out;
  for (; first < end; ++first) out.push_back(first);
  return out;
}

std::vector<uint64_t> values(const std::vector<ObjectId>& ids) {
  std::vector<uint64_t> out;
  for (ObjectId object : ids) out.push_back(object.value);
  return out;
}

TEST(Announcements, LinksWhenTheObjectsCome) {
  Announcements names;
  names.note(ChainKey{}, ObjectId{}, key(1), id(1), 0);  // present
  names.note(key(1), id(1), key(2), ObjectId{}, 0);
  names.note(key(2), ObjectId{}, key(3), ObjectId{}, 0);
  std::vector<std::pair<ObjectId, ObjectId>> links;
  names.resolve(key(3), id(3), links);
  EXPECT_TRUE(links.empty());
  names.resolve(key(2), id(2), links);
  EXPECT_EQ(links, (std::vector<std::pair<ObjectId, ObjectId>>{{id(1), id(2)}, {id(2), id(3)}}));
  links.clear();
  names.resolve(key(77), id(77), links);
  EXPECT_TRUE(links.empty());
}

TEST(Announcements, ANameThatWasTakenBackAndComesAgainIsNotForgottenAtOnce) {
  Announcements names(4);
  const auto note = [&](uint64_t n) { return names.note(ChainKey{}, ObjectId{}, key(n), ObjectId{}, 0); };
  note(1);
  note(2);
  names.retract(key(1));  // not the last one: it stays in the queue
  note(3);
  note(4);
  EXPECT_TRUE(note(1));
  EXPECT_FALSE(note(1)) << "it is known, and young";
}

TEST(Announcements, WhatIsLeftOfANameThatWasTakenBackDoesNotEndItWhenItComesAgain) {
  Announcements names(4);
  const auto note = [&](uint64_t n) { return names.note(ChainKey{}, ObjectId{}, key(n), ObjectId{}, 0); };
  note(1);
  note(2);
  names.retract(key(1));
  note(1);
  note(3);
  note(4);  // the earlier slot of 1 is given up
  EXPECT_TRUE(names.announced(key(1)));
  note(5);
  EXPECT_FALSE(names.announced(key(2)));
  EXPECT_TRUE(names.announced(key(1)));
  note(6);
  EXPECT_FALSE(names.announced(key(1))) << "its turn has come";
}

TEST(Announcements, ANameThatIsAnnouncedAnewIsForgottenLater) {
  Announcements names(3, 1000);
  for (uint64_t n : {1, 2, 3}) names.note(ChainKey{}, ObjectId{}, key(n), ObjectId{}, 0);
  EXPECT_TRUE(names.note(ChainKey{}, ObjectId{}, key(1), ObjectId{}, 5000));
  names.note(ChainKey{}, ObjectId{}, key(4), ObjectId{}, 5000);
  EXPECT_TRUE(names.announced(key(1)));
  EXPECT_FALSE(names.announced(key(2)));
}

TEST(Announcements, TheFirstAnnouncementHoldsForItsLifetime) {
  Announcements names(100, 1000);
  announce(names, {1, 2, 3});
  names.note(key(3), ObjectId{}, key(2), ObjectId{}, 500);  // the writers ask again, in no order
  EXPECT_EQ(names.previous(key(2)), key(1));
  names.note(key(3), ObjectId{}, key(2), ObjectId{}, 1400);  // the lifetime counts from the last request
  EXPECT_EQ(names.previous(key(2)), key(1));
  names.note(key(3), ObjectId{}, key(2), ObjectId{}, 5000);
  EXPECT_EQ(names.previous(key(2)), key(3));
}

TEST(Announcements, Bounded) {
  Announcements names(50);
  announce(names, range(1, 1000));
  EXPECT_LE(names.size(), 50u);
  EXPECT_TRUE(names.announced(key(999)));
  EXPECT_FALSE(names.announced(key(1)));
}

TEST(LayoutOrder, BlocksWrittenInNoOrderLieInAnnouncedOrder) {
  Announcements names;
  announce(names, range(1, 101));
  std::vector<uint64_t> written = range(1, 101);
  std::shuffle(written.begin(), written.end(), std::mt19937_64(7));
  std::vector<LayoutItem> items;
  for (uint64_t n : written) items.push_back({id(n), key(n), 5, 1, items.size()});
  WriteTails tails;
  const LayoutOrder laid = layout_order(items, names, tails);
  EXPECT_EQ(values(laid.order), range(1, 101));
  EXPECT_TRUE(laid.write_links.empty());  // the announcements tell everything
}

TEST(LayoutOrder, NamesMissingFromTheBatchAreLookedAcross) {
  Announcements names;
  announce(names, range(1, 21));
  std::vector<LayoutItem> items;
  for (uint64_t n : {18, 3, 9, 1, 12}) items.push_back({id(n), key(n), 5, 1, items.size()});
  WriteTails tails;
  EXPECT_EQ(values(layout_order(items, names, tails).order), (std::vector<uint64_t>{1, 3, 9, 12, 18}));
}

TEST(LayoutOrder, TwoPromptsAndABranchStayTogether) {
  Announcements names;
  announce(names, {1, 2, 3, 4});
  announce(names, {11, 12, 13});
  names.note(key(2), ObjectId{}, key(23), ObjectId{}, 0);  // 1 2 23 24
  names.note(key(23), ObjectId{}, key(24), ObjectId{}, 0);
  std::vector<LayoutItem> items;
  for (uint64_t n : {12, 4, 24, 11, 2, 23, 13, 3, 1}) items.push_back({id(n), key(n), 5, 1, items.size()});
  WriteTails tails;
  const auto order = values(layout_order(items, names, tails).order);
  EXPECT_EQ(order, (std::vector<uint64_t>{11, 12, 13, 1, 2, 23, 24, 3, 4}));  // 23 came before 3
}

TEST(LayoutOrder, IndependentWritersAreKeptApartAndAPoolIsOne) {
  Announcements names;
  WriteSequences sequences;
  WriteTails tails;
  std::vector<LayoutItem> items;
  uint64_t arrival = 0;
  const auto create = [&](uint64_t n, uint64_t thread, int64_t now) {
    items.push_back({id(n), key(n), 5, sequences.on_create(5, thread, now), arrival++});
  };
  // Threads 1 and 2 began 20 ms apart: two requests.
  for (uint64_t i = 0; i < 10; ++i) {
    create(100 + i, 1, static_cast<int64_t>(i) * 4'000'000);
    if (i >= 5) create(200 + i, 2, static_cast<int64_t>(i) * 4'000'000 + 1);
  }
  // Threads 11 to 14 began together: one list.
  for (uint64_t i = 0; i < 12; ++i) create(300 + i, 11 + i % 4, 500'000'000 + static_cast<int64_t>(i) * 400'000);
  const LayoutOrder laid = layout_order(items, names, tails);
  std::vector<uint64_t> expected = range(100, 110);
  for (uint64_t n : range(205, 210)) expected.push_back(n);
  for (uint64_t n : range(300, 312)) expected.push_back(n);
  EXPECT_EQ(values(laid.order), expected);
  EXPECT_EQ(laid.write_links.size(), 9u + 4u + 11u);
}

TEST(LayoutOrder, WriteOrderGoesOnAcrossFlushes) {
  Announcements names;
  WriteTails tails;
  std::vector<LayoutItem> first{{id(1), key(1), 5, 3, 0}, {id(2), key(2), 5, 3, 1}};
  std::vector<LayoutItem> second{{id(3), key(3), 5, 3, 2}, {id(9), key(9), 6, 3, 3}};
  layout_order(first, names, tails);
  const LayoutOrder laid = layout_order(second, names, tails);
  EXPECT_EQ(laid.write_links, (std::vector<std::pair<ObjectId, ObjectId>>{{id(2), id(3)}}));
}

TEST(LayoutOrder, EveryItemComesOutOnceWhateverWasAnnounced) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 200; ++round) {
    Announcements names(64);
    for (int i = 0; i < 100; ++i) {  // rings and dangling names included
      names.note(key(random() % 40), ObjectId{}, key(random() % 40), ObjectId{}, i * int64_t{30'000'000'000});
    }
    std::vector<LayoutItem> items;
    for (uint64_t n : range(0, 40))
      items.push_back({id(n + 1), random() % 4 ? key(n) : ChainKey{}, random() % 2, random() % 3, random() % 50});
    WriteTails tails;
    auto order = values(layout_order(items, names, tails).order);
    std::sort(order.begin(), order.end());
    ASSERT_EQ(order, range(1, 41));
  }
}

}  // namespace layout_order_test
}  // namespace kvcachefs

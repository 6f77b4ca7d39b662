#include "store/evict/key_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace kvcachefs::evict {
namespace key_index_test {

// Few keys and slots, so that slots get other keys and keys get other slots, again and again, right after they were found.
TEST(KeyIndexTest, FindsWhatAMapFinds) {
  constexpr uint64_t kKeys = 100;
  std::mt19937_64 random(7);
  KeyIndex index;
  std::vector<UnitKey> keys(kKeys);  // by slot
  std::map<uint64_t, uint32_t> expected;
  const auto key_of = [&](uint32_t slot) { return keys[slot]; };
  std::vector<uint32_t> free;
  for (uint32_t slot = 0; slot < kKeys; ++slot) free.push_back(slot);
  for (int round = 0; round < 100'000; ++round) {
    const UnitKey key{1 + random() % kKeys};
    const auto known = expected.find(key.value);
    ASSERT_EQ(index.find(key, key_of), known == expected.end() ? kNoSlot : known->second) << round;
    if (random() % 3 == 0) continue;
    if (known == expected.end()) {
      std::swap(free[random() % free.size()], free.back());
      keys[free.back()] = key;
      index.insert(key, free.back(), key_of);
      expected[key.value] = free.back();
      free.pop_back();
    } else {
      index.erase(key, key_of);
      keys[known->second] = {};
      free.push_back(known->second);
      expected.erase(known);
    }
  }
}

}  // namespace key_index_test
}  // namespace kvcachefs::evict

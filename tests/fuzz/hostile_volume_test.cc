// Whole volumes with hostile journals and checkpoints, always the same ones. KVCACHEFS_HOSTILE_VOLUMES: how many; the seed of one
// that breaks a property is printed before it is tried.
#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

#include "store/journal/test_records.h"
#include "tests/fuzz/hostile_volume.h"

namespace kvcachefs {
namespace hostile_volume_test {

TEST(HostileVolume, DoesNoHarm) {
  const char* wanted = std::getenv("KVCACHEFS_HOSTILE_VOLUMES");
  const char* first = std::getenv("KVCACHEFS_HOSTILE_FIRST");
  const uint64_t from = first != nullptr ? std::strtoull(first, nullptr, 10) : 1;
  const uint64_t volumes = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 100;
  for (uint64_t seed = from; seed < from + volumes; ++seed) {
    std::fprintf(stderr, "volume %llu\n", static_cast<unsigned long long>(seed));
    TestRandom random(seed);
    Bytes input(20 + random.below(600));
    for (std::byte& byte : input) byte = static_cast<std::byte>(random.next() >> 8);
    fuzz_hostile_volume(input);
  }
}

}  // namespace hostile_volume_test
}  // namespace kvcachefs

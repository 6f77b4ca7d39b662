// Random values of the persistent shapes, for the tests of this room; the same seed gives the same values everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/base/records.h"
#include "store/journal/journal.h"

namespace kvcachefs {

// splitmix64: standard distributions differ between libraries, and golden files must not.
class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t bound) { return next() % bound; }
  bool one_in(uint64_t n) { return below(n) == 0; }
  // All magnitudes equally likely: uniform in the number of bits.
  uint64_t any() { return next() >> below(64); }

 private:
  uint64_t state_;
};

std::string random_name(TestRandom& random);
ObjectId random_id(TestRandom& random);
ObjectRecord random_object(TestRandom& random);
Record random_record(TestRandom& random);
Batch random_batch(TestRandom& random);

// Like those of vLLM's file tier: a 64 KiB packed body, and its name of 64 hex digits and ".bin".
ObjectRecord chunk_object(uint64_t number);
NameRecord chunk_name(uint64_t number);

FileIdentity test_identity(uint32_t epoch = 3);

bool operator==(const PutRecord& a, const PutRecord& b);
bool operator==(const AttributesRecord& a, const AttributesRecord& b);
bool operator==(const NameRecord& a, const NameRecord& b);
bool operator==(const UnnameRecord& a, const UnnameRecord& b);
bool operator==(const MoveRecord& a, const MoveRecord& b);
bool operator==(const TouchRecord& a, const TouchRecord& b);
bool operator==(const DamagedRecord& a, const DamagedRecord& b);
bool operator==(const SuccessorsRecord& a, const SuccessorsRecord& b);
bool operator==(const SyncedRecord& a, const SyncedRecord& b);
bool operator==(const StatementRecord& a, const StatementRecord& b);
bool operator==(const SeenRecord& a, const SeenRecord& b);
bool operator==(const EndsRecord& a, const EndsRecord& b);
bool operator==(const NextRecord& a, const NextRecord& b);
bool same_batch(const Batch& a, const Batch& b);

}  // namespace kvcachefs

// What a new body needs to find its place among others.
#pragma once

#include <cstdint>

#include "store/chain/stream.h"

namespace kvcachefs {

struct ChainOrigin {
  ChainKey key;
  uint64_t stem = 0, sequence = 0, arrival = 0;
  bool announced = false;  // the name it was created under: published() is told of it as well
};

}  // namespace kvcachefs

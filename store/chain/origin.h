// The data that a new body needs to find its position among others.
#pragma once

#include <cstdint>

#include "store/chain/stream.h"

namespace kvcachefs {

struct ChainOrigin {
  ChainKey key;
  uint64_t stem = 0, sequence = 0, arrival = 0;
  bool announced = false;  // the name it was created under was announced: call published() for it as well
};

}  // namespace kvcachefs

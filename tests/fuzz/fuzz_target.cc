// One libFuzzer target; KVCACHEFS_FUZZ_CASE names the function.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/fuzz_cases.h"
#include "tests/fuzz/hostile_volume.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvcachefs::KVCACHEFS_FUZZ_CASE({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}

// What a file system does at its best: O_DIRECT io_uring reads and writes of 1 MiB, eight in flight, on huge pages.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "store/base/result.h"

namespace kvcachefs {

struct RawRates {
  double write_gib_s = 0;  // a new file, until the last write has completed
  double read_gib_s = 0;
  double write_cpu_s_per_gib = 0;
  double read_cpu_s_per_gib = 0;
};

// Writes a new file in `directory` from `buffer` (whole MiBs), reads it back and checks every byte; the file has no
// name afterwards, nor in between where the file system takes O_TMPFILE.
Result<RawRates> measure_raw(const std::string& directory, std::span<std::byte> buffer);

// Where the bytes of `directory` end up: of a kvcachefs the directory that its volume lies in, of others itself.
// Nothing but an error tells that the volume of a kvcachefs is not known.
Result<std::string> raw_directory(const std::string& directory, const std::string& volume_option);

}  // namespace kvcachefs

// The best rate of a file system: O_DIRECT io_uring reads and writes of 1 MiB, eight in flight, on huge pages.
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

// Writes a new file in `directory` from `buffer` (whole MiBs), reads it back and checks every byte. The file has no
// name afterwards; if the file system supports O_TMPFILE, it never has one.
Result<RawRates> measure_raw(const std::string& directory, std::span<std::byte> buffer);

// The directory where the bytes of `directory` are stored: for a kvcachefs the directory that contains its volume, for others `directory` itself.
// Returns an error if the volume of a kvcachefs is not known.
Result<std::string> raw_directory(const std::string& directory, const std::string& volume_option);

}  // namespace kvcachefs

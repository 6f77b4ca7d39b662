// How much of the volume a node's part takes, by the blocks of its files: for a node that does not tell this itself. Counts a piece at a time,
// for a part may have millions of files. One thread. Blocks on the volume.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/base/clock.h"
#include "store/base/result.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// Blocks of the files and directories below a directory of this machine; what cannot be looked at is left out.
uint64_t allocated_below(const std::string& directory);

class PartSize {
 public:
  explicit PartSize(const std::string& node) : directories_{"nodes/" + node} {}
  // Counts for `most_ns`, or lists one directory. Returns the sum when all was counted; files that went meanwhile count nothing.
  Result<std::optional<uint64_t>> go_on(Volume& volume, const Clock& clock, int64_t most_ns);

 private:
  std::vector<std::string> directories_;  // still to be listed
  std::vector<std::string> files_;        // still to be looked at
  uint64_t bytes_ = 0;
};

}  // namespace kvcachefs

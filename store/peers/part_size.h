// How much of the volume a node's part takes, by the blocks of its files: for a node that does not say so itself. Looked at a piece at a time,
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

// What the files and directories below one of this machine take; what cannot be looked at is left out.
uint64_t allocated_below(const std::string& directory);

class PartSize {
 public:
  explicit PartSize(const std::string& node) : directories_{"nodes/" + node} {}
  // Goes on for so long, or for one listing. The sum, when all was looked at; what went meanwhile is nothing.
  Result<std::optional<uint64_t>> go_on(Volume& volume, const Clock& clock, int64_t most_ns);

 private:
  std::vector<std::string> directories_;  // that are to be listed
  std::vector<std::string> files_;        // that are to be looked at
  uint64_t bytes_ = 0;
};

}  // namespace kvcachefs

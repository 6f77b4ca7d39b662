// Keeps the file VOLUME of a mounted volume there: without it the next mount would be refused.
#pragma once

#include <array>
#include <optional>

#include "store/base/bytes.h"
#include "store/base/result.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// Used by one thread. Blocks on the volume.
class KeptVolumeFile {
 public:
  KeptVolumeFile(Volume& volume, const std::array<std::byte, 16>& uuid) : volume_(volume), uuid_(uuid) {}

  // The first call reads the file. Later ones look at it, and put it back as it was if it was removed or damaged. An error, until it is over: the file is of another
  // volume or of a newer program, and is left alone; or it could not be put back. Call while the volume's directories are known to be there.
  Status look();

 private:
  Status put_back(const char* what, bool replaces);

  Volume& volume_;
  const std::array<std::byte, 16> uuid_;
  Bytes content_;                 // as it was read; empty: it was not read yet
  std::optional<FileInfo> seen_;  // of the file when it last had that content
};

}  // namespace kvcachefs

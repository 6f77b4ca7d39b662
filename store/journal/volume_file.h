// The file VOLUME at the root of a volume: what makes a directory ours. Binary, one block.
#pragma once

#include <array>
#include <cstdint>

#include "store/base/bytes.h"
#include "store/base/result.h"
#include "store/base/types.h"
#include "store/base/units.h"
#include "store/journal/file_header.h"

namespace kvcachefs {

inline constexpr const char* kVolumeFileName = "VOLUME";
inline constexpr size_t kVolumeFileBytes = kBlockBytes;

struct VolumeHeader {
  std::array<std::byte, 16> uuid{};
  uint32_t format_version = kFormatVersion;  // set by decode; encode always writes the version of this program
  Stamp created_stamp;
  // Parameters that the layout depends on. Fixed, recorded so that a change is noticed.
  uint32_t pack_alignment_bytes = static_cast<uint32_t>(kBlockBytes);
  uint32_t unit_bytes = static_cast<uint32_t>(kUnitBytes);
  // What all who use the volume must know of; none yet. Fixed when the volume is made, as all of this: clients cache the file.
  uint64_t features = 0;
  bool operator==(const VolumeHeader&) const = default;
};

Bytes encode_volume_file(const VolumeHeader& header);
// The content of the file, whole. kVersion: a format version, parameters or features that this program does not know.
Result<VolumeHeader> decode_volume_file(ByteSpan content);

}  // namespace kvcachefs

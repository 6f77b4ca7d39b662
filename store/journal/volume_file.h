// The file VOLUME at the root of a volume, which makes a directory a volume of ours. Binary, one block.
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
  // Parameters of the layout. Fixed; recorded so that a change is detected.
  uint32_t pack_alignment_bytes = static_cast<uint32_t>(kBlockBytes);
  uint32_t unit_bytes = static_cast<uint32_t>(kUnitBytes);
  // Bits that every user of the volume must know; none yet. Fixed when the volume is made, like the whole file, because clients cache it.
  uint64_t features = 0;
  bool operator==(const VolumeHeader&) const = default;
};

Bytes encode_volume_file(const VolumeHeader& header);
// `content`: the whole file. kVersion: a format version, parameters or features that this program does not know.
Result<VolumeHeader> decode_volume_file(ByteSpan content);

}  // namespace kvcachefs

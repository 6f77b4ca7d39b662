// Limits of files in a mount: checked before a client's change is accepted, and for every record that is read back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "store/base/units.h"

namespace kvcachefs {

inline constexpr uint64_t kMaxFileBytes = uint64_t{1} << 50;  // 1 PiB: beyond any chunk, pool or slab
// All checksums of a body are in one record, and a batch of records has to fit a frame of the journal: 16 MiB of 32.
inline constexpr uint64_t kMaxSealedBytes = 512 * kGiB;
inline constexpr size_t kMaxNameBytes = 255;
inline constexpr size_t kMaxSymlinkBytes = 4095;             // the kernel's PATH_MAX, without its NUL
inline constexpr size_t kMaxXattrNameBytes = 255;
inline constexpr size_t kMaxXattrBytes = 64 * kKiB;          // one value; the kernel's own limit
inline constexpr size_t kMaxXattrTotalBytes = 256 * kKiB;    // all of an object

}  // namespace kvcachefs

// Maps a chunk's name to its unit. Pure functions that know no client's naming scheme: the longest run of eight or more hexadecimal or
// decimal digits in a name counts as the content hash, and every other number as a field (rank, layer, group, size). A name without such a
// run is a unit of its own.
#pragma once

#include <string_view>

#include "store/evict/types.h"

namespace kvcachefs::evict {

struct UnitName {
  UnitKey unit;
  StemKey stem;
  bool operator==(const UnitName&) const = default;
};

inline constexpr StemKey kRootStem{0x6576696374ULL};

// The stem of a directory below `parent`. Directories that only spread names out ("3f", "a07", "1c_g0") and numbers in directory names
// ("_r3") do not separate models.
StemKey directory_stem(StemKey parent, std::string_view name);
// `name` is the last component of a path. A sidecar ("<name>.metadata") belongs to the unit of its body.
UnitName unit_name(StemKey directory, std::string_view name);
// The same for a whole path, relative to the mount ("a/b/name").
UnitName unit_of_path(std::string_view path);

}  // namespace kvcachefs::evict

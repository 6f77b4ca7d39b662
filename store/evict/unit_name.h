// From the name of a chunk to its unit. Pure functions that know no client's grammar: the longest run of hexadecimal or
// decimal digits in a name, of eight or more, is taken for the content hash, and every other number for a field (rank,
// layer, group, size). A name without such a run is a unit of its own.
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

// The stem of a directory below `parent`. Directories that only spread names out ("3f", "a07", "1c_g0") and numbers in
// their names ("_r3") do not tell models apart.
StemKey directory_stem(StemKey parent, std::string_view name);
// `name` is the last component of a path. A sidecar ("<name>.metadata") is of the unit of its body.
UnitName unit_name(StemKey directory, std::string_view name);
// The same for a whole path, relative to the mount ("a/b/name").
UnitName unit_of_path(std::string_view path);

}  // namespace kvcachefs::evict

// The ordinal of each peer on this machine's mounts, kept over restarts because ids of objects that clients know contain it. A small file on a local
// disk; without it all ordinals are given anew.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "store/base/result.h"

namespace kvcachefs {

using Ordinals = std::map<std::string, uint32_t>;  // by node

std::string encode_ordinals(const Ordinals& ordinals);
// kCorrupt: the text is not what encode_ordinals() makes.
Result<Ordinals> decode_ordinals(std::string_view text);

// Empty where there is no file. The directory may lie in a volume, so read and write follow no link, and anything but a plain file in a plain
// directory is an error that names it.
Result<Ordinals> read_ordinals(const std::string& path);
// Replaces the file, as a whole or not at all.
Status write_ordinals(const std::string& path, const Ordinals& ordinals);

}  // namespace kvcachefs

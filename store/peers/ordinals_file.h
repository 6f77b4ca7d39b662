// Which number each peer has on this machine's mounts, kept over restarts: ids of objects that clients know hold it. A small file on a local
// disk; without it all are given anew.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "store/base/result.h"

namespace kvcachefs {

using Ordinals = std::map<std::string, uint32_t>;  // by node

std::string encode_ordinals(const Ordinals& ordinals);
// kCorrupt: not as encode_ordinals() made it.
Result<Ordinals> decode_ordinals(std::string_view text);

// Empty where there is no file. The directory may lie in a volume: no link is followed, and what is no plain file in a plain directory is an
// error, which names it, here and below.
Result<Ordinals> read_ordinals(const std::string& path);
// In place of what is there, as a whole or not at all.
Status write_ordinals(const std::string& path, const Ordinals& ordinals);

}  // namespace kvcachefs

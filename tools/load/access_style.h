// The ways in which engines name, probe, write and read their chunks; tools/bench/README.md describes the styles.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/result.h"

namespace kvcachefs {

enum class AccessStyle : uint8_t { kRead, kOdirect, kMmap, kVllm, kLmcacheGds, kSglang };

Result<AccessStyle> parse_access_style(std::string_view text);
std::string_view access_style_name(AccessStyle style);
std::string access_style_list();  // "read, odirect, ..." for help and messages

inline constexpr uint64_t kSidecarBytes = 4096;
inline constexpr uint64_t kProbeAll = std::numeric_limits<uint64_t>::max();

// How many chunks a style probes before it reads any of them (kProbeAll: the whole prefix; 0: it does not probe).
uint64_t probe_batch(AccessStyle style);
// Whether a probe of a prefix goes on after the first absent chunk.
bool probes_past_a_miss(AccessStyle style);
// Size of the file that holds a chunk of this many bytes (headers count).
uint64_t file_bytes(AccessStyle style, uint64_t chunk_bytes);

// A chunk as a file: its path below the directory of the run, and the seed of its content (a function of the path).
struct ChunkName {
  std::string path;
  std::string sidecar;  // empty where the style has none
  uint64_t payload_seed = 0;
};

// `key` stands for the hash of the whole prefix, `rank` for the tensor-parallel rank that stores this part of the chunk.
ChunkName chunk_name(AccessStyle style, uint64_t key, unsigned rank);
// A prefix of `count` chunks in order.
std::vector<ChunkName> chunk_chain(AccessStyle style, uint64_t salt, unsigned rank, size_t count);

}  // namespace kvcachefs

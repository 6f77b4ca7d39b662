#include "tools/load/access_style.h"

#include <array>

#include <fmt/format.h>

#include "tools/load/payload.h"

namespace kvcachefs {
namespace {

struct StyleRow {
  AccessStyle style;
  std::string_view name;
  uint64_t probe_batch;
};
constexpr std::array kStyles = {
    StyleRow{AccessStyle::kRead, "read", 0},
    StyleRow{AccessStyle::kOdirect, "odirect", 0},
    StyleRow{AccessStyle::kMmap, "mmap", 0},
    StyleRow{AccessStyle::kVllm, "vllm", kProbeAll},
    StyleRow{AccessStyle::kLmcacheGds, "lmcache-gds", kProbeAll},
    StyleRow{AccessStyle::kSglang, "sglang", 128},
};

const StyleRow& row(AccessStyle style) { return kStyles[static_cast<size_t>(style)]; }

std::string hex64(uint64_t key) {
  return fmt::format("{:016x}{:016x}{:016x}{:016x}", mix64(key), mix64(key + 1), mix64(key + 2), mix64(key + 3));
}

}  // namespace

Result<AccessStyle> parse_access_style(std::string_view text) {
  for (const StyleRow& candidate : kStyles) {
    if (candidate.name == text) return candidate.style;
  }
  return fail(Code::kInvalid, fmt::format("--style {}: unknown; one of {}", text, access_style_list()));
}

std::string_view access_style_name(AccessStyle style) { return row(style).name; }

std::string access_style_list() {
  std::string list;
  for (const StyleRow& style : kStyles) list.append(list.empty() ? "" : ", ").append(style.name);
  return list;
}

uint64_t probe_batch(AccessStyle style) { return row(style).probe_batch; }

bool probes_past_a_miss(AccessStyle style) { return style == AccessStyle::kVllm; }

uint64_t file_bytes(AccessStyle style, uint64_t chunk_bytes) {
  return style == AccessStyle::kLmcacheGds ? chunk_bytes + kSidecarBytes : chunk_bytes;
}

ChunkName chunk_name(AccessStyle style, uint64_t key, unsigned rank) {
  const std::string hash = hex64(mix64(key) ^ rank);
  const std::string_view h = hash;
  ChunkName name;
  switch (style) {
    case AccessStyle::kRead:
    case AccessStyle::kOdirect:
    case AccessStyle::kMmap: name.path = fmt::format("rank{}/{}/{}.kv", rank, h.substr(0, 2), h); break;
    case AccessStyle::kVllm:
      name.path = fmt::format("bench-model_5f2c00c0ffee_r{}/{}/{}_g0/{}.bin", rank, h.substr(0, 3), h.substr(3, 2), h);
      break;
    case AccessStyle::kLmcacheGds:
      name.path = fmt::format("{}/{}/bench-model@4@{}@{}@bfloat16.kvcache.safetensors", h.substr(0, 2), h.substr(2, 2),
                              rank, h.substr(0, 32));
      name.sidecar = name.path + ".metadata";
      break;
    case AccessStyle::kSglang: name.path = fmt::format("{}_bench-model_{}_4.bin", h, rank); break;
  }
  name.payload_seed = hash_name(name.path);
  return name;
}

std::vector<ChunkName> chunk_chain(AccessStyle style, uint64_t salt, unsigned rank, size_t count) {
  std::vector<ChunkName> chain;
  chain.reserve(count);
  for (size_t i = 0; i < count; ++i) chain.push_back(chunk_name(style, mix64(salt) + i, rank));
  return chain;
}

}  // namespace kvcachefs

// A sidecar is a small file beside a body, `<name>.metadata`, which a client probes and reads in place of the body itself. Such
// probes show which bodies will be read or written next, and in which order.
#pragma once

#include <string_view>

namespace kvcachefs {

// Returns the name of the body that the sidecar `name` would belong to; empty: `name` is no sidecar.
inline std::string_view body_of_sidecar(std::string_view name) {
  constexpr std::string_view kSuffix = ".metadata";
  return name.ends_with(kSuffix) ? name.substr(0, name.size() - kSuffix.size()) : std::string_view{};
}

}  // namespace kvcachefs

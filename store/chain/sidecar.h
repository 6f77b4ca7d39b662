// A sidecar is a small file beside a body, `<name>.metadata`, that a client probes for and reads in place of the body itself.
// Such a probe tells what will be read, or written, next: the bodies, in that order.
#pragma once

#include <string_view>

namespace kvcachefs {

// The name of the body whose sidecar `name` is, if there is such a body; empty: it is no sidecar.
inline std::string_view body_of_sidecar(std::string_view name) {
  constexpr std::string_view kSuffix = ".metadata";
  return name.ends_with(kSuffix) ? name.substr(0, name.size() - kSuffix.size()) : std::string_view{};
}

}  // namespace kvcachefs

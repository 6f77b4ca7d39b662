// The status of a mount as text. Each field is described in fs/STATUS.md.
#pragma once

#include <string>

namespace kvcachefs {

struct Driver;

std::string status_json(Driver& driver);
std::string metrics_text(Driver& driver);  // Prometheus
std::string options_text(Driver& driver);  // name=value lines

}  // namespace kvcachefs

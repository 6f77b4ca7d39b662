#include "store/base/node_name.h"

#include <unistd.h>

#include <algorithm>

namespace kvcachefs {

namespace {
bool may_be_in_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
}
}  // namespace

bool is_node_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNodeNameBytes && name[0] != '.' && std::ranges::all_of(name, may_be_in_name);
}

std::string to_node_name(std::string_view host) {
  std::string name(host.substr(0, kMaxNodeNameBytes));
  std::ranges::replace_if(name, [](char c) { return !may_be_in_name(c); }, '-');
  return is_node_name(name) ? name : "localhost";
}

std::string node_name_of_host() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? to_node_name(name) : "localhost";
}

}  // namespace kvcachefs

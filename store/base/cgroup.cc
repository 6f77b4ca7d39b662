#include "store/base/cgroup.h"

#include <charconv>
#include <fstream>
#include <iterator>
#include <utility>

namespace kvcachefs {

namespace {

// v1 has no value for "none"; it reports a number that no machine has.
constexpr uint64_t kUnlimitedBytes = uint64_t{1} << 60;

void look_at(const std::string& file, CgroupLimit& least) {
  std::ifstream stream(file);
  std::string text;
  if (!std::getline(stream, text)) return;
  uint64_t bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  if (error != std::errc() || bytes >= kUnlimitedBytes || bytes >= least.bytes) return;  // "max"
  least = {bytes, file};
}

// Visits the group and all its ancestors.
template <typename Look>
void climb(const std::string& hierarchy, std::string_view group, Look look) {
  for (std::string path(group);;) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    look(hierarchy + path);
    if (path.empty()) return;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

bool has_controller(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    if (list.substr(0, comma) == name) return true;
    list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
  }
  return false;
}

std::string read_all(const char* path) {
  std::ifstream stream(path);
  return {std::istreambuf_iterator<char>(stream), {}};
}

}  // namespace

CgroupLimit cgroup_memory_limit(std::string_view membership, const std::string& root) {
  CgroupLimit least;
  while (!membership.empty()) {
    const size_t end = membership.find('\n');
    const std::string_view line = membership.substr(0, end);
    membership.remove_prefix(end == std::string_view::npos ? membership.size() : end + 1);
    // number:controllers:path; a v2 line has no controllers.
    const size_t first = line.find(':'), second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (controllers.empty()) {
      for (const char* mounted : {"", "/unified"})
        climb(root + mounted, group, [&](const std::string& directory) {
          look_at(directory + "/memory.max", least);
          look_at(directory + "/memory.high", least);
        });
    } else if (has_controller(controllers, "memory")) {
      climb(root + "/memory", group, [&](const std::string& directory) { look_at(directory + "/memory.limit_in_bytes", least); });
    }
  }
  return least;
}

CgroupLimit cgroup_memory_limit() { return cgroup_memory_limit(read_all("/proc/self/cgroup"), "/sys/fs/cgroup"); }

}  // namespace kvcachefs

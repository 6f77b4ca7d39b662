#include "tools/load/mount_status.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include <nlohmann/json.hpp>

#include "store/base/mountinfo.h"

namespace kvcachefs {
namespace {

void collect_numbers(const nlohmann::json& node, const std::string& path, StatusNumbers& numbers) {
  if (node.is_object()) {
    for (const auto& [key, value] : node.items()) {
      collect_numbers(value, path.empty() ? key : path + "." + key, numbers);
    }
  } else if (node.is_number()) {
    numbers[path] = node.get<double>();
  }
}

std::string string_at(const nlohmann::json& document, const char* object, const char* key) {
  const auto outer = document.find(object);
  if (outer == document.end() || !outer->is_object()) return {};
  const auto inner = outer->find(key);
  return inner != outer->end() && inner->is_string() ? inner->get<std::string>() : std::string();
}

// Returns the source column of the mount table, in which mount(8) shows the volume.
std::string mount_source(const std::string& root) {
  std::ifstream table("/proc/self/mounts");
  std::string line, source;
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string device, point;
    if (fields >> device >> point && unescape_mountinfo(point) == root) source = unescape_mountinfo(device);  // the last one is on top
  }
  return source.starts_with('/') ? source : std::string();
}

}  // namespace

std::string file_system_root(const std::string& directory) {
  std::error_code error;
  std::filesystem::path root = std::filesystem::canonical(directory, error);
  struct stat info;
  if (error || ::stat(root.c_str(), &info) != 0) return directory;
  while (root.has_relative_path()) {
    struct stat above;
    if (::stat(root.parent_path().c_str(), &above) != 0 || above.st_dev != info.st_dev) break;
    root = root.parent_path();
  }
  return root.string();
}

MountStatus parse_mount_status(std::string_view json) {
  MountStatus status;
  const nlohmann::json document = nlohmann::json::parse(json, nullptr, false);
  if (!document.is_object()) return status;
  collect_numbers(document, "", status.numbers);
  if (const auto pid = status.numbers.find("pid"); pid != status.numbers.end()) {
    status.pid = static_cast<pid_t>(pid->second);
  }
  status.volume = string_at(document, "volume", "root");
  status.volume_uuid = string_at(document, "volume", "uuid");
  status.evicts = string_at(document, "options", "evict") == "on";
  return status;
}

std::optional<MountStatus> read_mount_status(const std::string& directory) {
  const std::string root = file_system_root(directory);
  std::ifstream file(root + "/.kvcachefs/status");
  if (!file) return std::nullopt;
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  MountStatus status = parse_mount_status(text);
  if (status.numbers.empty()) return std::nullopt;
  status.root = root;
  if (status.volume.empty()) status.volume = mount_source(root);
  return status;
}

namespace {
// True for values that can fall, in groups whose other values only grow.
bool is_level(std::string_view path) {
  constexpr std::array<std::string_view, 6> kEndings = {"_ratio", "_age_s", ".known_objects", ".known_units", ".remembered_units",
                                                        ".memory_bytes"};
  return std::any_of(kEndings.begin(), kEndings.end(), [&](std::string_view ending) { return path.ends_with(ending); });
}
}  // namespace

StatusNumbers counter_changes(const StatusNumbers& before, const StatusNumbers& after) {
  constexpr std::array<std::string_view, 6> kGroups = {"reads.",  "prefetch.",  "probes.",
                                                       "writes.", "evictions.", "errors."};
  StatusNumbers changes;
  for (const auto& [path, value] : after) {
    bool wanted = false;
    for (std::string_view group : kGroups) wanted = wanted || path.starts_with(group);
    wanted = wanted && !is_level(path);
    const auto old = before.find(path);
    const double change = value - (old == before.end() ? 0 : old->second);
    if (wanted) changes[path] = change;
  }
  return changes;
}

}  // namespace kvcachefs

#include "tools/mount_table.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "store/base/mountinfo.h"

namespace kvcachefs {

namespace {

bool lies_in(const std::string& path, const std::string& directory) {
  return directory == "/" || path == directory || path.starts_with(directory + "/");
}

Result<std::string> real_path(const std::string& path) {
  char* whole = realpath(path.c_str(), nullptr);
  if (whole == nullptr) return fail_errno(errno, path);
  std::string result(whole);
  std::free(whole);
  return result;
}

}  // namespace

std::vector<MountEntry> mount_table() {
  std::vector<MountEntry> entries;
  std::ifstream table("/proc/self/mountinfo");
  std::string line;
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string id, parent, device, root, mountpoint, word;
    fields >> id >> parent >> device >> root >> mountpoint;
    while (fields >> word && word != "-") {
    }
    std::string type, source;
    if (fields >> type >> source) entries.push_back({unescape_mountinfo(mountpoint), type, unescape_mountinfo(source)});
  }
  return entries;
}

Result<std::string> resolve_path(const std::string& path) {
  auto whole = real_path(path);
  if (whole || (whole.error().sys_errno != ENOTCONN && whole.error().sys_errno != ECONNABORTED)) return whole;
  std::string trimmed = path;
  while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
  const size_t slash = trimmed.rfind('/');
  const std::string last = slash == std::string::npos ? trimmed : trimmed.substr(slash + 1);
  if (last.empty() || last == "." || last == "..") return whole;
  auto parent = real_path(slash == std::string::npos ? "." : slash == 0 ? "/" : trimmed.substr(0, slash));
  if (!parent) return whole;
  return (*parent == "/" ? "" : *parent) + "/" + last;
}

Result<MountEntry> enclosing_mount(const std::string& path) {
  MountEntry found;
  for (MountEntry& entry : mount_table())
    if (lies_in(path, entry.mountpoint) && entry.mountpoint.size() >= found.mountpoint.size()) found = std::move(entry);
  if (!found.is_kvcachefs())
    return fail(Code::kNotFound, fmt::format("{} does not lie in a mounted kvcachefs but in {} mounted on {}", path,
                                             found.type, found.mountpoint));
  return found;
}

Result<MountEntry> mount_at(const std::string& path) {
  MountEntry found;
  for (MountEntry& entry : mount_table())
    if (entry.mountpoint == path) found = std::move(entry);
  if (found.type.empty()) return fail(Code::kNotFound, fmt::format("{} is not mounted", path));
  if (!found.is_kvcachefs())
    return fail(Code::kInvalid,
                fmt::format("what is mounted on {} is {}, not kvcachefs: use umount(8)", path, found.type));
  return found;
}

Result<MountEntry> only_mount() {
  std::vector<MountEntry> found;
  std::string names;
  for (MountEntry& entry : mount_table())
    if (entry.is_kvcachefs()) {
      names += " " + entry.mountpoint;
      found.push_back(std::move(entry));
    }
  if (found.empty()) return fail(Code::kNotFound, "no kvcachefs is mounted here");
  if (found.size() > 1) return fail(Code::kInvalid, fmt::format("several are mounted, name one of:{}", names));
  return found.front();
}

Result<std::string> read_control_file(const std::string& mountpoint, const std::string& name) {
  const std::string path = fmt::format("{}{}.kvcachefs/{}", mountpoint, mountpoint == "/" ? "" : "/", name);
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return fail_errno(errno, path);
  std::string text;
  char buffer[65536];
  ssize_t got = 0;
  while ((got = ::read(descriptor, buffer, sizeof buffer)) > 0) text.append(buffer, static_cast<size_t>(got));
  const int problem = errno;
  close(descriptor);
  if (got < 0) return fail_errno(problem, path);
  return text;
}

}  // namespace kvcachefs

#include "tools/load/target.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "store/base/units.h"

namespace kvcachefs {
namespace fs = std::filesystem;

Result<Target> Target::open(const std::string& directory, size_t index, const std::string& purpose) {
  struct stat info;
  if (::stat(directory.c_str(), &info) != 0) return fail_errno(errno, "--dir " + directory);
  if (!S_ISDIR(info.st_mode)) return fail(Code::kNotDirectory, "--dir " + directory + ": not a directory");
  // Not by the process alone: one that was killed left its directory behind, and in containers its number comes again.
  std::string work = fs::path(directory) / fmt::format("kvcachefs-{}-{}-{}.XXXXXX", purpose, ::getpid(), index);
  if (::mkdtemp(work.data()) == nullptr || ::chmod(work.c_str(), 0755) != 0) {
    return fail_errno(errno, fmt::format("--dir {}: cannot create {} there", directory, work));
  }
  return Target(directory, work, index);
}

Target::Target(Target&& other) noexcept
    : directory_(other.directory_), work_(std::exchange(other.work_, {})), index_(other.index_) {}

Target::~Target() {
  std::error_code ignored;
  if (!work_.empty()) fs::remove_all(work_, ignored);
}

Status Target::blamed(Status status) const {
  if (status || status.error().code == Code::kCanceled) return status;
  if (status.error().message.find(work_) != std::string::npos) return status;
  return std::unexpected(std::move(status).error().at(directory_));
}

Result<std::string> Target::make_dir(const std::string& name) const {
  const std::string path = work_ + "/" + name;
  if (::mkdir(path.c_str(), 0755) != 0) return fail_errno(errno, path + ": mkdir");
  return path + "/";
}

Status Target::remove_dir(const std::string& path) const {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) return fail_errno(error.value(), path + ": remove with all that is in it");
  return {};
}

Result<std::vector<Target>> open_targets(const std::vector<std::string>& directories, const std::string& purpose) {
  if (directories.empty()) return fail(Code::kInvalid, "no --dir given; name one directory or more");
  std::vector<Target> targets;
  std::set<std::string> seen;
  for (const std::string& directory : directories) {
    std::error_code ignored;
    if (!seen.insert(fs::weakly_canonical(directory, ignored).string()).second) {
      return fail(Code::kInvalid, "--dir " + directory + ": named twice");
    }
    KVC_ASSIGN(Target target, Target::open(directory, targets.size(), purpose));
    targets.push_back(std::move(target));
  }
  return targets;
}

Status remove_contents(const std::string& directory) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  for (size_t i = 0; i < entries.size() && !error; ++i) fs::remove_all(entries[i], error);
  if (error) return fail_errno(error.value(), directory + ": remove what is in it");
  return {};
}

Status check_space(const std::string& directory, uint64_t bytes, const std::string& advice) {
  struct statvfs info;
  if (::statvfs(directory.c_str(), &info) != 0) return fail_errno(errno, directory + ": statvfs");
  const uint64_t available = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  // Directories and block maps need a little too.
  const uint64_t needed = bytes + bytes / 32;
  if (available >= needed) return {};
  return fail(Code::kNoSpace, fmt::format("{}: needs {} of space, {} are free; {}", directory, format_size(needed),
                                          format_size(available), advice));
}

Status check_space(std::span<const Target> targets, uint64_t bytes, const std::string& advice) {
  std::map<dev_t, uint64_t> needed;
  std::vector<dev_t> devices;
  for (const Target& target : targets) {
    struct stat info;
    if (::stat(target.directory().c_str(), &info) != 0) return fail_errno(errno, target.directory() + ": stat");
    devices.push_back(info.st_dev);
    needed[info.st_dev] += bytes;
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    KVC_TRY(check_space(targets[i].directory(), needed[devices[i]], advice));
  }
  return {};
}

}  // namespace kvcachefs

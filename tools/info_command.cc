// `kvcachefs info`: the facts that the mount reports of a file.
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "tools/commands.h"
#include "tools/mount_table.h"

namespace kvcachefs {

namespace {

constexpr const char* kFacts = "user.kvcachefs.info";

// Calls getxattr twice, for the size and the value; repeats if the size changes between the two calls.
template <class Call>
Result<std::string> attribute_bytes(const std::string& what, const Call& call) {
  std::string bytes;
  while (true) {
    const ssize_t wanted = call(nullptr, 0);
    if (wanted < 0) return fail_errno(errno, what);
    bytes.resize(static_cast<size_t>(wanted));
    const ssize_t got = call(bytes.data(), bytes.size());
    if (got >= 0) {
      bytes.resize(static_cast<size_t>(got));
      return bytes;
    }
    if (errno != ERANGE) return fail_errno(errno, what);
  }
}

Status print_facts(const std::string& path) {
  KVC_ASSIGN(const std::string resolved, resolve_path(path));
  KVC_ASSIGN(const MountEntry mount, enclosing_mount(resolved));
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return fail_errno(errno, path);
  fmt::print("{:<14}{}\n{:<14}{}\n{:<14}{}\n{:<14}{}\n", "path", resolved, "mount", mount.mountpoint, "size_bytes",
             info.st_size, "allocated", info.st_blocks * 512);
  const auto facts = attribute_bytes(path, [&](char* buffer, size_t size) { return getxattr(path.c_str(), kFacts, buffer, size); });
  if (!facts && facts.error().sys_errno == ENODATA) return {};  // the root of the mount has none
  if (!facts) return std::unexpected(facts.error());
  std::istringstream lines(*facts);
  for (std::string line; std::getline(lines, line);) {
    const size_t blank = std::min(line.find(' '), line.size());
    fmt::print("{:<14}{}\n", line.substr(0, blank), line.substr(std::min(blank + 1, line.size())));
  }
  return {};
}

int run(const std::vector<std::string>& paths) {
  int code = kExitOk;
  for (const std::string& path : paths) {
    if (&path != &paths.front()) fmt::print("\n");
    if (Status status = print_facts(path); !status) {
      std::fprintf(stderr, "kvcachefs info: %s\n", status.error().message.c_str());
      code = kExitFailed;
    }
  }
  return code;
}

}  // namespace

Subcommand add_info_command(CLI::App& parent) {
  auto paths = std::make_shared<std::vector<std::string>>();
  CLI::App* app = parent.add_subcommand("info", "Tell where a file of a mount lies, its kind, checksums and hits");
  app->add_option("PATH", *paths, "Files or directories of a mounted kvcachefs")->required();
  app->footer("The same facts are the attributes user.kvcachefs.* (getfattr -d -m user.kvcachefs PATH), and together user.kvcachefs.info.");
  return {app, [paths] { return run(*paths); }};
}

}  // namespace kvcachefs

#include "store/peers/peers_directory.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <system_error>

#include "store/volume/posix_tree.h"

namespace kvcachefs {

Status check_peers_directory(const std::string& directory) {
  const auto tree = PosixTree::open(directory);
  if (!tree && tree.error().code != Code::kNotFound) return std::unexpected(tree.error());
  return {};
}

Result<std::vector<uint64_t>> generations_in(const std::string& directory) {
  const size_t slash = directory.rfind('/');
  const std::string peer = directory.substr(slash + 1);
  KVC_ASSIGN(const PosixTree above, PosixTree::open(directory.substr(0, slash)));
  if (::mkdirat(above.root_fd(), peer.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno(errno, directory);
  KVC_ASSIGN(const PosixTree tree, above.below(peer));
  KVC_ASSIGN(const auto entries, tree.list(""));
  std::vector<uint64_t> found;
  for (const auto& [name, is_directory] : entries) {
    uint64_t number = 0;
    const auto [last, failed] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (failed == std::errc() && last == name.data() + name.size()) found.push_back(number);
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace kvcachefs

#include "store/peers/ordinals_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <set>

#include <fmt/format.h>

#include "store/base/bytes.h"
#include "store/base/checksum.h"
#include "store/base/node_name.h"
#include "store/base/unique_fd.h"
#include "store/volume/posix_tree.h"

namespace kvcachefs {
namespace {

constexpr size_t kMostTextBytes = 64 * 1024;

// The parent directory, and the name in it.
std::pair<std::string, std::string> split(const std::string& path) {
  const size_t slash = path.rfind('/');
  return {path.substr(0, slash), path.substr(slash + 1)};
}

std::string first_line(std::string_view rest) { return fmt::format("kvcachefs peers {:016x}\n", checksum(as_bytes(rest))); }

}  // namespace

std::string encode_ordinals(const Ordinals& ordinals) {
  std::string lines;
  for (const auto& [node, ordinal] : ordinals) lines += fmt::format("{} {}\n", ordinal, node);
  return first_line(lines) + lines;
}

Result<Ordinals> decode_ordinals(std::string_view text) {
  const size_t head = text.find('\n') + 1;
  if (head == 0 || text.substr(0, head) != first_line(text.substr(head))) return fail(Code::kCorrupt, "the first line is not that of the others");
  text.remove_prefix(head);
  Ordinals ordinals;
  std::set<uint32_t> taken;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    uint32_t ordinal = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), ordinal);
    const auto digits = static_cast<size_t>(end - line.data());
    const std::string_view node = digits < line.size() && line[digits] == ' ' ? line.substr(digits + 1) : std::string_view();
    if (error != std::errc() || !is_node_name(node) || !taken.insert(ordinal).second || !ordinals.emplace(node, ordinal).second)
      return fail(Code::kCorrupt, fmt::format("'{}' is no number and node", line));
  }
  return ordinals;
}

Result<Ordinals> read_ordinals(const std::string& path) {
  const auto [directory, name] = split(path);
  const auto tree = PosixTree::open(directory);
  const auto file = tree ? tree->open_file(name, O_RDONLY, "open") : std::unexpected(tree.error());
  if (!file && file.error().code == Code::kNotFound) return Ordinals();
  if (!file) return std::unexpected(file.error());
  std::string text(kMostTextBytes, '\0');
  const ssize_t got = ::read(file->get(), text.data(), text.size());
  if (got < 0) return fail_errno(errno, path);
  auto ordinals = decode_ordinals(std::string_view(text).substr(0, static_cast<size_t>(got)));
  if (!ordinals) return std::unexpected(std::move(ordinals).error().at(path));
  return ordinals;
}

Status write_ordinals(const std::string& path, const Ordinals& ordinals) {
  const auto [directory, name] = split(path);
  KVC_ASSIGN(const PosixTree tree, PosixTree::open(directory));
  if (const auto there = tree.open_file(name, O_RDONLY, "open"); !there && there.error().code != Code::kNotFound) return std::unexpected(there.error());
  const std::string draft = path + ".tmp", text = encode_ordinals(ordinals);
  {
    // Truncated only once it is known to be a plain file, left by a daemon that was killed.
    KVC_ASSIGN(const UniqueFd file, tree.open_file(name + ".tmp", O_WRONLY | O_CREAT, "create"));
    if (::ftruncate(file.get(), 0) != 0) return fail_errno(errno, draft);
    const ssize_t put = ::write(file.get(), text.data(), text.size());
    if (put < 0) return fail_errno(errno, draft);
    if (static_cast<size_t>(put) != text.size()) return fail_errno(ENOSPC, draft);
    if (::fdatasync(file.get()) != 0) return fail_errno(errno, draft);
  }
  if (::renameat(tree.root_fd(), (name + ".tmp").c_str(), tree.root_fd(), name.c_str()) != 0) return fail_errno(errno, path);
  return {};
}

}  // namespace kvcachefs

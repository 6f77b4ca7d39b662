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

namespace kvcachefs {
namespace {

constexpr size_t kMostTextBytes = 64 * 1024;

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
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid() && errno == ENOENT) return Ordinals();
  if (!file.valid()) return fail_errno(errno, path);
  std::string text(kMostTextBytes, '\0');
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  if (got < 0) return fail_errno(errno, path);
  auto ordinals = decode_ordinals(std::string_view(text).substr(0, static_cast<size_t>(got)));
  if (!ordinals) return std::unexpected(std::move(ordinals).error().at(path));
  return ordinals;
}

Status write_ordinals(const std::string& path, const Ordinals& ordinals) {
  const std::string draft = path + ".tmp", text = encode_ordinals(ordinals);
  {
    const UniqueFd file(::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.valid()) return fail_errno(errno, draft);
    const ssize_t put = ::write(file.get(), text.data(), text.size());
    if (put < 0) return fail_errno(errno, draft);
    if (static_cast<size_t>(put) != text.size()) return fail_errno(ENOSPC, draft);
    if (::fdatasync(file.get()) != 0) return fail_errno(errno, draft);
  }
  if (std::rename(draft.c_str(), path.c_str()) != 0) return fail_errno(errno, path);
  return {};
}

}  // namespace kvcachefs

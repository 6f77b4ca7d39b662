#include "store/volume/volume_path.h"

namespace kvcachefs {

namespace {

constexpr size_t kMaxNameBytes = 255;

std::string quoted(std::string_view path) { return "volume path \"" + std::string(path) + "\""; }

Status check_name(std::string_view name, std::string_view path) {
  if (name.empty()) return fail(Code::kInvalid, quoted(path) + ": empty name; paths are relative, with single slashes");
  if (name == "." || name == "..") return fail(Code::kInvalid, quoted(path) + ": \".\" and \"..\" are refused");
  if (name.size() > kMaxNameBytes) return fail(Code::kNameTooLong, quoted(path) + ": a name is over 255 bytes");
  return {};
}

}  // namespace

bool is_root_path(std::string_view path) { return path.empty() || path == "."; }

Status check_path(std::string_view path) {
  if (path.find('\0') != std::string_view::npos) return fail(Code::kInvalid, "volume path with a NUL byte");
  std::string_view rest = path;
  while (true) {
    const size_t slash = rest.find('/');
    KVC_TRY(check_name(rest.substr(0, slash), path));
    if (slash == std::string_view::npos) return {};
    rest.remove_prefix(slash + 1);
  }
}

std::string_view parent_path(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view{} : path.substr(0, slash);
}

std::string place_in(const std::string& root, const std::string& path) {
  return is_root_path(path) ? root : root + "/" + path;
}

}  // namespace kvcachefs

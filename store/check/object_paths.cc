#include "store/check/object_paths.h"

#include <fmt/format.h>

namespace kvcachefs {

namespace {

constexpr int kMostLevels = 100;  // one scan for each; deeper paths are shown without their upper part

struct NamedIn {
  ObjectId parent;
  std::string name;
};

std::string path_of(ObjectId object, const std::unordered_map<ObjectId, NamedIn>& names) {
  std::string path;
  // A damaged tree may contain a cycle: no path has more steps than there are known names.
  for (size_t steps = 0; object != kRootId && steps <= names.size(); ++steps) {
    const auto found = names.find(object);
    if (found == names.end()) return "?" + path;
    path.insert(0, "/" + printable(found->second.name));
    object = found->second.parent;
  }
  return path;
}

}  // namespace

Result<std::unordered_map<ObjectId, std::string>> object_paths(const Index& index,
                                                               const std::unordered_set<ObjectId>& objects) {
  std::unordered_map<ObjectId, NamedIn> names;
  std::unordered_set<ObjectId> wanted = objects;
  for (int levels = 0; !wanted.empty() && levels < kMostLevels; ++levels) {
    std::unordered_set<ObjectId> above;
    KVC_TRY(index.scan_names([&](NameRecord&& row) {
      if (!wanted.contains(row.child) || names.contains(row.child)) return true;
      if (row.parent != kRootId && !names.contains(row.parent)) above.insert(row.parent);
      names.emplace(row.child, NamedIn{row.parent, std::move(row.name)});
      return true;
    }));
    std::erase_if(above, [&](ObjectId id) { return names.contains(id) || wanted.contains(id); });
    wanted = std::move(above);
  }
  std::unordered_map<ObjectId, std::string> paths;
  for (ObjectId object : objects)
    if (names.contains(object)) paths.emplace(object, path_of(object, names));
  return paths;
}

std::string printable(std::string_view name) {
  std::string result;
  for (char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || c == '\\')
      result += fmt::format("\\x{:02x}", byte);
    else
      result += c;
  }
  return result;
}

}  // namespace kvcachefs

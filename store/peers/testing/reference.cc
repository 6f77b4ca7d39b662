#include "store/peers/testing/reference.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>
#include <variant>

#include <fmt/format.h>

namespace kvcachefs {
namespace {

std::string text_of(const Attributes& attributes) {
  return fmt::format("{:o} c{} m{} b{}", attributes.mode, attributes.ctime_ns, attributes.mtime_ns, attributes.btime_ns);
}

}  // namespace

std::string directory_line(const Attributes& attributes, std::vector<std::pair<std::string, ObjectId>> members) {
  std::ranges::sort(members);
  std::string line = "directory " + text_of(attributes);
  for (const auto& [node, id] : members) line += fmt::format(" {}:{:x}", node, id.value);
  return line;
}

std::string file_line(const std::string& node, ObjectId id, const Attributes& attributes) {
  return fmt::format("file {} {}:{:x}", text_of(attributes), node, id.value);
}

bool Reference::is_directory(const Node& node, ObjectId id) {
  const auto found = node.objects.find(id);
  return found != node.objects.end() && S_ISDIR(found->second.mode);
}

void Reference::apply(Node& node, const Batch& batch, JournalPosition after) {
  for (const Record& record : batch.records) {
    if (const auto* put = std::get_if<PutRecord>(&record)) node.objects[put->object.id] = put->object.attributes;
    if (const auto* changed = std::get_if<AttributesRecord>(&record)) node.objects[changed->id] = changed->attributes;
    if (const auto* name = std::get_if<NameRecord>(&record)) node.names[{name->parent, name->name}] = name->child;
    if (const auto* gone = std::get_if<UnnameRecord>(&record)) {
      const auto found = node.names.find({gone->parent, gone->name});
      if (found != node.names.end() && found->second == gone->child) node.names.erase(found);
    }
    if (const auto* said = std::get_if<StatementRecord>(&record)) node.said.push_back({after, *said});
    if (const auto* seen = std::get_if<SeenRecord>(&record)) node.seen[seen->node] = seen->position;
  }
}

void Reference::add(const std::string& node, const std::vector<std::pair<Batch, JournalPosition>>& batches, size_t count) {
  Node& its = nodes_[node];
  for (size_t i = 0; i < count; ++i) apply(its, batches[i].first, batches[i].second);
}

// The names that would be left if the statements of each other node were answered now, separately.
Reference::Names Reference::left_of(const std::string& name) const {
  const Node& node = nodes_.at(name);
  Names left = node.names;
  for (const auto& [other, by] : nodes_) {
    if (other == name) continue;
    const auto seen = node.seen.find(other);
    Names after = node.names;
    for (const Node::Said& said : by.said) {
      const auto* gone = std::get_if<UnnameRecord>(&said.record.what);
      if (gone == nullptr || said.record.node != name || (seen != node.seen.end() && said.at <= seen->second)) continue;
      const auto found = after.find({gone->parent, gone->name});
      if (found == after.end() || found->second != gone->child) continue;
      const auto below = after.lower_bound({gone->child, ""});
      const bool has_names = below != after.end() && below->first.first == gone->child;
      if (is_directory(node, gone->child) && has_names) continue;
      after.erase(found);
      left.erase({gone->parent, gone->name});
    }
  }
  return left;
}

std::pair<Attributes, std::string> Reference::attributes(const std::string& name, ObjectId id) const {
  const Node& node = nodes_.at(name);
  std::map<std::string, Attributes> given{{name, node.objects.at(id)}};
  for (const auto& [other, by] : nodes_) {
    const auto seen = node.seen.find(other);
    for (const Node::Said& said : by.said) {
      const auto* changed = std::get_if<AttributesRecord>(&said.record.what);
      if (changed == nullptr || said.record.node != name || changed->id != id) continue;
      if (seen == node.seen.end() || said.at > seen->second) given[other] = changed->attributes;
    }
  }
  auto last = given.begin();
  for (auto each = given.begin(); each != given.end(); ++each)
    if (std::pair(each->second.ctime_ns, each->first) > std::pair(last->second.ctime_ns, last->first)) last = each;
  return {last->second, last->first};
}

std::map<std::string, std::string> Reference::tree() const {
  std::map<std::string, Names> left;
  std::vector<Member> roots;
  for (const auto& [name, node] : nodes_) {
    left[name] = left_of(name);
    if (node.objects.contains(kRootId)) roots.emplace_back(name, kRootId);
  }
  std::map<std::string, std::string> tree;
  walk("", roots, left, tree);
  return tree;
}

void Reference::walk(const std::string& path, const std::vector<Member>& members, const std::map<std::string, Names>& left,
                     std::map<std::string, std::string>& tree) const {
  std::map<std::string, std::vector<Member>> children;
  Attributes shown;
  std::string shown_by;
  int64_t mtime_ns = INT64_MIN;
  for (const auto& [node, directory] : members) {
    const auto [given, by] = attributes(node, directory);
    mtime_ns = std::max(mtime_ns, given.mtime_ns);
    if (shown_by.empty() || std::pair(given.ctime_ns, by) > std::pair(shown.ctime_ns, shown_by)) std::tie(shown, shown_by) = std::pair(given, by);
    for (const auto& [spot, child] : left.at(node))
      if (spot.first == directory) children[spot.second].emplace_back(node, child);
  }
  shown.mtime_ns = mtime_ns;
  if (!path.empty()) tree[path] = directory_line(shown, members);
  for (const auto& [name, there] : children) {
    std::vector<Member> directories;
    for (const Member& each : there)
      if (is_directory(nodes_.at(each.first), each.second)) directories.push_back(each);
    if (!directories.empty()) {
      walk(path + "/" + name, directories, left, tree);
      continue;
    }
    const Member winner = *std::ranges::max_element(there, {}, [this](const Member& each) {
      return std::pair(nodes_.at(each.first).objects.at(each.second).btime_ns, each.first);
    });
    const auto [given, by] = attributes(winner.first, winner.second);
    tree[path + "/" + name] = file_line(winner.first, winner.second, given);
  }
}

}  // namespace kvcachefs

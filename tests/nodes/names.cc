#include "tests/nodes/names.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

namespace kvcachefs::testing {

namespace {
constexpr size_t kHeadBytes = 24;
}  // namespace

std::string make_body(int body, size_t bytes) {
  bytes = std::max(bytes, kHeadBytes);
  std::string made = fmt::format("{:011d} {:011d}\n", body, bytes);
  auto state = static_cast<uint64_t>(body) * 0x9e3779b97f4a7c15ULL + 1;
  made.resize(bytes);
  for (size_t at = kHeadBytes; at < made.size(); ++at) {
    if (at % 8 == 0) state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    made[at] = static_cast<char>(state >> (8 * (at % 8)));
  }
  return made;
}

int body_of(std::string_view bytes) {
  if (bytes.empty()) return kEmpty;
  int body = 0;
  size_t size = 0;
  if (bytes.size() < kHeadBytes || std::sscanf(std::string(bytes.substr(0, kHeadBytes)).c_str(), "%d %zu", &body, &size) != 2) return kTorn;
  return body > 0 && size == bytes.size() && make_body(body, size) == bytes ? body : kTorn;
}

Names::Change Names::begin(unsigned node, const std::string& name, int body, bool blind, bool moves) {
  auto& made = names_[name].made;
  made.push_back({node, body, Outcome::kUnknown, false, blind, moves, 0});
  return {name, made.size() - 1};
}

void Names::settle(const Change& change, Outcome outcome, bool safe) {
  Made& made = names_.at(change.name).made.at(change.at);
  made.outcome = outcome;
  made.safe = safe && outcome == Outcome::kDone;
  if (made.safe) made.safe_since = ++moment_;
}

void Names::all_safe(unsigned node) {
  for (auto& [path, name] : names_)
    for (Made& made : name.made)
      if (made.node == node && made.outcome == Outcome::kDone && !std::exchange(made.safe, true)) made.safe_since = ++moment_;
}

void Names::crashed(unsigned node) {
  for (auto& [path, name] : names_)
    for (Made& made : name.made)
      if (made.node == node && made.outcome == Outcome::kDone && !made.safe) made.outcome = Outcome::kUnknown;
}

void Names::server_lost_writes() {
  for (auto& [path, name] : names_) {
    if (name.before != kAbsent) name.made.insert(name.made.begin(), {0, kAbsent, Outcome::kUnknown, false, true, true, 0});
    for (Made& made : name.made)
      if (made.outcome == Outcome::kDone) made.outcome = Outcome::kUnknown;
  }
}

// What may be there of what that node did: its last change that is certain, and what came behind it. To another node one is certain that it has read.
std::set<int> Names::left_by(const Name& name, unsigned node, bool& certain, uint64_t read_until) {
  std::set<int> left;
  certain = false;
  for (const Made& made : name.made) {
    if (made.node != node || made.outcome == Outcome::kNotDone) continue;
    if (made.outcome == Outcome::kDone && (read_until == UINT64_MAX || (made.safe && made.safe_since < read_until))) {
      left.clear();
      certain = !made.blind;
    }
    left.insert(made.body);
  }
  return left;
}

void Names::add_hidden(const Name& name, std::set<int>& may) {
  if (std::ranges::any_of(name.made, [](const Made& made) { return (made.moves || made.blind) && made.outcome != Outcome::kNotDone; })) may.insert(name.hidden.begin(), name.hidden.end());
}

std::string Names::describe(const Name& name) {
  std::string text = fmt::format("before {}", name.before);
  for (const int body : name.hidden) text += fmt::format(" ({} hidden)", body);
  for (const Made& made : name.made)
    text += fmt::format(", n{} {}{}{}", made.node, made.body, made.outcome == Outcome::kDone ? "" : made.outcome == Outcome::kNotDone ? " (not)" : " (?)",
                        made.safe ? " safe" : "");
  return text;
}

std::string Names::judge(unsigned node, const std::string& path, int body) const {
  const auto found = names_.find(path);
  const Name name = found == names_.end() ? Name() : found->second;
  bool certain = false;
  std::set<int> may = left_by(name, node, certain);
  bool any_certain = certain;
  const auto read = read_until_.find(node);
  std::set<unsigned> others;
  for (const Made& made : name.made)
    if (made.node != node) others.insert(made.node);
  for (const unsigned other : others) {
    may.merge(left_by(name, other, certain, read == read_until_.end() ? 0 : read->second));
    any_certain |= certain;
  }
  if (!any_certain) may.insert(name.before);
  add_hidden(name, may);
  return may.contains(body) ? std::string() : fmt::format("node {} finds {} under {}; {}", node, body, path, describe(name));
}

std::string Names::judge_agreed(const std::string& path, int body) const {
  const auto found = names_.find(path);
  const Name name = found == names_.end() ? Name() : found->second;
  std::set<int> may;
  bool any_certain = false;
  std::set<unsigned> nodes;
  for (const Made& made : name.made) nodes.insert(made.node);
  for (const unsigned node : nodes) {
    bool certain = false;
    may.merge(left_by(name, node, certain));
    any_certain |= certain;
  }
  if (!any_certain) may.insert(name.before);
  add_hidden(name, may);
  return may.contains(body) ? std::string() : fmt::format("all find {} under {}; {}", body, path, describe(name));
}

void Names::agreed(const std::map<std::string, int>& tree) {
  for (auto& [path, name] : names_) {
    for (const Made& made : name.made)
      if (made.body > 0) name.hidden.insert(made.body);
    const auto found = tree.find(path);
    name.before = found == tree.end() ? kAbsent : found->second;
    if (name.before == kAbsent) name.hidden.clear();
    name.made.clear();
  }
}

std::set<std::string> Names::known() const {
  std::set<std::string> known;
  for (const auto& [path, name] : names_) known.insert(path);
  return known;
}

}  // namespace kvcachefs::testing

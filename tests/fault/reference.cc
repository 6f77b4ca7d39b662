#include "tests/fault/reference.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

namespace kvcachefs::testing {

namespace {

Content content_of(const Tree& tree, const std::string& name) {
  const auto found = tree.find(name);
  return found == tree.end() ? Content() : Content(found->second);
}

size_t first_difference(const std::string& a, const std::string& b) {
  const size_t common = std::min(a.size(), b.size());
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + static_cast<long>(common), b.begin()).first - a.begin());
}

}  // namespace

std::string describe(const Content& content) {
  if (!content) return "absent";
  return fmt::format("{} bytes (hash {:x})", content->size(), std::hash<std::string>()(*content));
}

void Reference::change(const std::string& name, Content content) {
  histories_[name].states.push_back(std::move(content));
}

void Reference::move(const std::string& from, const std::string& to) {
  Content content = now(from);
  change(from, std::nullopt);
  change(to, std::move(content));
  moves_.push_back({from, to, histories_[from].states.size() - 1, histories_[to].states.size() - 1});
}

void Reference::acknowledge(const std::string& name, Crash survives) {
  History& history = histories_[name];
  const size_t last = history.states.size() - 1;
  acknowledgements_ += history.states.back().has_value();
  history.oldest[static_cast<size_t>(Crash::kProcess)] = last;
  if (survives == Crash::kPower) history.oldest[static_cast<size_t>(Crash::kPower)] = last;
}

void Reference::acknowledge_all(Crash survives) {
  for (const auto& [name, history] : histories_) acknowledge(name, survives);
}

void Reference::found(const std::string& name, Content content) {
  if (now(name) != content) change(name, std::move(content));
}

const Content& Reference::now(const std::string& name) const {
  static const Content absent;
  const auto found = histories_.find(name);
  return found == histories_.end() ? absent : found->second.states.back();
}

bool Reference::unlinked(const std::string& name) const {
  const auto& states = histories_.at(name).states;
  return !states.back() && std::none_of(moves_.begin(), moves_.end(), [&](const Move& move) {
    return move.from == name && move.from_index == states.size() - 1;
  });
}

std::vector<std::string> Reference::names() const {
  std::vector<std::string> names;
  for (const auto& [name, history] : histories_) names.push_back(name);
  return names;
}

std::vector<std::string> Reference::present_names() const {
  std::vector<std::string> names;
  for (const auto& [name, history] : histories_)
    if (history.states.back()) names.push_back(name);
  return names;
}

std::string Reference::judge_name(const std::string& name, const Content& content, size_t oldest) const {
  const auto& states = histories_.at(name).states;
  for (size_t i = oldest; i < states.size(); ++i)
    if (states[i] == content) return {};
  const std::string allowed = fmt::format("state {} of {} ({}) was acknowledged", oldest, states.size() - 1, describe(states[oldest]));
  for (size_t i = 0; i < oldest; ++i)
    if (states[i] == content) return fmt::format("{}: {}, which is the older state {}; {}", name, describe(content), i, allowed);
  if (!content) return fmt::format("{}: lost; {}", name, allowed);
  size_t nearest = 0;
  for (const Content& state : states)
    if (state) nearest = std::max(nearest, first_difference(*state, *content));
  return fmt::format("{}: {} is no body it ever had (torn or mixed; the nearest differs at byte {}); {}", name,
                     describe(content), nearest, allowed);
}

// Gone from its old name by this move alone, and never come to the new one?
bool Reference::lost_in_move(const Move& move, const Tree& observed, size_t kind) const {
  if (observed.contains(move.from)) return false;
  const History& from = histories_.at(move.from);
  for (size_t i = from.oldest[kind]; i < from.states.size(); ++i)
    if (!from.states[i] && i != move.from_index) return false;
  const auto& to = histories_.at(move.to).states;
  const Content content = content_of(observed, move.to);
  return std::find(to.begin() + static_cast<long>(move.to_index), to.end(), content) == to.end();
}

std::vector<std::string> Reference::judge(const Tree& observed, std::optional<Crash> crash) const {
  std::vector<std::string> problems;
  for (const auto& [name, content] : observed)
    if (!histories_.contains(name)) problems.push_back(fmt::format("{}: a name nobody made, {}", name, describe(content)));
  for (const auto& [name, history] : histories_) {
    const size_t oldest = crash ? history.oldest[static_cast<size_t>(*crash)] : history.states.size() - 1;
    if (std::string problem = judge_name(name, content_of(observed, name), oldest); !problem.empty()) problems.push_back(problem);
  }
  if (!crash) return problems;
  for (const Move& move : moves_)
    if (lost_in_move(move, observed, static_cast<size_t>(*crash)))
      problems.push_back(fmt::format("{} is gone, and {} does not have its body: a rename was torn", move.from, move.to));
  return problems;
}

void Reference::go_on_from(const Tree& observed) {
  moves_.clear();
  for (auto& [name, history] : histories_) {
    history.states.push_back(content_of(observed, name));
    history.oldest[static_cast<size_t>(Crash::kProcess)] = history.states.size() - 1;
  }
}

}  // namespace kvcachefs::testing

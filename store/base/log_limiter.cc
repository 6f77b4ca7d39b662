#include "store/base/log_limiter.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace kvcachefs::log {

std::string Limiter::kind_of(std::string_view line) {
  const auto alphanumeric = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  std::string kind;
  kind.reserve(line.size());
  for (size_t at = 0; at < line.size();) {
    size_t end = at;
    while (end < line.size() && alphanumeric(line[end])) ++end;
    const std::string_view word = line.substr(at, end - at);
    if (word.empty())
      kind += line[end++];
    else if (word.find_first_of("0123456789") == std::string_view::npos)
      kind += word;
    else
      kind += '#';
    at = end;
  }
  return kind;
}

std::string Limiter::told(const Kind& kind, int64_t now_ns) {
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t seconds = std::max<int64_t>(1, (now_ns - kind.since_ns + kSecond - 1) / kSecond);
  return fmt::format("{} (repeated {} times in {} s)", kind.last, kind.held_back, seconds);
}

Limiter::Verdict Limiter::ask(int level, std::string_view line, int64_t now_ns) {
  std::string name = kind_of(line);
  std::lock_guard lock(mutex_);
  if (silent_level_) {
    ++silenced_;
    return {};
  }
  auto found = kinds_.find(name);
  if (found == kinds_.end()) {
    make_room();
    found = kinds_.emplace(std::move(name), Kind{level, now_ns, 0, 0, {}}).first;
  }
  Kind& kind = found->second;
  Verdict verdict;
  if (now_ns - kind.since_ns >= settings_.period_ns) {
    if (kind.held_back > 0) verdict.first = told(kind, now_ns);
    kind = Kind{level, now_ns, 0, 0, {}};
  }
  if (kind.written < settings_.lines) {
    ++kind.written;
    verdict.write = true;
    return verdict;
  }
  ++kind.held_back;
  kind.level = std::max(kind.level, level);
  kind.last = line;
  return verdict;
}

std::vector<Limiter::Line> Limiter::take_held_back(int64_t now_ns, bool all) {
  std::vector<Line> lines;
  std::lock_guard lock(mutex_);
  std::erase_if(kinds_, [&](const auto& entry) {
    const Kind& kind = entry.second;
    if (!all && now_ns - kind.since_ns < settings_.period_ns) return false;
    if (kind.held_back > 0) lines.push_back({kind.level, told(kind, now_ns)});
    return true;
  });
  if (all && silenced_ > 0) lines.push_back({*silent_level_, fmt::format("{} more warnings and errors followed, which are not written", std::exchange(silenced_, 0))});
  return lines;
}

void Limiter::let_nothing_through(int level) {
  std::lock_guard lock(mutex_);
  silent_level_ = level;
}

// Caller holds mutex_. Forgets the kind that was silent longest, preferably one with nothing held back; else its held-back lines are never reported.
void Limiter::make_room() {
  if (kinds_.size() < settings_.kinds) return;
  const auto silent = [](const auto& a, const auto& b) {
    return std::pair(a.second.held_back > 0, a.second.since_ns) < std::pair(b.second.held_back > 0, b.second.since_ns);
  };
  kinds_.erase(std::ranges::min_element(kinds_, silent));
}

}  // namespace kvcachefs::log

// Keeps a log from being flooded. Lets the first few lines of one kind through; counts those that follow within the period,
// and reports them in one line.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store/base/mutex.h"

namespace kvcachefs::log {

// Thread-safe. Has no clock: the caller passes the time of the monotonic clock.
class Limiter {
 public:
  struct Settings {
    uint32_t lines = 10;  // of one kind that are let through in a period
    int64_t period_ns = 10'000'000'000;
    size_t kinds = 256;  // number of kinds; beyond it, the kind that was silent longest is forgotten
  };
  Limiter() : Limiter(Settings()) {}
  explicit Limiter(Settings settings) : settings_(settings) {}

  // Two lines are of one kind if they differ only in words that contain a digit: numbers, ids, hashes.
  static std::string kind_of(std::string_view line);

  struct Verdict {
    bool write = false;
    std::string first;  // if not empty, write it before the line: it tells of earlier lines of the kind
  };
  Verdict ask(int level, std::string_view line, int64_t now_ns);

  struct Line {
    int level = 0;
    std::string text;
  };
  // Lines about what was held back in periods that are over. Call regularly, and with all = true at the end.
  std::vector<Line> take_held_back(int64_t now_ns, bool all = false);
  // From now on no line is let through. take_held_back() with all = true tells the number of those lines, in a line of this level.
  void let_nothing_through(int level);

 private:
  struct Kind {
    int level = 0;
    int64_t since_ns = 0;
    uint32_t written = 0;
    uint64_t held_back = 0;
    std::string last;  // the last line held back
  };
  static std::string told(const Kind& kind, int64_t now_ns);
  void make_room();

  const Settings settings_;
  InnerMutex mutex_;
  std::unordered_map<std::string, Kind> kinds_;
  std::optional<int> silent_level_;  // set by let_nothing_through()
  uint64_t silenced_ = 0;            // lines since then
};

}  // namespace kvcachefs::log

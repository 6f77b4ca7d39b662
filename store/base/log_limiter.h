// Keeps a log from being flooded. Of lines of one kind the first few are let through; what follows within the period is counted,
// and told in one line.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store/base/mutex.h"

namespace kvcachefs::log {

// Thread-safe. Knows no clock: each call is told what time it is, on the monotonic clock.
class Limiter {
 public:
  struct Settings {
    uint32_t lines = 10;  // of one kind that are let through in a period
    int64_t period_ns = 10'000'000'000;
    size_t kinds = 256;  // that are told apart: above it, one that was silent longest is forgotten
  };
  Limiter() : Limiter(Settings()) {}
  explicit Limiter(Settings settings) : settings_(settings) {}

  // Two lines are of one kind when they differ only in words that hold a digit: numbers, ids, hashes.
  static std::string kind_of(std::string_view line);

  struct Verdict {
    bool write = false;
    std::string first;  // not empty: to be written before the line, it tells of earlier ones of the kind
  };
  Verdict ask(int level, std::string_view line, int64_t now_ns);

  struct Line {
    int level = 0;
    std::string text;
  };
  // What was held back in periods that are over. To be called now and then, and before the end with all = true.
  std::vector<Line> take_held_back(int64_t now_ns, bool all = false);

 private:
  struct Kind {
    int level = 0;
    int64_t since_ns = 0;
    uint32_t written = 0;
    uint64_t held_back = 0;
    std::string last;  // of those held back
  };
  static std::string told(const Kind& kind, int64_t now_ns);
  void make_room();

  const Settings settings_;
  InnerMutex mutex_;
  std::unordered_map<std::string, Kind> kinds_;
};

}  // namespace kvcachefs::log

// Writes the lines of the log on a thread of its own: a log that takes nothing (a pipe that nobody reads, a disk that hangs) then stops no caller.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "store/base/mutex.h"
#include "store/base/result.h"

namespace kvcachefs::log {

// Thread-safe, except start().
class Writer {
 public:
  struct Line {
    std::chrono::system_clock::time_point at;
    int level = 0;
    std::string text;
    uint64_t dropped = 0;  // lines that went just before this one, because nothing was written for long
  };
  // Keeps up to `most_lines` lines that wait; beyond that the oldest one goes. `write` is called on the thread, and may block for ever.
  Writer(size_t most_lines, std::function<void(const Line&)> write) : most_lines_(most_lines), write_(std::move(write)) {}
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  ~Writer();  // writes what waits

  Status start();
  void add(std::chrono::system_clock::time_point at, int level, std::string text);
  // Returns once no line waits. False: one line took longer than `patience`.
  bool flush(std::chrono::milliseconds patience);

 private:
  void run();

  const size_t most_lines_;
  const std::function<void(const Line&)> write_;
  InnerMutex mutex_;  // guards the rest, except thread_
  ConditionVariable ready_, written_;
  std::deque<Line> lines_;
  uint64_t written_lines_ = 0;
  bool is_writing_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace kvcachefs::log

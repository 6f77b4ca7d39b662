// Logging: messages are formatted here; spdlog writes them to stderr or a rotating file (only log.cc includes it).
// Thread-safe. A message of a disabled level costs one relaxed load.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "store/base/result.h"

namespace kvcachefs::log {

enum class Level : int { kTrace = 0, kDebug, kInfo, kWarn, kError, kOff };

Result<Level> parse_level(std::string_view text);  // "trace", "debug", "info", "warn", "error", "off"
std::string_view level_name(Level level);
void set_level(Level level);
Level level();
bool enabled(Level level);
// Logs to `path` from now on, rotated at `max_bytes`, keeping `keep_files` old files. Before this call: to stderr.
Status to_file(const std::string& path, size_t max_bytes, size_t keep_files);
// The newest lines, oldest first, for the mount's `.kvcachefs/log`.
std::vector<std::string> recent();
// Of warnings and errors of one kind (log_limiter.h) ten lines are written in ten seconds; one line tells the number of the others.
void write(Level level, std::string_view message);
// Writes the lines about what was held back, for periods that are over or for all. Call regularly.
void tell_repeated(bool all = false);
// The process ends for a reason that was just logged: warnings and errors from now on follow from it, and are counted only. flush() tells their number.
void silence_what_follows();
// From now on a thread writes to stderr or the file, and no caller waits for them: beyond some thousand lines that wait the oldest are not written, and
// a line tells how many. recent() has the last lines all the same. Call once, after the daemon was forked (a later child may only exec).
void write_behind();
// Returns when all is written, or when a line was not taken for some seconds.
void flush();

template <class... Args>
void trace(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kTrace)) write(Level::kTrace, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kDebug)) write(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kInfo)) write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kWarn)) write(Level::kWarn, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kError)) write(Level::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace kvcachefs::log

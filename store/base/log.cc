#include "store/base/log.h"

#include <array>
#include <atomic>
#include <memory>

#include <spdlog/sinks/ringbuffer_sink.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "store/base/clock.h"
#include "store/base/log_limiter.h"

namespace kvcachefs::log {

namespace {

constexpr size_t kRecentLines = 512;
constexpr std::array<std::string_view, 6> kNames = {"trace", "debug", "info", "warn", "error", "off"};
std::atomic<int> current_level{static_cast<int>(Level::kInfo)};

struct Sinks {
  std::shared_ptr<spdlog::sinks::ringbuffer_sink_mt> ring =
      std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(kRecentLines);
  std::atomic<std::shared_ptr<spdlog::logger>> logger{
      make(std::make_shared<spdlog::sinks::stderr_sink_mt>())};

  std::shared_ptr<spdlog::logger> make(spdlog::sink_ptr target) const {
    auto made = std::make_shared<spdlog::logger>("kvcachefs", spdlog::sinks_init_list{std::move(target), ring});
    made->set_level(spdlog::level::trace);  // enabled() filters
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
    made->flush_on(spdlog::level::info);
    return made;
  }
};

// Never destroyed: threads may still log while the process ends.
Sinks& sinks() {
  static auto* instance = new Sinks;
  return *instance;
}

// Never destroyed, like the sinks.
Limiter& limiter() {
  static auto* instance = new Limiter;
  return *instance;
}

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kTrace: return spdlog::level::trace;
    case Level::kDebug: return spdlog::level::debug;
    case Level::kInfo: return spdlog::level::info;
    case Level::kWarn: return spdlog::level::warn;
    case Level::kError: return spdlog::level::err;
    case Level::kOff: return spdlog::level::off;
  }
  return spdlog::level::err;
}

}  // namespace

Result<Level> parse_level(std::string_view text) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == text) return static_cast<Level>(i);
  return fail(Code::kInvalid, fmt::format("'{}' is not a log level (trace, debug, info, warn, error, off)", text));
}

std::string_view level_name(Level level) { return kNames[static_cast<size_t>(level)]; }
void set_level(Level level) { current_level.store(static_cast<int>(level), std::memory_order_relaxed); }
Level level() { return static_cast<Level>(current_level.load(std::memory_order_relaxed)); }
bool enabled(Level level) { return static_cast<int>(level) >= current_level.load(std::memory_order_relaxed); }

Status to_file(const std::string& path, size_t max_bytes, size_t keep_files) {
  try {
    sinks().logger.store(
        sinks().make(std::make_shared<spdlog::sinks::rotating_file_sink_mt>(path, max_bytes, keep_files)));
    return {};
  } catch (const spdlog::spdlog_ex& problem) {
    return fail(Code::kIo, fmt::format("log file {}: {}", path, problem.what()));
  }
}

std::vector<std::string> recent() { return sinks().ring->last_formatted(); }

void write(Level level, std::string_view message) {
  const auto logger = sinks().logger.load();
  if (level >= Level::kWarn) {
    const Limiter::Verdict verdict = limiter().ask(static_cast<int>(level), message, system_clock().monotonic_ns());
    if (!verdict.first.empty()) logger->log(to_spdlog(level), "{}", verdict.first);
    if (!verdict.write) return;
  }
  logger->log(to_spdlog(level), "{}", message);
}

void tell_repeated(bool all) {
  for (const Limiter::Line& line : limiter().take_held_back(system_clock().monotonic_ns(), all))
    sinks().logger.load()->log(to_spdlog(static_cast<Level>(line.level)), "{}", line.text);
}

void flush() {
  tell_repeated(/*all=*/true);
  sinks().logger.load()->flush();
}

}  // namespace kvcachefs::log

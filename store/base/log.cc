#include "store/base/log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>

#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/ringbuffer_sink.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/spdlog.h>

#include "store/base/clock.h"
#include "store/base/log_limiter.h"
#include "store/base/log_writer.h"
#include "store/base/unique_fd.h"

namespace kvcachefs::log {

namespace {

constexpr size_t kRecentLines = 512;
constexpr size_t kMostWaiting = 4096;
constexpr std::chrono::milliseconds kPatience{2'000};  // for one line, at the end
constexpr std::array<std::string_view, 6> kNames = {"trace", "debug", "info", "warn", "error", "off"};
std::atomic<int> current_level{static_cast<int>(Level::kInfo)};

// Not through the C library's stream: a thread that waits in a write holds its lock, and the end of the process would wait for that.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    for (size_t written = 0; written < line.size();) {
      const ssize_t more = retry_interrupted([&] { return ::write(STDERR_FILENO, line.data() + written, line.size() - written); });
      if (more <= 0) return;
      written += static_cast<size_t>(more);
    }
  }
  void flush_() override {}
};

struct Sinks {
  std::shared_ptr<spdlog::sinks::ringbuffer_sink_mt> ring =
      std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(kRecentLines);
  std::shared_ptr<spdlog::logger> to_ring = make(ring);
  std::atomic<std::shared_ptr<spdlog::logger>> logger{make(std::make_shared<StderrSink>())};
  std::atomic<Writer*> writer{nullptr};  // null: each call writes itself

  static std::shared_ptr<spdlog::logger> make(spdlog::sink_ptr target) {
    auto made = std::make_shared<spdlog::logger>("kvcachefs", std::move(target));
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

void write_line(std::chrono::system_clock::time_point at, Level level, std::string_view text) {
  sinks().logger.load()->log(at, spdlog::source_loc(), to_spdlog(level), spdlog::string_view_t(text.data(), text.size()));
}

void pass_on(Level level, std::string_view text) {
  const auto at = std::chrono::system_clock::now();
  sinks().to_ring->log(at, spdlog::source_loc(), to_spdlog(level), spdlog::string_view_t(text.data(), text.size()));
  if (Writer* const writer = sinks().writer.load()) writer->add(at, static_cast<int>(level), std::string(text));
  else write_line(at, level, text);
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
  struct stat there{};
  const bool is_pipe = ::stat(path.c_str(), &there) == 0 && S_ISFIFO(there.st_mode);
  if (is_pipe && !UniqueFd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC)).valid())  // opening it would wait for a reader
    return fail(Code::kInvalid, fmt::format("log file {}: a pipe that nobody reads; name a file, or leave the option out", path));
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
  if (level >= Level::kWarn) {
    const Limiter::Verdict verdict = limiter().ask(static_cast<int>(level), message, system_clock().monotonic_ns());
    if (!verdict.first.empty()) pass_on(level, verdict.first);
    if (!verdict.write) return;
  }
  pass_on(level, message);
}

void tell_repeated(bool all) {
  for (const Limiter::Line& line : limiter().take_held_back(system_clock().monotonic_ns(), all))
    pass_on(static_cast<Level>(line.level), line.text);
}

void silence_what_follows() { limiter().let_nothing_through(static_cast<int>(Level::kInfo)); }

void write_behind() {
  // Never destroyed, like the sinks.
  auto* const writer = new Writer(kMostWaiting, [](const Writer::Line& line) {
    if (line.dropped > 0) write_line(line.at, Level::kWarn, fmt::format("{} lines were dropped here: the log took none for a while", line.dropped));
    write_line(line.at, static_cast<Level>(line.level), line.text);
  });
  if (Status started = writer->start(); !started) {
    delete writer;
    return warn("each call that logs something waits for the log: {}", started.error().message);
  }
  sinks().writer = writer;
}

void flush() {
  tell_repeated(/*all=*/true);
  Writer* const writer = sinks().writer.load();
  if (writer == nullptr || writer->flush(kPatience)) sinks().logger.load()->flush();
}

}  // namespace kvcachefs::log

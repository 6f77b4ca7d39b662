#include "store/base/log_writer.h"

#include <mutex>
#include <new>
#include <utility>

#include "store/base/thread.h"

namespace kvcachefs::log {

Status Writer::start() {
  KVC_ASSIGN(thread_, start_thread("kvc-log", [this] { run(); }));
  return {};
}

Writer::~Writer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Writer::add(std::chrono::system_clock::time_point at, int level, std::string text) {
  {
    const std::lock_guard lock(mutex_);
    lines_.push_back({at, level, std::move(text), 0});
    if (lines_.size() > most_lines_) {
      const uint64_t dropped = lines_.front().dropped + 1;
      lines_.pop_front();
      lines_.front().dropped = dropped;
    }
  }
  ready_.notify_one();
}

bool Writer::flush(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  const auto is_idle = [this] { return lines_.empty() && !is_writing_; };
  while (!is_idle()) {
    const uint64_t before = written_lines_;
    if (!written_.wait_for(lock, patience, [&] { return is_idle() || written_lines_ != before; })) return false;
  }
  return true;
}

void Writer::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    ready_.wait(lock, [this] { return stopping_ || !lines_.empty(); });
    if (lines_.empty()) return;
    const Line line = std::move(lines_.front());
    lines_.pop_front();
    is_writing_ = true;
    lock.unlock();
    try {
      write_(line);
    } catch (const std::bad_alloc&) {  // the line is lost
    }
    lock.lock();
    is_writing_ = false;
    ++written_lines_;
    written_.notify_all();
  }
}

}  // namespace kvcachefs::log

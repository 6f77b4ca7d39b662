#include "tools/load/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

namespace kvcachefs {
namespace {

constexpr size_t kBarColumns = 30;

size_t terminal_columns() {
  winsize size;
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

Progress::Progress(size_t steps, bool quiet)
    : on_(!quiet && ::isatty(STDERR_FILENO) == 1), steps_(std::max<size_t>(steps, 1)) {}

Progress::~Progress() {
  if (on_) std::fputs("\r\x1b[K", stderr);
}

void Progress::show(const std::string& what) {
  what_ = what;
  draw();
}

void Progress::advance(size_t steps) {
  done_ = std::min(steps_, done_ + steps);
  draw();
}

void Progress::draw() const {
  if (!on_) return;
  const size_t filled = kBarColumns * done_ / steps_;
  std::string line = fmt::format("[{}{}] {:3d}% {}", std::string(filled, '#'), std::string(kBarColumns - filled, ' '),
                                 100 * done_ / steps_, what_);
  line.resize(std::min(line.size(), terminal_columns() - 1));
  std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
  std::fflush(stderr);
}

}  // namespace kvcachefs

#include "store/cache/page_warmer.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "store/base/thread.h"

namespace kvcachefs {

uint64_t PageWarmer::ahead_bytes() const {
  constexpr uint64_t kMostBytes = 512 * kMiB;
  return std::min(kMostBytes, parts_.pool.limit_bytes() / 4);
}

bool PageWarmer::is_due() const {
  return parts_.pool.mapped_bytes() <= parts_.pool.used_bytes() + ahead_bytes() / 2 || parts_.files.wants_spares(ahead_bytes() / 2);
}

Status PageWarmer::start() {
  parts_.files.expect_warmer();
  kick();
  KVC_ASSIGN(thread_, start_thread("kvc-warmer", [this] { run(); }));
  return {};
}

void PageWarmer::stop() {
  stopping_ = true;
  kick();
  if (thread_.joinable()) thread_.join();
}

void PageWarmer::run() {
  // Runs after all other threads: it may keep a processor busy for seconds. (Not SCHED_IDLE: it takes the pool's lock now and then.)
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 19);
  parts_.first();
  while (true) {
    wakeup_.wait();
    if (stopping_) return;
    const uint64_t half = ahead_bytes() / 2;
    while (!stopping_ && (parts_.files.prepare_ahead(half, half) || parts_.pool.prepare_ahead(ahead_bytes()))) {
    }
  }
}

}  // namespace kvcachefs

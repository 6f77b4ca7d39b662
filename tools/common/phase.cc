#include "tools/common/phase.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tools/common/cpu_time.h"

namespace kvcachefs {

namespace {
// All threads of a phase begin at once. (std::barrier of libstdc++ 12 can lose the wake-up of a waiter: it stores the phase and
// then asks whether anybody waits, with nothing between that keeps the two in order.)
class StartGate {
 public:
  explicit StartGate(unsigned threads) : awaited_(threads) {}
  void arrive_and_wait() {
    std::unique_lock lock(mutex_);
    if (--awaited_ == 0) {
      start_s_ = monotonic_s();
      all_here_.notify_all();
    }
    all_here_.wait(lock, [&] { return awaited_ == 0; });
  }
  // When the last one arrived. Once all have.
  double start_s() const { return start_s_; }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  unsigned awaited_;    // mutex_
  double start_s_ = 0;  // mutex_, until all have arrived
};
}  // namespace

Result<PhaseCost> run_phase(const std::string& directory, unsigned threads,
                            const std::function<Status(unsigned)>& body) {
  const auto before = read_mount_status(directory);
  const auto daemon_before = before ? process_cpu_s(before->pid) : std::nullopt;
  PhaseCost cost;
  Status outcome;
  std::mutex mutex;  // guards cost.client_cpu_s, outcome and end
  double end = 0;
  StartGate gate(threads);
  auto work = [&](unsigned thread) {
    gate.arrive_and_wait();
    const double cpu = thread_cpu_s();
    Status done = body(thread);
    const double used = thread_cpu_s() - cpu;
    const double finished = monotonic_s();
    std::lock_guard lock(mutex);
    cost.client_cpu_s += used;
    end = std::max(end, finished);
    if (!done && outcome) outcome = std::move(done);
  };
  std::vector<std::jthread> workers;
  for (unsigned i = 0; i < threads; ++i) workers.emplace_back(work, i);
  workers.clear();  // joins
  cost.wall_s = end - gate.start_s();
  if (!outcome) return std::unexpected(std::move(outcome).error());
  if (before) {
    const auto daemon_after = process_cpu_s(before->pid);
    if (daemon_before && daemon_after) cost.daemon_cpu_s = *daemon_after - *daemon_before;
    if (const auto after = read_mount_status(directory)) {
      cost.counters = counter_changes(before->numbers, after->numbers);
    }
  }
  return cost;
}

}  // namespace kvcachefs

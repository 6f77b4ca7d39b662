#include "tools/load/phase.h"

#include <algorithm>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tools/load/cpu_time.h"
#include "tools/load/gate.h"

namespace kvcachefs {

Result<PhaseCost> run_phase(const std::string& directory, unsigned threads,
                            const std::function<Status(unsigned)>& body) {
  const auto before = read_mount_status(directory);
  const auto daemon_before = before ? process_cpu_s(before->pid) : std::nullopt;
  PhaseCost cost;
  Status outcome;
  std::mutex mutex;  // guards cost.client_cpu_s, outcome and end
  double end = 0;
  Gate gate(threads);  // all begin at once
  auto work = [&](unsigned thread) {
    if (!gate.arrive_and_wait()) return;
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
  workers.reserve(threads);
  try {
    for (unsigned i = 0; i < threads; ++i) workers.emplace_back(work, i);
  } catch (const std::system_error& error) {
    gate.abort();  // those that were started wait for the others
    workers.clear();
    return fail_errno(error.code().value(), fmt::format("cannot start {} threads", threads));
  }
  workers.clear();  // joins
  cost.wall_s = end - gate.opened_s();
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

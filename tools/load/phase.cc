#include "tools/load/phase.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tools/load/cpu_time.h"
#include "tools/load/gate.h"

namespace kvcachefs {

namespace {

// The mounts that contain some directories, with their state at construction.
class MountAccounts {
 public:
  explicit MountAccounts(const std::vector<std::string>& directories) {
    for (const std::string& directory : directories) {
      auto mount = read_mount_status(directory);
      if (!mount) continue;
      const auto cpu_s = process_cpu_s(mount->pid);
      const std::string root = mount->root;
      before_.try_emplace(root, Account{std::move(mount->numbers), mount->pid, cpu_s});
    }
  }
  // Adds what the mounts used and counted since then.
  void add_to(PhaseCost& cost) const {
    for (const auto& [root, before] : before_) {
      const auto cpu_s = process_cpu_s(before.pid);
      if (before.cpu_s && cpu_s) cost.daemon_cpu_s = cost.daemon_cpu_s.value_or(0) + *cpu_s - *before.cpu_s;
      const auto after = read_mount_status(root);
      if (!after) continue;
      for (const auto& [path, change] : counter_changes(before.numbers, after->numbers)) cost.counters[path] += change;
    }
  }

 private:
  struct Account {
    StatusNumbers numbers;
    pid_t pid;
    std::optional<double> cpu_s;
  };
  std::map<std::string, Account> before_;  // by the root of the mount
};

}  // namespace

Result<PhaseCost> run_phase(const std::vector<std::string>& directories, unsigned threads,
                            const std::function<Status(unsigned)>& body) {
  const MountAccounts accounts(directories);
  PhaseCost cost;
  Status outcome;
  std::mutex mutex;  // guards cost.client_cpu_s, outcome and end
  double end = 0;
  Gate gate(threads);  // all threads start at once
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
    gate.abort();  // the threads that were started wait for the others
    workers.clear();
    return fail_errno(error.code().value(), fmt::format("cannot start {} threads", threads));
  }
  workers.clear();  // joins
  cost.wall_s = end - gate.opened_s();
  if (!outcome) return std::unexpected(std::move(outcome).error());
  accounts.add_to(cost);
  return cost;
}

Result<PhaseCost> run_phase(const std::string& directory, unsigned threads,
                            const std::function<Status(unsigned)>& body) {
  return run_phase(std::vector{directory}, threads, body);
}

}  // namespace kvcachefs

#include "tools/load/request_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <queue>
#include <thread>

#include "store/base/units.h"
#include "tools/load/cpu_time.h"
#include "tools/load/interrupt.h"
#include "tools/load/statistics.h"

namespace kvcachefs {
namespace {

// Indexes of requests in order; one for all workers, or one for each.
struct RequestQueue {
  std::vector<size_t> indexes;
  std::atomic<size_t> next = 0;
};

std::vector<std::unique_ptr<RequestQueue>> make_queues(const RunOptions& run, std::span<const EngineRequest> requests) {
  std::vector<std::unique_ptr<RequestQueue>> queues;
  for (unsigned i = 0; i < (run.pinned ? run.workers : 1); ++i) queues.push_back(std::make_unique<RequestQueue>());
  for (size_t i = 0; i < requests.size(); ++i) {
    queues[run.pinned ? requests[i].instance % run.workers : 0]->indexes.push_back(i);
  }
  return queues;
}

void sleep_until(double when_s) {
  for (double left = when_s - monotonic_s(); left > 0 && !interrupted(); left = when_s - monotonic_s()) {
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, 0.1)));
  }
}

}  // namespace

Result<RunResult> run_requests(const std::string& root, const EngineOptions& engine, const RunOptions& run,
                               std::span<const EngineRequest> requests, const std::function<void()>& on_done) {
  std::vector<RequestEngine> engines;
  const size_t most = max_chunks(requests);
  for (unsigned worker = 0; worker < run.workers; ++worker) {
    KVC_ASSIGN(RequestEngine one, RequestEngine::create(root, engine, worker, most));
    engines.push_back(std::move(one));
  }
  RunResult result;
  result.outcomes.resize(requests.size());
  const auto queues = make_queues(run, requests);
  std::mutex done_mutex;  // serialises on_done
  std::atomic<bool> failed = false;
  const double start = monotonic_s();
  auto serve_one = [&](unsigned worker, size_t index) -> Status {
    const double scheduled = run.open_loop ? start + requests[index].arrival_s / run.time_scale : 0;
    if (run.open_loop) sleep_until(scheduled);
    KVC_TRY(check_interrupt());
    const double queued = run.open_loop ? std::max(0.0, monotonic_s() - scheduled) : 0;
    KVC_ASSIGN(result.outcomes[index], engines[worker].serve(requests[index]));
    result.outcomes[index].queue_s = queued;
    std::lock_guard lock(done_mutex);
    on_done();
    return {};
  };
  auto work = [&](unsigned worker) -> Status {
    RequestQueue& queue = *queues[run.pinned ? worker : 0];
    for (size_t at = queue.next++; at < queue.indexes.size() && !failed; at = queue.next++) {
      Status served = serve_one(worker, queue.indexes[at]);
      if (served) continue;
      failed = true;
      return served;
    }
    return {};
  };
  KVC_ASSIGN(result.cost, run_phase(root, run.workers, work));
  result.cost.client_cpu_s = 0;
  for (const RequestOutcome& outcome : result.outcomes) result.cost.client_cpu_s += outcome.client_cpu_s;
  return result;
}

std::vector<RequestOutcome> recompute_only(const EngineOptions& engine, const RunOptions& run,
                                           std::span<const EngineRequest> requests) {
  // When each worker is free next; with pinned requests a queue of one for every worker.
  using FreeTimes = std::priority_queue<double, std::vector<double>, std::greater<>>;
  std::vector<FreeTimes> queues(run.pinned ? run.workers : 1);
  for (unsigned worker = 0; worker < run.workers; ++worker) queues[worker % queues.size()].push(0);
  std::vector<RequestOutcome> outcomes;
  for (const EngineRequest& request : requests) {
    RequestOutcome outcome;
    outcome.input_tokens = request.input_tokens;
    outcome.prefill_s = static_cast<double>(std::max<uint64_t>(1, request.input_tokens)) / engine.prefill_tokens_per_s;
    if (run.open_loop) {
      FreeTimes& free_times = queues[request.instance % queues.size()];
      const double arrival = request.arrival_s / run.time_scale;
      const double begin = std::max(arrival, free_times.top());
      outcome.queue_s = begin - arrival;
      free_times.pop();
      free_times.push(begin + outcome.prefill_s);
    }
    outcomes.push_back(outcome);
  }
  return outcomes;
}

void report_outcomes(Report& report, const std::string& workload, const std::string& scenario, size_t dir,
                     std::span<const RequestOutcome> outcomes, uint64_t bytes_per_chunk) {
  auto add = [&](const char* measure, const char* unit, double value, Limit limit = Limit::kNone) {
    report.add({workload, scenario, measure, unit, limit}, dir, value);
  };
  std::vector<double> ttft_ms, restore_ms;
  RequestOutcome sum;
  for (const RequestOutcome& one : outcomes) {
    ttft_ms.push_back(one.ttft_s() * 1e3);
    if (one.hit_chunks > 0) restore_ms.push_back((one.probe_s + one.read_s) * 1e3);
    sum.read_s += one.read_s;
    sum.store_s += one.store_s;
    sum.input_tokens += one.input_tokens;
    sum.hit_tokens += one.hit_tokens;
    sum.hit_chunks += one.hit_chunks;
    sum.lost_chunks += one.lost_chunks;
    sum.stored_chunks += one.stored_chunks;
  }
  add("ttft_p50", "ms", percentile(ttft_ms, 50));
  add("ttft_p95", "ms", percentile(ttft_ms, 95));
  add("ttft_p99", "ms", percentile(ttft_ms, 99));
  add("hit_tokens", "tokens", static_cast<double>(sum.hit_tokens));
  if (sum.input_tokens > 0) {
    add("hit_ratio", "%", 100 * static_cast<double>(sum.hit_tokens) / static_cast<double>(sum.input_tokens));
  }
  if (sum.hit_chunks + sum.stored_chunks == 0) return;  // no directory was used
  const auto gib = [&](uint64_t chunks) {
    return static_cast<double>(chunks * bytes_per_chunk) / static_cast<double>(kGiB);
  };
  add("lost_after_probe", "chunks", static_cast<double>(sum.lost_chunks));
  add("read", "GiB", gib(sum.hit_chunks));
  add("written", "GiB", gib(sum.stored_chunks));
  if (!restore_ms.empty()) {
    add("restore_p50", "ms", percentile(restore_ms, 50));
    add("restore_p99", "ms", percentile(restore_ms, 99));
    add("read_rate", "GiB/s", gib(sum.hit_chunks) / sum.read_s, Limit::kRawRead);
  }
  if (sum.stored_chunks > 0) add("store_rate", "GiB/s", gib(sum.stored_chunks) / sum.store_s, Limit::kRawWrite);
}

}  // namespace kvcachefs

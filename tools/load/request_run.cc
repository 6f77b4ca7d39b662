#include "tools/load/request_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <queue>
#include <thread>
#include <unordered_map>

#include "tools/load/cpu_time.h"
#include "tools/load/interrupt.h"

namespace kvcachefs {
namespace {

// The indexes of an engine's requests, in order.
struct RequestQueue {
  std::vector<size_t> indexes;
  std::atomic<size_t> next = 0;
};

std::vector<std::unique_ptr<RequestQueue>> make_queues(unsigned engines, std::span<const EngineRequest> requests) {
  std::vector<std::unique_ptr<RequestQueue>> queues;
  for (unsigned i = 0; i < engines; ++i) queues.push_back(std::make_unique<RequestQueue>());
  for (size_t i = 0; i < requests.size(); ++i) queues[requests[i].engine % engines]->indexes.push_back(i);
  return queues;
}

void sleep_until(double when_s) {
  for (double left = when_s - monotonic_s(); left > 0 && !interrupted(); left = when_s - monotonic_s()) {
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, 0.1)));
  }
}

// Makes requests start in the order of their indexes. Thread-safe.
class StartOrder {
 public:
  // Returns false once end() was called.
  bool wait_for(size_t index) {
    std::unique_lock lock(mutex_);
    moved_.wait(lock, [&] { return next_ == index || ended_; });
    if (ended_) return false;
    ++next_;
    moved_.notify_all();
    return true;
  }
  // Ends every wait. Called when a worker failed, because the request whose turn it is may then never come.
  void end() {
    std::lock_guard lock(mutex_);
    ended_ = true;
    moved_.notify_all();
  }

 private:
  std::mutex mutex_;  // a leaf
  std::condition_variable moved_;
  size_t next_ = 0;     // mutex_
  bool ended_ = false;  // mutex_
};

}  // namespace

Result<RunResult> run_requests(const std::vector<std::string>& roots, const EngineOptions& engine, const RunOptions& run,
                               std::span<const EngineRequest> requests, const std::function<void()>& on_done) {
  const unsigned workers = run.engines * run.workers;
  const auto engine_of = [&](unsigned worker) { return worker / run.workers; };
  std::vector<RequestEngine> engines;
  const size_t most = max_chunks(requests);
  for (unsigned worker = 0; worker < workers; ++worker) {
    const std::string& root = roots[engine_of(worker) % roots.size()];
    KVC_ASSIGN(RequestEngine one, RequestEngine::create(root, engine, worker, most));
    engines.push_back(std::move(one));
  }
  RunResult result;
  result.outcomes.resize(requests.size());
  const auto queues = make_queues(run.engines, requests);
  StartOrder order;
  std::mutex done_mutex;  // serialises on_done
  const double start = monotonic_s();
  auto serve_one = [&](unsigned worker, size_t index) -> Status {
    const double scheduled = run.open_loop ? start + requests[index].arrival_s / run.time_scale : 0;
    if (run.open_loop) sleep_until(scheduled);
    KVC_TRY(check_interrupt());
    const double begin = monotonic_s();
    KVC_ASSIGN(RequestOutcome outcome, engines[worker].serve(requests[index]));
    outcome.begin_s = begin - start;
    outcome.end_s = monotonic_s() - start;
    if (run.open_loop) outcome.queue_s = std::max(0.0, begin - scheduled);
    result.outcomes[index] = outcome;
    std::lock_guard lock(done_mutex);
    on_done();
    return {};
  };
  std::atomic<bool> failed = false;
  auto work = [&](unsigned worker) -> Status {
    RequestQueue& queue = *queues[engine_of(worker)];
    for (size_t at = queue.next++; at < queue.indexes.size() && !failed; at = queue.next++) {
      const size_t index = queue.indexes[at];
      if (!run.open_loop && !order.wait_for(index)) break;
      Status served = serve_one(worker, index);
      if (served) continue;
      failed = true;
      order.end();
      return served;
    }
    return {};
  };
  KVC_ASSIGN(result.cost, run_phase(roots, workers, work));
  result.cost.client_cpu_s = 0;
  for (const RequestOutcome& outcome : result.outcomes) result.cost.client_cpu_s += outcome.client_cpu_s;
  count_unfound(requests, result.outcomes);
  return result;
}

std::vector<RequestOutcome> recompute_only(const EngineOptions& engine, const RunOptions& run,
                                           std::span<const EngineRequest> requests) {
  // The times at which each worker of an engine is free next.
  using FreeTimes = std::priority_queue<double, std::vector<double>, std::greater<>>;
  std::vector<FreeTimes> queues(run.engines);
  for (FreeTimes& queue : queues) {
    for (unsigned worker = 0; worker < run.workers; ++worker) queue.push(0);
  }
  std::vector<RequestOutcome> outcomes;
  for (const EngineRequest& request : requests) {
    RequestOutcome outcome;
    outcome.input_tokens = request.input_tokens;
    outcome.prefill_s = static_cast<double>(std::max<uint64_t>(1, request.input_tokens)) / engine.prefill_tokens_per_s;
    if (run.open_loop) {
      FreeTimes& free_times = queues[request.engine % queues.size()];
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

void count_unfound(std::span<const EngineRequest> requests, std::span<RequestOutcome> outcomes) {
  std::vector<size_t> by_begin(outcomes.size());
  std::iota(by_begin.begin(), by_begin.end(), 0);
  std::vector<size_t> by_end = by_begin;
  std::ranges::sort(by_begin, {}, [&](size_t i) { return outcomes[i].begin_s; });
  std::ranges::sort(by_end, {}, [&](size_t i) { return outcomes[i].end_s; });
  std::unordered_map<uint64_t, double> stored_s;  // when the last request that stored a chunk ended
  size_t ended = 0;
  for (const size_t index : by_begin) {
    RequestOutcome& outcome = outcomes[index];
    for (; ended < by_end.size() && outcomes[by_end[ended]].end_s <= outcome.begin_s; ++ended) {
      const size_t other = by_end[ended];
      const auto written = std::span(requests[other].keys).subspan(outcomes[other].hit_chunks);
      for (const uint64_t key : written) stored_s[key] = outcomes[other].end_s;
    }
    for (const uint64_t key : std::span(requests[index].keys).subspan(outcome.hit_chunks)) {
      const auto found = stored_s.find(key);
      if (found == stored_s.end()) continue;
      ++outcome.unfound_chunks;
      outcome.unfound_age_s = std::max(outcome.unfound_age_s, outcome.begin_s - found->second);
    }
  }
}

}  // namespace kvcachefs

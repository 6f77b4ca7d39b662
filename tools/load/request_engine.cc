#include "tools/load/request_engine.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <thread>

#include <fmt/format.h>

#include "tools/load/cpu_time.h"
#include "tools/load/interrupt.h"
#include "tools/load/payload.h"

namespace kvcachefs {
namespace {

// Adds the wall and CPU time of one scope to two sums.
class Stopwatch {
 public:
  Stopwatch(double& wall_s, double& cpu_s) : wall_s_(wall_s), cpu_s_(cpu_s) {}
  ~Stopwatch() {
    wall_s_ += monotonic_s() - wall_start_;
    cpu_s_ += thread_cpu_s() - cpu_start_;
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& wall_s_;
  double& cpu_s_;
  double cpu_start_ = thread_cpu_s();
  double wall_start_ = monotonic_s();
};

}  // namespace

size_t max_chunks(std::span<const EngineRequest> requests) {
  size_t most = 0;
  for (const EngineRequest& request : requests) most = std::max(most, request.keys.size());
  return most;
}

Result<RequestEngine> RequestEngine::create(const std::string& root, const EngineOptions& options, unsigned worker,
                                            size_t max_chunks) {
  const uint64_t bytes = file_bytes(options.style, options.chunk_bytes);
  KVC_ASSIGN(SlotPool pool, SlotPool::create(bytes, max_chunks, 1, options.pool_bytes));
  KVC_ASSIGN(Arena content, Arena::create(bytes));
  return RequestEngine(root, options, worker, std::move(pool), std::move(content));
}

RequestEngine::RequestEngine(const std::string& root, const EngineOptions& options, unsigned worker, SlotPool pool,
                             Arena content)
    : options_(options),
      file_bytes_(file_bytes(options.style, options.chunk_bytes)),
      io_(root, options.style, worker),
      pool_(std::move(pool)),
      content_(std::move(content)),
      shuffle_seed_(worker) {}

// Returns how many of [from, from + count) exist without a gap.
Result<size_t> RequestEngine::probe(const Names& names, size_t from, size_t count, RequestOutcome& outcome) {
  const Stopwatch watch(outcome.probe_s, outcome.client_cpu_s);
  size_t present = 0;
  for (size_t i = 0; i < count; ++i) {
    KVC_ASSIGN(const bool there, io_.probe(names[from + i]));
    if (there && present == i) ++present;
    if (!there && !probes_past_a_miss(options_.style)) break;
  }
  return present;
}

// Returns how many of [from, from + count), which existed a moment ago, could be read. The clock does not stop between two
// chunks, because a mount would read ahead in the pause: if not each chunk of a request has its own buffer, samples are
// compared meanwhile.
Result<size_t> RequestEngine::load(const Names& names, size_t from, size_t count, RequestOutcome& outcome) {
  const Stopwatch watch(outcome.read_s, outcome.client_cpu_s);
  size_t loaded = 0;
  for (; loaded < count; ++loaded) {
    Slot& slot = pool_.at(from + loaded);
    KVC_ASSIGN(const bool there, io_.load(names[from + loaded], file_bytes_, slot));
    if (!there) break;
    if (!pool_.whole(names.size()) && !slot.sample_matches()) KVC_TRY(slot.verify());
  }
  return loaded;
}

Status RequestEngine::restore(const Names& names, RequestOutcome& outcome) {
  const uint64_t style_batch = probe_batch(options_.style);
  const size_t batch = style_batch == 0 ? names.size() : std::min<size_t>(names.size(), style_batch);
  for (size_t from = 0; from < names.size(); from += batch) {
    const size_t count = std::min(batch, names.size() - from);
    KVC_ASSIGN(const size_t present, probe(names, from, count, outcome));
    KVC_ASSIGN(const size_t loaded, load(names, from, present, outcome));
    outcome.hit_chunks += loaded;
    outcome.lost_chunks += present - loaded;
    if (loaded < count) break;  // a prefix is usable only up to its first gap
  }
  if (pool_.whole(names.size())) return pool_.verify_and_clear(1);
  pool_.clear();
  return {};
}

// Reads the chunks that the pool could not keep once more and checks them in full, while the clock is stopped.
Status RequestEngine::verify_again(const Names& names, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    KVC_TRY(check_interrupt());
    KVC_ASSIGN(const bool there, io_.load(names[i], file_bytes_, pool_.at(0)));
    if (there) KVC_TRY(pool_.at(0).verify());
  }
  pool_.clear();
  return {};
}

void RequestEngine::prefill(RequestOutcome& outcome) const {
  outcome.hit_tokens = std::min(outcome.input_tokens, outcome.hit_chunks * options_.chunk_tokens);
  // Even after a complete hit an engine computes the last token, to continue from it.
  const uint64_t missing = std::max<uint64_t>(1, outcome.input_tokens - outcome.hit_tokens);
  outcome.prefill_s = static_cast<double>(missing) / options_.prefill_tokens_per_s;
  if (!options_.sleep_prefill) return;
  const double until = monotonic_s() + outcome.prefill_s;
  for (double left = outcome.prefill_s; left > 0 && !interrupted(); left = until - monotonic_s()) {
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, 0.1)));
  }
}

Status RequestEngine::store(const Names& names, size_t from, RequestOutcome& outcome) {
  std::vector<size_t> order(names.size() - from);
  std::iota(order.begin(), order.end(), from);
  if (options_.random_store_order) std::ranges::shuffle(order, std::mt19937_64(++shuffle_seed_));
  const auto content = content_.span().first(file_bytes_);
  for (const size_t i : order) {
    Payload(names[i].payload_seed).fill(content);
    double store_s = 0;
    const Result<bool> written = [&] {
      const Stopwatch watch(store_s, outcome.client_cpu_s);
      return io_.store(names[i], content);
    }();
    KVC_TRY(written);
    if (!*written) continue;  // another worker was first
    outcome.store_s += store_s;
    ++outcome.stored_chunks;
  }
  return {};
}

Result<RequestOutcome> RequestEngine::serve(const EngineRequest& request) {
  Names names;
  names.reserve(request.keys.size());
  for (const uint64_t key : request.keys) names.push_back(chunk_name(options_.style, key, 0));
  RequestOutcome outcome;
  outcome.input_tokens = request.input_tokens;
  KVC_TRY(restore(names, outcome));
  prefill(outcome);
  KVC_TRY(store(names, outcome.hit_chunks, outcome));
  if (!pool_.whole(names.size())) KVC_TRY(verify_again(names, outcome.hit_chunks));
  return outcome;
}

}  // namespace kvcachefs

#include "tools/bench/restore_pass.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>

#include <fmt/format.h>

#include "store/base/units.h"
#include "tools/bench/restart.h"
#include "tools/load/arena.h"
#include "tools/load/chunk_io.h"
#include "tools/load/cold_start.h"
#include "tools/load/cpu_time.h"
#include "tools/load/gate.h"
#include "tools/load/interrupt.h"
#include "tools/load/payload.h"
#include "tools/load/statistics.h"

namespace kvcachefs {
namespace {

// One prefix being read by one or several threads.
struct ChainProgress {
  const Chain* chain = nullptr;
  size_t first_slot = 0;  // first slot of the chain in a pool that holds all chunks
  std::atomic<size_t> next = 0;
  Gate probed{1};  // released when the first thread has probed the whole prefix
};

struct PassState {
  std::string root;
  const PassSpec& spec;
  uint64_t bytes;  // of a file
  std::vector<std::unique_ptr<ChainProgress>> chains;
  SlotPool& pool;
  bool whole = false;
  size_t slots_per_thread = 1;  // if the pool is not whole
  std::mutex mutex;             // guards load_us
  std::vector<double> load_us;
};

Status probe_present(const ChunkIo& io, const ChunkName& name) {
  KVC_ASSIGN(const bool there, io.probe(name));
  if (!there) return fail(Code::kNotFound, name.path + ": stored and not there any more (evicted?)");
  return {};
}

Status load_one(PassState& state, const ChunkIo& io, const ChunkName& name, Slot& slot, std::vector<double>& load_us) {
  const double start = monotonic_s();
  KVC_ASSIGN(const bool there, io.load(name, state.bytes, slot));
  load_us.push_back((monotonic_s() - start) * 1e6);
  if (!there) return fail(Code::kNotFound, name.path + ": stored and not there any more (evicted?)");
  if (!state.whole && !slot.sample_matches()) return slot.verify();
  return {};
}

// Runs one thread of a pass. The first thread of a chain probes, for styles that probe the whole prefix first.
Status read_chain(PassState& state, unsigned thread) {
  ChainProgress& progress = *state.chains[thread / state.spec.threads_per_chain];
  const Chain& chain = *progress.chain;
  const ChunkIo io(state.root, state.spec.style, thread);
  const uint64_t batch = probe_batch(state.spec.style);
  if (batch == kProbeAll) {
    Status probed;
    if (thread % state.spec.threads_per_chain == 0) {
      for (size_t i = 0; i < chain.size() && probed; ++i) probed = probe_present(io, chain[i]);
      progress.probed.arrive();
    } else {
      progress.probed.wait();
    }
    KVC_TRY(std::move(probed));
  }
  std::vector<double> load_us;
  load_us.reserve(chain.size());
  const size_t claim = chunks_claimed(state.spec.style, chain.size(), state.spec.threads_per_chain);
  const bool probes_batches = batch != 0 && batch != kProbeAll;
  size_t local = 0;
  for (size_t from = progress.next.fetch_add(claim); from < chain.size(); from = progress.next.fetch_add(claim)) {
    const size_t to = std::min(from + claim, chain.size());
    KVC_TRY(check_interrupt());
    for (size_t i = from; i < to && probes_batches; ++i) KVC_TRY(probe_present(io, chain[i]));
    for (size_t i = from; i < to; ++i) {
      const size_t slot =
          state.whole ? progress.first_slot + i : thread * state.slots_per_thread + local++ % state.slots_per_thread;
      KVC_TRY(load_one(state, io, chain[i], state.pool.at(slot), load_us));
    }
  }
  std::lock_guard lock(state.mutex);
  state.load_us.insert(state.load_us.end(), load_us.begin(), load_us.end());
  return {};
}

// Reads each chunk once more and checks it in full, while the clock is stopped.
Status verify_chains(PassState& state, std::span<const Chain> chains) {
  const ChunkIo io(state.root, state.spec.style, 0);
  for (const Chain& chain : chains) {
    for (const ChunkName& name : chain) {
      KVC_TRY(check_interrupt());
      KVC_ASSIGN(const bool there, io.load(name, state.bytes, state.pool.at(0)));
      if (!there) return fail(Code::kNotFound, name.path + ": stored and not there any more (evicted?)");
      KVC_TRY(state.pool.at(0).verify());
    }
  }
  state.pool.clear();
  return {};
}

}  // namespace

size_t chunks_claimed(AccessStyle style, size_t chunks, unsigned threads) {
  const uint64_t batch = probe_batch(style);
  if (batch == 0 || batch == kProbeAll) return 1;
  return std::clamp<size_t>((chunks + threads - 1) / threads, 1, batch);
}

Result<SlotPool> make_pool(const BenchSettings& settings, const PassSpec& spec, size_t chunks, unsigned threads) {
  const size_t slots = settings.hot_buffers ? threads : chunks;
  return SlotPool::create(file_bytes(spec.style, spec.chunk_bytes), slots, threads, settings.pool_bytes);
}

Status store_chains(const std::string& root, const PassSpec& spec, std::span<const Chain> chains) {
  const uint64_t bytes = file_bytes(spec.style, spec.chunk_bytes);
  auto store = [&](unsigned thread) -> Status {
    KVC_ASSIGN(const Arena content, Arena::create(bytes));
    ChunkIo io(root, spec.style, thread);
    for (const ChunkName& name : chains[thread]) {
      KVC_TRY(check_interrupt());
      Payload(name.payload_seed).fill(content.span().first(bytes));
      KVC_TRY(io.store(name, content.span().first(bytes)));
    }
    return {};
  };
  KVC_ASSIGN([[maybe_unused]] const PhaseCost cost, run_phase(root, static_cast<unsigned>(chains.size()), store));
  return {};
}

Result<PassResult> restore_pass(const std::string& root, const PassSpec& spec, std::span<const Chain> chains,
                                SlotPool& pool) {
  PassState state{.root = root,
                  .spec = spec,
                  .bytes = file_bytes(spec.style, spec.chunk_bytes),
                  .chains = {},
                  .pool = pool,
                  .whole = false,
                  .slots_per_thread = 1,
                  .mutex = {},
                  .load_us = {}};
  size_t chunks = 0;
  for (const Chain& chain : chains) {
    state.chains.push_back(std::make_unique<ChainProgress>());
    state.chains.back()->chain = &chain;
    state.chains.back()->first_slot = chunks;
    chunks += chain.size();
  }
  const auto threads = static_cast<unsigned>(chains.size()) * spec.threads_per_chain;
  state.whole = pool.whole(chunks);
  state.slots_per_thread = std::max<size_t>(1, pool.size() / threads);
  PassResult pass;
  pass.bytes = chunks * state.bytes;
  KVC_ASSIGN(pass.cost, run_phase(root, threads, [&](unsigned thread) { return read_chain(state, thread); }));
  pass.load_us = std::move(state.load_us);
  KVC_TRY(pool.verify_and_clear(2));
  if (!state.whole) KVC_TRY(verify_chains(state, chains));
  return pass;
}

void report_pass(Report& report, const Metric& base, size_t dir, const std::string& phase, const PassResult& pass) {
  auto add = [&](const char* measure, const char* unit, double value, Limit limit = Limit::kNone) {
    report.add({base.workload, base.scenario, phase + measure, unit, limit}, dir, value);
  };
  const double gib = static_cast<double>(pass.bytes) / static_cast<double>(kGiB);
  add("_rate", "GiB/s", gib / pass.cost.wall_s, Limit::kRawRead);
  add("_time", "ms", pass.cost.wall_s * 1e3);
  add("_load_p50", "us", percentile(pass.load_us, 50));
  add("_load_p99", "us", percentile(pass.load_us, 99));
  add_costs(report, base, dir, phase + "_", pass.cost, static_cast<double>(pass.bytes));
}

Status restore_phases(BenchContext& context, const CaseDir& dir, const Metric& base, const PassSpec& spec,
                      std::span<const Chain> chains, SlotPool& pool) {
  auto phase = [&](const char* name) -> Status {
    KVC_ASSIGN(const PassResult pass, restore_pass(dir.root, spec, chains, pool));
    report_pass(context.report, base, dir.target.index(), name, pass);
    return {};
  };
  auto drop = [&] { return cold_start(dir.root, context.settings.keep_caches, context.report); };
  KVC_TRY(drop());
  KVC_TRY(phase("cold"));
  KVC_TRY(phase("warm"));
  if (context.settings.restart_command.empty()) return {};
  KVC_TRY(restart_mount(context.settings.restart_command, dir.target.directory()));
  KVC_TRY(drop());
  return phase("restart");
}

}  // namespace kvcachefs

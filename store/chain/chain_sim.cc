#include "store/chain/chain_sim.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <list>
#include <nlohmann/json.hpp>
#include <queue>
#include <random>
#include <unordered_map>
#include <unordered_set>

namespace kvcachefs::chain_sim {
namespace {

constexpr ObjectId kDirectory{77};
constexpr uint64_t kProbeThread = 1;  // one for all requests, like an engine's scheduler

ObjectId object_of(uint64_t block) { return ObjectId::make(0, 1, block + 2); }
ChainKey key_of(uint64_t block) { return chain_key(kDirectory, std::to_string(block)); }
// Only one rank: no name has siblings.
const NameStem kStem{file_stem(kRootStem, "0123456789abcdef0123456789abcdef.bin").stem, 0};
const NameStem kTemporaryStem = file_stem(kRootStem, "x.tmp");

// Bodies in RAM: the least recently used is evicted first, expected ones last.
class Ram {
 public:
  Ram(uint64_t capacity_bytes, uint64_t chunk_bytes) : capacity_(std::max<uint64_t>(capacity_bytes / chunk_bytes, 8)) {}
  bool contains(ObjectId id) const { return at_.contains(id); }
  void touch(ObjectId id) {
    if (auto found = at_.find(id); found != at_.end()) order_.splice(order_.begin(), order_, found->second);
  }
  void insert(ObjectId id) {
    order_.push_front(id);
    at_[id] = order_.begin();
  }
  bool over() const { return order_.size() > capacity_; }
  // Returns the victim, and whether it was expected (no other was near the end of the list).
  std::pair<ObjectId, bool> evict(const std::function<bool(ObjectId)>& expected) {
    auto candidate = std::prev(order_.end());
    bool was_expected = expected(*candidate);
    auto at = candidate;
    for (size_t step = 0; was_expected && step < order_.size() && at != order_.begin(); ++step) {
      --at;
      if (expected(*at)) continue;
      candidate = at;
      was_expected = false;
    }
    const ObjectId id = *candidate;
    order_.erase(candidate);
    at_.erase(id);
    return {id, was_expected};
  }
  size_t capacity() const { return capacity_; }

 private:
  size_t capacity_;
  std::list<ObjectId> order_;
  std::unordered_map<ObjectId, std::list<ObjectId>::iterator> at_;
};

class Simulation {
 public:
  Simulation(const std::vector<Request>& requests, const Config& config)
      : requests_(requests),
        config_(config),
        random_(config.seed),
        chains_(config.chains, [this](ObjectId id) { return load_row(id); }),
        ram_(ram_bytes(requests, config), config.chunk_bytes) {}

  Report run() {
    chains_.set_total_max_bytes(ram_.capacity() * config_.chunk_bytes / 2);
    workers_.resize(config_.workers);
    for (size_t w = 0; w < workers_.size(); ++w) {
      at(static_cast<int64_t>(w) * 1'000'000, [this, w] { next_request(w); });
    }
    while (!events_.empty()) {
      auto action = std::move(const_cast<Event&>(events_.top()).action);
      now_ = events_.top().at;
      events_.pop();
      action();
      pump();
    }
    return finish();
  }

 private:
  struct Event {
    int64_t at;
    uint64_t sequence;
    std::function<void()> action;
    bool operator<(const Event& other) const { return at != other.at ? at > other.at : sequence > other.sequence; }
  };
  struct Load {
    ObjectId id;
    int64_t issued = 0;
    bool prefetch = false;
  };
  struct Worker {
    const Request* request = nullptr;
    size_t hits = 0;
    size_t next = 0;     // pool: the next chunk to take
    size_t reading = 0;  // threads still reading
    std::vector<size_t> missing;
    std::vector<LayoutItem> written;
  };

  static uint64_t ram_bytes(const std::vector<Request>& requests, const Config& config) {
    std::unordered_set<uint64_t> distinct;
    for (size_t i = 0; i < requests.size() && i < config.max_requests; ++i) {
      distinct.insert(requests[i].blocks.begin(), requests[i].blocks.end());
    }
    return static_cast<uint64_t>(config.ram_fraction * static_cast<double>(distinct.size() * config.chunk_bytes));
  }

  void at(int64_t when, std::function<void()> action) { events_.push({when, sequence_++, std::move(action)}); }
  void after(int64_t delay, std::function<void()> action) { at(now_ + delay, std::move(action)); }

  template <class Call>
  auto timed(Call&& call) {
    const auto start = std::chrono::steady_clock::now();
    struct Stop {
      Simulation& sim;
      std::chrono::steady_clock::time_point begin;
      ~Stop() {
        sim.chains_ns_ += std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
      }
    } stop{*this, start};
    return call();
  }

  std::optional<SuccessorRow> load_row(ObjectId id) {
    auto found = rows_.find(id);
    if (found == rows_.end()) return std::nullopt;
    return found->second;
  }

  // ---- A request: probe, read the present blocks, compute and write the rest -----------------------------------------
  void next_request(size_t w) {
    if (next_ >= requests_.size() || next_ >= config_.max_requests) return;
    workers_[w] = Worker{};
    workers_[w].request = &requests_[next_++];
    ++report_.requests;
    const auto& blocks = workers_[w].request->blocks;
    if (!config_.probe) return after(config_.schedule_ns, [this, w] { start_reads(w); });
    int64_t when = std::max(now_, probe_thread_free_);
    for (uint64_t block : blocks) {
      at(when, [this, block] {
        ++report_.events;
        timed([&] {
          chains_.on_probe(kProbeThread, kStem, key_of(block),
                           published_.contains(block) ? object_of(block) : ObjectId{}, config_.chunk_bytes, now_);
        });
      });
      when += config_.probe_ns;
    }
    probe_thread_free_ = when + 100 * config_.probe_ns;  // the scheduler's own work between two requests
    at(when + config_.schedule_ns, [this, w] { start_reads(w); });
  }

  void start_reads(size_t w) {
    Worker& worker = workers_[w];
    const auto& blocks = worker.request->blocks;
    while (worker.hits < blocks.size() && published_.contains(blocks[worker.hits])) ++worker.hits;
    for (size_t i = worker.hits; i < blocks.size(); ++i) {
      if (!published_.contains(blocks[i])) worker.missing.push_back(i);
    }
    if (worker.hits == 0) return compute(w);
    const size_t threads = config_.pattern == ReadPattern::kSerial ? 1 : std::min(config_.threads, worker.hits);
    worker.reading = threads;
    for (size_t t = 0; t < threads; ++t) {
      const size_t begin = worker.hits * t / threads;
      const size_t end = worker.hits * (t + 1) / threads;
      after(static_cast<int64_t>(t) * 10'000, [this, w, t, begin, end] {
        if (config_.pattern == ReadPattern::kContiguous) {
          read(w, t, begin, end);
        } else {
          read(w, t, workers_[w].next++, SIZE_MAX);
        }
      });
    }
  }

  // Thread `t` reads chunk `i`; `end` ends its own part, or is SIZE_MAX for a pool.
  void read(size_t w, size_t t, size_t i, size_t end) {
    Worker& worker = workers_[w];
    if (i >= std::min(end, worker.hits)) {
      if (--worker.reading == 0) compute(w);
      return;
    }
    const uint64_t block = worker.request->blocks[i];
    const ObjectId id = object_of(block);
    const uint64_t thread = 100 * (w + 1) + t;
    const bool beyond = i >= 2;
    report_.reread_bytes += config_.chunk_bytes;
    if (beyond) report_.beyond_bytes += config_.chunk_bytes;
    count_source(id, beyond);
    ++report_.events;
    timed([&] { chains_.on_open(thread, kStem, thread, id, config_.chunk_bytes, now_); });
    auto done = [this, w, t, i, end, id, thread] {
      ++report_.events;
      timed([&] { chains_.on_read(thread, id, 0, config_.chunk_bytes, now_); });
      timed([&] { chains_.on_close(thread, id, now_); });
      ram_.touch(id);
      const auto copy_ns =
          static_cast<int64_t>(static_cast<double>(config_.chunk_bytes) * 1e9 / config_.reader_bytes_per_s);
      after(copy_ns, [this, w, t, i, end] { read(w, t, end == SIZE_MAX ? workers_[w].next++ : i + 1, end); });
    };
    if (ram_.contains(id)) return done();
    waiting_[id].push_back(done);
    if (loading_.contains(id)) {
      promote(id);
    } else {
      loading_.insert(id);
      demand_.push_back({id, now_, false});
      serve_volume();
    }
  }

  void count_source(ObjectId id, bool beyond) {
    if (!beyond) return;
    const PrefetchState state = chains_.state(id);
    if (ram_.contains(id)) {
      (state == PrefetchState::kLoaded ? report_.from_prefetch_bytes : report_.from_recent_bytes) +=
          config_.chunk_bytes;
    } else if (state == PrefetchState::kPlanned || state == PrefetchState::kAwaited) {
      report_.from_prefetch_bytes += config_.chunk_bytes;
      report_.late_bytes += config_.chunk_bytes;
    } else {
      report_.from_demand_bytes += config_.chunk_bytes;
    }
  }

  void compute(size_t w) {
    after(static_cast<int64_t>(workers_[w].missing.size()) * config_.block_compute_ns, [this, w] { write_all(w); });
  }

  void write_all(size_t w) {
    Worker& worker = workers_[w];
    if (config_.random_store_order) std::shuffle(worker.missing.begin(), worker.missing.end(), random_);
    int64_t delay = 0;
    for (size_t i : worker.missing) {
      const uint64_t block = worker.request->blocks[i];
      after(delay, [this, w, block] { write(w, block); });
      delay += 300'000;
    }
    after(delay, [this, w] { flush(w); });
  }

  void write(size_t w, uint64_t block) {
    if (!published_.insert(block).second) return;  // another request computed it too
    LayoutItem item{object_of(block), key_of(block), kStem.stem, 0, ++arrivals_};
    ++report_.events;
    item.sequence = timed([&] { return chains_.on_create(50 + w, kTemporaryStem, now_); });
    timed([&] { chains_.on_publish(item.name, kStem, item.id); });
    workers_[w].written.push_back(item);
    add_to_ram(item.id);
  }

  void flush(size_t w) {
    Worker& worker = workers_[w];
    const auto order = timed([&] { return chains_.lay_out(worker.written); });
    std::unordered_map<ObjectId, size_t> position;
    for (size_t i = 0; i < worker.request->blocks.size(); ++i) position[object_of(worker.request->blocks[i])] = i;
    for (size_t i = 1; i < order.size(); ++i) {
      if (position[order[i]] != position[order[i - 1]] + 1) ++report_.out_of_order_layout;
    }
    report_.laid_out += order.size();
    for (auto& [id, row] : timed([&] { return chains_.drain_dirty(100'000); })) rows_[id] = row;
    next_request(w);
  }

  // ---- RAM and volume ---------------------------------------------------------------------------------------------
  void add_to_ram(ObjectId id) {
    ram_.insert(id);
    while (ram_.over()) {
      const auto [victim, expected] = ram_.evict([this](ObjectId other) { return chains_.about_to_be_used(other); });
      if (expected) report_.evicted_expected_bytes += config_.chunk_bytes;
      timed([&] { chains_.on_removed(victim); });
    }
  }

  void pump() {
    if (auto due = chains_.deadline(); !chains_.wants_plan() && (!due || now_ < *due)) return;
    const PrefetchTotals& totals = chains_.totals();
    const uint64_t unread = totals.read_bytes - totals.used_bytes - totals.wasted_bytes +
                            (prefetch_.size() + loading_.size()) * config_.chunk_bytes;
    const uint64_t limit = ram_.capacity() * config_.chunk_bytes / 2;
    Plan plan = timed([&] { return chains_.plan(now_, limit > unread ? limit - unread : 0); });
    for (ObjectId id : plan.cancels) cancel(id);
    for (const PlannedLoad& load : plan.loads) {
      if (ram_.contains(load.id)) {
        chains_.on_skipped(load.id, SkipReason::kResident);
      } else if (loading_.contains(load.id)) {
        chains_.on_skipped(load.id, SkipReason::kResident);  // a reader is already fetching it
      } else {
        loading_.insert(load.id);
        prefetch_.push_back({load.id, now_, true});
      }
    }
    serve_volume();
  }

  void cancel(ObjectId id) {
    auto found = std::find_if(prefetch_.begin(), prefetch_.end(), [&](const Load& load) { return load.id == id; });
    if (found == prefetch_.end()) return;
    prefetch_.erase(found);
    loading_.erase(id);
    chains_.on_skipped(id, SkipReason::kCancelled);
  }

  void promote(ObjectId id) {
    auto found = std::find_if(prefetch_.begin(), prefetch_.end(), [&](const Load& load) { return load.id == id; });
    if (found == prefetch_.end()) return;
    demand_.push_back(*found);
    prefetch_.erase(found);
    serve_volume();
  }

  // Transfers are served one after the other; latencies overlap.
  void serve_volume() {
    if (volume_busy_ || (demand_.empty() && prefetch_.empty())) return;
    auto& queue = demand_.empty() ? prefetch_ : demand_;
    const Load load = queue.front();
    queue.pop_front();
    volume_busy_ = true;
    const auto transfer =
        static_cast<int64_t>(static_cast<double>(config_.chunk_bytes) * 1e9 / config_.volume_bytes_per_s);
    after(transfer, [this] {
      volume_busy_ = false;
      serve_volume();
    });
    after(transfer + config_.volume_latency_ns, [this, load] {
      loading_.erase(load.id);
      ++report_.events;
      timed([&] { chains_.on_loaded(load.id, config_.chunk_bytes, now_ - load.issued, now_); });
      if (!ram_.contains(load.id)) add_to_ram(load.id);
      if (auto found = waiting_.find(load.id); found != waiting_.end()) {
        auto readers = std::move(found->second);
        waiting_.erase(found);
        for (auto& reader : readers) reader();
      }
    });
  }

  Report finish() {
    report_.totals = chains_.totals();
    report_.totals.wasted_bytes = report_.totals.read_bytes - report_.totals.used_bytes;
    report_.ns_per_event = report_.events == 0 ? 0 : chains_ns_ / static_cast<double>(report_.events);
    return report_;
  }

  const std::vector<Request>& requests_;
  const Config& config_;
  std::mt19937_64 random_;
  std::unordered_map<ObjectId, SuccessorRow> rows_;  // as the index would store them
  Chains chains_;
  Ram ram_;
  Report report_;
  std::vector<Worker> workers_;
  std::priority_queue<Event> events_;
  uint64_t sequence_ = 0;
  int64_t now_ = 0;
  size_t next_ = 0;
  int64_t probe_thread_free_ = 0;
  std::unordered_set<uint64_t> published_;
  uint64_t arrivals_ = 0;
  std::deque<Load> demand_;
  std::deque<Load> prefetch_;
  std::unordered_set<ObjectId> loading_;
  std::unordered_map<ObjectId, std::vector<std::function<void()>>> waiting_;
  bool volume_busy_ = false;
  double chains_ns_ = 0;
};

void add_request(const nlohmann::json& node, const char* time_name, double time_unit_s, double base_s, uint64_t scope,
                 std::vector<Request>& out) {
  const double at_s = base_s + node.value(time_name, 0.0) * time_unit_s;
  if (auto ids = node.find("hash_ids"); ids != node.end() && ids->is_array() && !ids->empty()) {
    Request request{at_s, {}};
    for (const auto& id : *ids) request.blocks.push_back((scope << 24) | id.get<uint64_t>());
    out.push_back(std::move(request));
  }
  if (auto inner = node.find("requests"); inner != node.end() && inner->is_array()) {
    for (const auto& child : *inner) add_request(child, "t", 1.0, time_unit_s == 1.0 ? at_s : base_s, scope, out);
  }
}

}  // namespace

Result<std::vector<Request>> read_trace(const std::string& path) {
  std::ifstream in(path);
  if (!in) return fail(Code::kNotFound, path + ": cannot be opened; give the path of a plain JSON-lines trace");
  std::vector<Request> out;
  std::string line;
  for (uint64_t number = 1; std::getline(in, line); ++number) {
    if (line.empty()) continue;
    const auto node = nlohmann::json::parse(line, nullptr, false);
    if (node.is_discarded() || !node.is_object()) {
      return fail(Code::kInvalid, path + ": line " + std::to_string(number) + " is not a JSON object");
    }
    const bool session = node.contains("requests");
    add_request(node, "timestamp", 0.001, 0, session ? number : 0, out);
  }
  std::stable_sort(out.begin(), out.end(), [](const Request& a, const Request& b) { return a.at_s < b.at_s; });
  return out;
}

double Report::prefetched_share() const {
  const uint64_t all = from_prefetch_bytes + from_demand_bytes;
  return all == 0 ? 1.0 : static_cast<double>(from_prefetch_bytes) / static_cast<double>(all);
}

double Report::used_share() const {
  return totals.read_bytes == 0 ? 1.0 : static_cast<double>(totals.used_bytes) / static_cast<double>(totals.read_bytes);
}

std::string Report::text() const {
  const auto part = [&](uint64_t bytes) {
    return beyond_bytes == 0 ? 0.0 : 100.0 * static_cast<double>(bytes) / static_cast<double>(beyond_bytes);
  };
  char line[512];
  std::snprintf(
      line, sizeof line,
      "requests %llu reread %.1f GiB | beyond the first two: RAM %.1f %% prefetch %.1f %% (late %.1f %%) demand "
      "%.1f %% | prefetched share %.2f %% used share %.2f %% | expected evicted %.2f GiB | layout breaks %llu "
      "of %llu | %.0f ns/event",
      static_cast<unsigned long long>(requests), static_cast<double>(reread_bytes) / 1073741824.0,
      part(from_recent_bytes), part(from_prefetch_bytes), part(late_bytes), part(from_demand_bytes),
      100 * prefetched_share(), 100 * used_share(), static_cast<double>(evicted_expected_bytes) / 1073741824.0,
      static_cast<unsigned long long>(out_of_order_layout), static_cast<unsigned long long>(laid_out), ns_per_event);
  return line;
}

Report run(const std::vector<Request>& requests, const Config& config) { return Simulation(requests, config).run(); }

}  // namespace kvcachefs::chain_sim

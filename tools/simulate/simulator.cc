#include "tools/simulate/simulator.h"

#include <algorithm>
#include <memory>
#include <random>

#include "store/evict/policy.h"
#include "store/evict/prefix_links.h"
#include "tools/load/cpu_time.h"
#include "tools/simulate/belady.h"
#include "tools/simulate/list_lru.h"

namespace kvcachefs {
namespace {

using evict::Policy;
using evict::TimeMs;
using evict::UnitKey;

constexpr size_t kProgressEvery = 256;  // requests

UnitKey key_of(uint32_t unit) { return {uint64_t{unit} + 1}; }
uint32_t unit_of(UnitKey key) { return static_cast<uint32_t>(key.value - 1); }

// Counts the figures that do not depend on the policy.
class Counter {
 public:
  Counter(const Workload& workload, const SimSettings& settings) : workload_(workload), settings_(settings) {
    if (settings.windows > 0)
      window_requests_ = (workload.requests.size() + settings.windows - 1) / settings.windows;
    count_from_ms_ = static_cast<int64_t>(settings.skip * static_cast<double>(workload.requests.back().time_ms));
  }

  // Returns the number of units in the hit prefix.
  template <class Holds>
  uint32_t count(size_t number, const Holds& holds) {
    const SimRequest& request = workload_.requests[number];
    const auto units = workload_.of(request);
    uint32_t prefix = 0;
    while (prefix < units.size() && holds(units[prefix])) ++prefix;
    const bool counted = request.time_ms >= count_from_ms_ &&
                         (settings_.count_source == UINT32_MAX || settings_.count_source == request.source);
    if (counted) {
      uint64_t hits = prefix;
      for (uint32_t i = prefix; i < units.size(); ++i) hits += holds(units[i]) ? 1 : 0;
      ++result.requests;
      result.units += units.size();
      result.unit_hits += hits;
      result.prefix_hits += prefix;
      result.tokens += workload_.tokens(request);
      result.hit_tokens += prefix == units.size() ? workload_.tokens(request) : prefix * workload_.unit_tokens;
      window_units_ += units.size();
      window_hits_ += prefix;
    }
    if (window_requests_ > 0 && ((number + 1) % window_requests_ == 0 || number + 1 == workload_.requests.size())) {
      const double ratio = window_units_ == 0 ? 0 : static_cast<double>(window_hits_) / static_cast<double>(window_units_);
      result.window_ratios.push_back(ratio);
      window_units_ = window_hits_ = 0;
    }
    return prefix;
  }

  SimResult result;

 private:
  const Workload& workload_;
  const SimSettings& settings_;
  int64_t count_from_ms_ = 0;
  size_t window_requests_ = 0;
  uint64_t window_units_ = 0, window_hits_ = 0;
};

// Runs a policy that exists only in the simulator: it serves whole requests, and only hits are counted.
template <class Cache>
Result<SimResult> simulate_plain(const Workload& workload, const SimSettings& settings) {
  Cache cache(workload, settings.capacity_units);
  Counter counter(workload, settings);
  for (size_t number = 0; number < workload.requests.size(); ++number) {
    counter.count(number, [&](uint32_t unit) { return cache.holds(unit); });
    cache.serve(number);
    if (settings.progress && number % kProgressEvery == 0) KVC_TRY(settings.progress(number));
  }
  counter.result.evicted_units = cache.evicted();
  return std::move(counter.result);
}

class PolicyRun {
 public:
  PolicyRun(const Workload& workload, const SimSettings& settings)
      : workload_(workload),
        settings_(settings),
        counter_(workload, settings),
        extents_(settings.extents, workload.distinct_units,
                 settings.capacity_units * workload.unit_tokens * settings.extents.bytes_per_token),
        held_(workload.distinct_units, false),
        full_(workload.distinct_units, true),
        predecessor_(workload.distinct_units, UINT32_MAX),
        source_(workload.distinct_units, 0),
        touched_ms_(workload.distinct_units, 0),
        random_(settings.seed) {}

  Result<SimResult> run();

 private:
  struct Place {  // position of the next unit of a request
    size_t request;
    uint32_t at;
  };
  void plan_boundaries();
  void serve(size_t first, size_t end);
  void touch(size_t number, uint32_t at, TimeMs now);
  Status shrink(TimeMs now);
  void evict_unit(uint32_t unit);
  void store(TimeMs now);
  Status restart();
  void finish();

  const Workload& workload_;
  const SimSettings& settings_;
  Counter counter_;
  ExtentModel extents_;
  std::unique_ptr<Policy> policy_;
  evict::PrefixLinks links_;
  std::vector<bool> held_, full_;
  std::vector<uint32_t> predecessor_;  // according to the trace
  std::vector<uint32_t> source_;
  std::vector<int64_t> touched_ms_;
  std::vector<bool> lost_;          // requests whose beginning cannot be seen
  std::vector<uint32_t> cut_at_;    // where a request seems to begin anew; 0: nowhere
  std::vector<std::pair<uint32_t, uint32_t>> written_;  // units of the requests being served, with their tokens
  std::vector<UnitKey> chosen_;
  std::mt19937_64 random_;
  uint64_t used_ = 0;
  uint64_t touches_ = 0;
  double policy_ns_ = 0;
};

void PolicyRun::plan_boundaries() {
  const auto chance = [&] { return static_cast<double>(random_() >> 11) / static_cast<double>(uint64_t{1} << 53); };
  lost_.resize(workload_.requests.size());
  cut_at_.resize(workload_.requests.size());
  for (size_t i = 0; i < lost_.size(); ++i) {
    lost_[i] = chance() < settings_.lost_boundaries;
    const uint32_t units = workload_.requests[i].units;
    if (chance() < settings_.cut_requests && units > 1)
      cut_at_[i] = 1 + static_cast<uint32_t>(random_() % (units - 1));
  }
}

void PolicyRun::touch(size_t number, uint32_t at, TimeMs now) {
  const SimRequest& request = workload_.requests[number];
  const uint32_t unit = workload_.units[request.first + at];
  const uint32_t pred = at == 0 ? UINT32_MAX : workload_.units[request.first + at - 1];
  UnitKey follows = at == 0 ? UnitKey{} : key_of(pred);
  if (settings_.learn_links) {
    const bool begins = (at == 0 && !lost_[number]) || (at > 0 && cut_at_[number] == at);
    follows = links_.see({key_of(unit), {1}, false, begins}, now, *policy_);
  }
  ++touches_;
  predecessor_[unit] = pred;
  touched_ms_[unit] = now.value;
  source_[unit] = request.source;
  if (held_[unit]) {
    policy_->read(key_of(unit), now);
    return;
  }
  const bool last = at + 1 == request.units;
  const uint64_t tokens = last ? request.last_tokens : workload_.unit_tokens;
  full_[unit] = tokens == workload_.unit_tokens;
  policy_->publish({key_of(unit), follows, {request.source}, full_[unit]}, now);
  held_[unit] = true;
  ++used_;
  if (settings_.extents.on) written_.emplace_back(unit, static_cast<uint32_t>(tokens));
}

// Serves requests [first, end) at once: their units are mixed, but each request's units stay in order.
void PolicyRun::serve(size_t first, size_t end) {
  const TimeMs now{workload_.requests[first].time_ms};
  std::vector<Place> open;
  for (size_t number = first; number < end; ++number) open.push_back({number, 0});
  while (!open.empty()) {
    const size_t which = open.size() > 1 ? random_() % open.size() : 0;
    Place& place = open[which];
    touch(place.request, place.at, now);
    if (++place.at < workload_.requests[place.request].units) continue;
    place = open.back();
    open.pop_back();
  }
}

Status PolicyRun::shrink(TimeMs now) {
  constexpr int kMostBusy = 1 << 20;
  int busy = 0;
  while (used_ > settings_.capacity_units) {
    chosen_.clear();
    evict::Ask ask;
    ask.now = now;
    ask.max_units = used_ - settings_.capacity_units;
    const evict::Choice choice = policy_->choose(ask, chosen_);
    if (choice.reason == evict::Reason::kBusy && ++busy < kMostBusy) continue;
    if (chosen_.empty()) return fail(Code::kInvalid, "policy " + settings_.policy + " found nothing to evict");
    for (const UnitKey key : chosen_) {
      evict_unit(unit_of(key));
      if (settings_.extents.on) extents_.evict(unit_of(key));
    }
  }
  return {};
}

void PolicyRun::evict_unit(uint32_t unit) {
  policy_->evicted(key_of(unit));
  held_[unit] = false;
  --used_;
  ++counter_.result.evicted_units;
}

// Puts the units that these requests wrote on the volume, after evicting for them.
void PolicyRun::store(TimeMs now) {
  if (settings_.extents.give_up > 0) {
    extents_.set_give_up([this, now](uint32_t unit) {
      if (!held_[unit] || !policy_->worth_little(key_of(unit), settings_.extents.give_up, now)) return false;
      evict_unit(unit);
      return true;
    });
  }
  for (const auto& [unit, tokens] : written_) {
    extents_.write(unit, tokens * settings_.extents.bytes_per_token);
    if (!held_[unit]) extents_.evict(unit);
  }
  written_.clear();
}

// Restarts the daemon: it knows the names on the volume with their times, links and sizes, and perhaps the tables.
Status PolicyRun::restart() {
  const Bytes tables = policy_->save();
  KVC_ASSIGN(policy_, evict::make_policy(settings_.policy, settings_.seed));
  links_ = evict::PrefixLinks();
  if (settings_.restart == Restart::kTables) KVC_TRY(policy_->restore(tables));
  if (settings_.restart == Restart::kLost) {
    std::fill(held_.begin(), held_.end(), false);
    used_ = 0;
    return {};
  }
  struct Known {
    int64_t touched_ms;
    uint32_t depth, unit;
    auto operator<=>(const Known&) const = default;
  };
  std::vector<uint32_t> depth(workload_.distinct_units, 0);
  std::vector<Known> known;
  for (uint32_t unit = 0; unit < workload_.distinct_units; ++unit) {
    // A unit's number is above its predecessor's, because numbers follow the order of first use.
    if (predecessor_[unit] != UINT32_MAX) depth[unit] = depth[predecessor_[unit]] + 1;
    if (held_[unit]) known.push_back({touched_ms_[unit], depth[unit], unit});
  }
  std::ranges::sort(known);
  for (const Known& each : known) {
    const uint32_t pred = predecessor_[each.unit];
    policy_->publish({key_of(each.unit), pred == UINT32_MAX ? UnitKey{} : key_of(pred), {source_[each.unit]},
                      full_[each.unit]},
                     {each.touched_ms});
  }
  return {};
}

void PolicyRun::finish() {
  SimResult& result = counter_.result;
  const evict::PolicyCounts counts = policy_->counts();
  result.ns_per_touch = touches_ == 0 ? 0 : policy_ns_ / static_cast<double>(touches_);
  const size_t empty_bytes = (*evict::make_policy(settings_.policy))->counts().memory_bytes;
  result.bytes_per_unit = counts.units == 0 ? 0
                                            : static_cast<double>(counts.memory_bytes - empty_bytes) /
                                                  static_cast<double>(counts.units);
  result.by_recency = counts.by_recency;
  if (settings_.learn_links) {
    uint64_t known = 0, wrong = 0;
    for (uint32_t unit = 0; unit < workload_.distinct_units; ++unit) {
      const UnitKey follows = policy_->predecessor(key_of(unit));
      if (!follows.valid()) continue;
      ++known;
      wrong += predecessor_[unit] == UINT32_MAX || follows != key_of(predecessor_[unit]) ? 1 : 0;
    }
    result.wrong_links = known == 0 ? 0 : static_cast<double>(wrong) / static_cast<double>(known);
  }
  result.extents = extents_.counts();
}

Result<SimResult> PolicyRun::run() {
  KVC_ASSIGN(policy_, evict::make_policy(settings_.policy, settings_.seed));
  plan_boundaries();
  const size_t count = workload_.requests.size();
  const size_t step = std::max<size_t>(settings_.interleave, 1);
  bool restarted = settings_.restart == Restart::kNone;
  for (size_t first = 0; first < count; first += step) {
    const size_t end = std::min(count, first + step);
    const TimeMs now{workload_.requests[first].time_ms};
    if (!restarted && now.value >= workload_.requests.back().time_ms / 2) {
      KVC_TRY(restart());
      restarted = true;
    }
    for (size_t number = first; number < end; ++number) {
      const uint32_t prefix = counter_.count(number, [&](uint32_t unit) { return held_[unit]; });
      if (settings_.extents.on) extents_.restore(workload_.of(workload_.requests[number]).first(prefix));
    }
    const double start_s = thread_cpu_s();
    serve(first, end);
    KVC_TRY(shrink(now));
    policy_ns_ += (thread_cpu_s() - start_s) * 1e9;
    if (settings_.extents.on) store(now);
    if (settings_.progress && first / step % kProgressEvery == 0) KVC_TRY(settings_.progress(first));
  }
  finish();
  return std::move(counter_.result);
}

}  // namespace

bool simulated_only(const std::string& policy) { return policy == "min" || policy == "lru-list"; }

Result<SimResult> simulate(const Workload& workload, const SimSettings& settings) {
  if (settings.policy == "min") return simulate_plain<Belady>(workload, settings);
  if (settings.policy == "lru-list") return simulate_plain<ListLru>(workload, settings);
  return PolicyRun(workload, settings).run();
}

}  // namespace kvcachefs

// evict_bench [UNITS...]: measures the cost of a call and the memory of a unit with so many units held (default 1000000 3000000 10000000).
// Lines of 1 to 64 units; a third of the requests are for present lines; as much is evicted as is written. CPU time.
#include <time.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "store/evict/policy.h"

namespace {

using namespace kvcachefs::evict;

double cpu_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

// CPU time of many calls together, since reading that clock takes longer than a call; and the longest call by the wall clock, which other
// processes make longer.
struct Times {
  double total_ns = 0, worst_ns = 0;
  uint64_t calls = 0;
  double mean() const { return calls == 0 ? 0 : total_ns / static_cast<double>(calls); }
};
template <class Call>
void note_worst(Times& times, const Call& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
  times.worst_ns = std::max(times.worst_ns, took.count());
}

void bench(const std::string& name, uint64_t units, bool single) {
  const auto policy = std::move(*kvcachefs::evict::make_policy(name));
  std::mt19937_64 random(1);
  const auto key = [](uint64_t line, uint64_t at) { return UnitKey{mix_key(line * 64 + at + 1)}; };
  const auto length = [&](uint64_t line) { return single ? 1 : 1 + mix_key(line) % 64; };
  uint64_t lines = 0;
  int64_t now_ms = 0;
  Times touch, evict;
  std::vector<UnitKey> chosen;
  const auto step = [&] {
    now_ms += 20;
    const uint64_t line = random() % 3 == 0 && lines > 0 ? random() % lines : lines++;
    const uint64_t size = length(line);
    note_worst(touch, [&] {
      for (uint64_t at = 0; at < size; ++at)
        policy->publish({key(line, at), at == 0 ? UnitKey{} : key(line, at - 1), {}, true}, {now_ms});
    });
    touch.calls += size;
  };
  double start = cpu_ns();
  while (policy->units() < units) step();
  touch.total_ns = cpu_ns() - start;
  const Times filling = touch;
  touch = {};
  for (int round = 0; round < 200; ++round) {
    start = cpu_ns();
    for (int n = 0; n < 500; ++n) step();
    touch.total_ns += cpu_ns() - start;
    start = cpu_ns();
    while (policy->units() > units) {
      chosen.clear();
      Ask ask;
      ask.now = {now_ms};
      ask.max_units = policy->units() - units;
      note_worst(evict, [&] {
        policy->choose(ask, chosen);
        for (const UnitKey each : chosen) policy->evicted(each);
      });
      evict.calls += chosen.size();
    }
    evict.total_ns += cpu_ns() - start;
  }
  const PolicyCounts counts = policy->counts();
  std::printf("%-14s %9llu %-6s %8.0f %8.0f %8.0f %12.1f %12.1f %8.1f %9llu %9llu\n", name.c_str(),
              static_cast<unsigned long long>(units), single ? "single" : "lines", filling.mean(), touch.mean(),
              evict.mean(), touch.worst_ns / 1e3, evict.worst_ns / 1e3,
              static_cast<double>(counts.memory_bytes) / static_cast<double>(counts.units),
              static_cast<unsigned long long>(counts.nodes), static_cast<unsigned long long>(counts.ghosts));
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<uint64_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  if (sizes.empty()) sizes = {1'000'000, 3'000'000, 10'000'000};
  std::printf("%-14s %9s %-6s %8s %8s %8s %12s %12s %8s %9s %9s\n", "policy", "units", "shape", "ns/fill", "ns/touch",
              "ns/evict", "worst us/req", "worst us/ev.", "B/unit", "nodes", "ghosts");
  for (const uint64_t size : sizes) {
    bench("prefix", size, false);
    bench("prefix", size, true);
    bench("lru", size, false);
  }
}

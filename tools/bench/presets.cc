#include "tools/bench/presets.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include <fmt/format.h>

#include "store/base/units.h"

namespace kvcachefs {
namespace {

struct Preset {
  const char* name;
  const char* help;
  BenchCases (*make)(const BenchSettings&);
  bool by_size = false, by_style = false, by_threads = false;  // whether the workload uses these options
  bool by_nodes = false;                                        // whether several nodes can serve it
};
constexpr std::array kPresets = {
    Preset{"restore", "one prefix read back, cold and warm, by size, style and threads", restore_cases, true, true, true},
    Preset{"store", "the same for writing: time to return and time to durable", store_cases, true, true, true},
    Preset{"long-context", "100,000 tokens over 4 ranks at 256 to 2048 tokens a chunk", long_context_cases, false, true},
    Preset{"contexts", "10 contexts x 5 turns with growing history", contexts_cases, false, true},
    Preset{"multi-round", "15 users x 20 rounds, 2 requests/s, two instances on one directory, or one on each of --nodes",
           multi_round_cases, false, true, false, true},
    Preset{"probe", "present and absent names, 1 to 32 threads", probe_cases, false, true, true},
    Preset{"scan", "scandir, open and read 4 KiB of every sidecar", scan_cases},
    Preset{"raw", "what the volume does by O_DIRECT io_uring", raw_cases},
};

}  // namespace

std::string workload_list() {
  std::string list;
  for (const Preset& preset : kPresets) list.append(list.empty() ? "" : ", ").append(preset.name);
  return list + ", all";
}

std::string workload_help() {
  std::string help = "Workloads:\n";
  for (const Preset& preset : kPresets) {
    help.append("  ")
        .append(preset.name)
        .append(std::max<size_t>(14, std::string_view(preset.name).size() + 1) - std::string_view(preset.name).size(),
                ' ');
    help.append(preset.help).append("\n");
  }
  return help;
}

std::vector<std::string> ignored_options(const std::vector<std::string>& workloads, const GivenOptions& given) {
  std::vector<std::string> notes;
  const auto look = [&](bool is_given, const char* option, bool Preset::* heeded) {
    std::string deaf;
    for (const Preset& preset : kPresets) {
      const bool named = std::ranges::any_of(workloads, [&](const std::string& name) { return name == "all" || name == preset.name; });
      if (is_given && named && !(preset.*heeded)) deaf.append(deaf.empty() ? "" : ", ").append(preset.name);
    }
    if (!deaf.empty()) notes.push_back(std::string(option) + " says nothing to " + deaf);
  };
  look(given.size, "--size", &Preset::by_size);
  look(given.style, "--style", &Preset::by_style);
  look(given.threads, "--threads", &Preset::by_threads);
  return notes;
}

Result<BenchCases> make_cases(const BenchSettings& settings) {
  BenchCases cases;
  for (const std::string& name : settings.workloads) {
    bool known = false;
    for (const Preset& preset : kPresets) {
      if (name != "all" && name != preset.name) continue;
      known = true;
      if (!settings.targets.nodes.empty() && !preset.by_nodes) {
        return fail(Code::kInvalid, fmt::format("--nodes says nothing to {}, only to multi-round: name that alone, or "
                                                "directories by --dir",
                                                preset.name));
      }
      std::ranges::move(preset.make(settings), std::back_inserter(cases));
    }
    if (!known) return fail(Code::kInvalid, "workload " + name + ": unknown; one of " + workload_list());
  }
  return cases;
}

std::vector<unsigned> threads_or(const BenchSettings& settings, std::vector<unsigned> usual) {
  return settings.threads.empty() ? std::move(usual) : settings.threads;
}

uint64_t scaled_chunk_bytes(const BenchSettings& settings, uint64_t tokens) {
  constexpr double kBytesPerToken = 36 * 1024;
  const double bytes = kBytesPerToken * static_cast<double>(tokens) * settings.scale;
  return align_up(std::max<uint64_t>(1, static_cast<uint64_t>(std::llround(bytes))), kBlockBytes);
}

}  // namespace kvcachefs

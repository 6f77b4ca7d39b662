// The workloads by their names.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "store/base/result.h"
#include "tools/bench/bench_case.h"

namespace kvcachefs {

using BenchCases = std::vector<std::unique_ptr<BenchCase>>;

BenchCases restore_cases(const BenchSettings& settings);
BenchCases store_cases(const BenchSettings& settings);
BenchCases long_context_cases(const BenchSettings& settings);
BenchCases contexts_cases(const BenchSettings& settings);
BenchCases multi_round_cases(const BenchSettings& settings);
BenchCases probe_cases(const BenchSettings& settings);
BenchCases scan_cases(const BenchSettings& settings);
BenchCases raw_cases(const BenchSettings& settings);

// "restore, store, ..." and one line each for --help.
std::string workload_list();
std::string workload_help();
// The cases of all workloads in settings.workloads; "all" means every workload.
Result<BenchCases> make_cases(const BenchSettings& settings);

// One sentence for each given option that some of the workloads ignore.
struct GivenOptions {
  bool size = false, style = false, threads = false;
};
std::vector<std::string> ignored_options(const std::vector<std::string>& workloads, const GivenOptions& given);

// The thread counts of the command line, or `usual` if it names none.
std::vector<unsigned> threads_or(const BenchSettings& settings, std::vector<unsigned> usual);

// An 8 billion parameter model over 4 ranks keeps 36 KiB per token on each rank (9 MiB for 256 tokens). Multiplied by --scale, in
// whole 4 KiB blocks.
uint64_t scaled_chunk_bytes(const BenchSettings& settings, uint64_t tokens);

}  // namespace kvcachefs

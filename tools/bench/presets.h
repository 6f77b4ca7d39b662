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
// The cases of all the workloads named; "all" stands for every one.
Result<BenchCases> make_cases(const BenchSettings& settings);

// A sentence for each option that was given and that some of the workloads do not heed.
struct GivenOptions {
  bool size = false, style = false, threads = false;
};
std::vector<std::string> ignored_options(const std::vector<std::string>& workloads, const GivenOptions& given);

// The thread counts of the command line, or else these.
std::vector<unsigned> threads_or(const BenchSettings& settings, std::vector<unsigned> usual);

// An 8 billion parameter model over 4 ranks keeps 36 KiB of a token on each (9 MiB for 256 tokens); times --scale, in
// whole 4 KiB blocks.
uint64_t scaled_chunk_bytes(const BenchSettings& settings, uint64_t tokens);

}  // namespace kvcachefs

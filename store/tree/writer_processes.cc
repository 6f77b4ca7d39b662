#include "store/tree/writer_processes.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>

#include <fmt/format.h>

namespace kvcachefs {

namespace {
constinit thread_local const KnownProcesses* innermost = nullptr;
std::atomic<uint64_t> unknown_asked_for{0};

uint32_t read_process_of(uint32_t thread_id) {
  FILE* file = std::fopen(fmt::format("/proc/{}/status", thread_id).c_str(), "re");
  if (file == nullptr) return thread_id;
  char line[256];
  unsigned process = thread_id;
  while (std::fgets(line, sizeof line, file) != nullptr)
    if (std::sscanf(line, "Tgid: %u", &process) == 1) break;
  std::fclose(file);
  return process;
}
}  // namespace

KnownProcesses::KnownProcesses(std::span<const uint32_t> threads) : outer_(innermost) {
  for (const uint32_t thread : threads) processes_.emplace_back(thread, read_process_of(thread));
  innermost = this;
}

KnownProcesses::~KnownProcesses() { innermost = outer_; }

uint32_t process_of(uint32_t thread_id) {
  for (const KnownProcesses* known = innermost; known != nullptr; known = known->outer_)
    for (const auto& [thread, process] : known->processes_)
      if (thread == thread_id) return process;
  unknown_asked_for.fetch_add(1, std::memory_order_relaxed);
  return read_process_of(thread_id);
}

bool has_ended(uint32_t thread_id) { return kill(static_cast<pid_t>(thread_id), 0) != 0 && errno == ESRCH; }

uint64_t unknown_processes_asked_for() { return unknown_asked_for.load(std::memory_order_relaxed); }

}  // namespace kvcachefs

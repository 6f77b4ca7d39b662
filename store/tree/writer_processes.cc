#include "store/tree/writer_processes.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>

#include <fmt/format.h>

#include "store/object/object.h"

namespace kvcachefs {

namespace {
constinit thread_local const KnownProcess* innermost = nullptr;
std::atomic<uint64_t> unknown_asked_for{0};

// Threads and processes that called lately. All of it is checked before it is used, so a lost change does no harm.
constinit std::array<std::atomic<uint64_t>, 256> recent_threads{};   // (thread << 32) | process, by thread
constinit std::array<std::atomic<uint32_t>, 8> recent_processes{};  // by process

void set(auto& slot, auto value) {
  if (slot.load(std::memory_order_relaxed) != value) slot.store(value, std::memory_order_relaxed);
}

// Sends no signal: the kernel only looks both up. It may forbid signals to a process of another user (EPERM). A filter of system calls may forbid all.
bool is_thread_of(uint32_t thread_id, uint32_t process) {
  static const bool is_allowed = tgkill(getpid(), gettid(), 0) == 0;
  return is_allowed && process != 0 && (tgkill(static_cast<pid_t>(process), static_cast<pid_t>(thread_id), 0) == 0 || errno == EPERM);
}

bool has_ended(uint32_t process) { return kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH; }

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

// Asks /proc only for a thread that is new, and not of a process that called lately.
uint32_t find_process_of(uint32_t thread_id) {
  if (thread_id == 0) return 0;
  std::atomic<uint64_t>& slot = recent_threads[thread_id % recent_threads.size()];
  const auto note = [&](uint32_t process) {
    set(slot, (uint64_t{thread_id} << 32) | process);
    set(recent_processes[process % recent_processes.size()], process);
    return process;
  };
  const uint64_t recent = slot.load(std::memory_order_relaxed);
  if (const auto process = static_cast<uint32_t>(recent); recent >> 32 == thread_id && is_thread_of(thread_id, process)) return process;
  if (is_thread_of(thread_id, thread_id)) return note(thread_id);
  for (const std::atomic<uint32_t>& each : recent_processes)
    if (const uint32_t process = each.load(std::memory_order_relaxed); is_thread_of(thread_id, process)) return note(process);
  const uint32_t process = read_process_of(thread_id);
  return process != thread_id ? note(process) : process;
}
}  // namespace

KnownProcess::KnownProcess(uint32_t thread_id, bool is_asked_for)
    : thread_id_(is_asked_for ? thread_id : 0), process_(find_process_of(thread_id_)), outer_(innermost) {
  innermost = this;
}

KnownProcess::~KnownProcess() { innermost = outer_; }

uint32_t process_of(uint32_t thread_id) {
  for (const KnownProcess* known = innermost; known != nullptr; known = known->outer_)
    if (known->thread_id_ == thread_id) return known->process_;
  unknown_asked_for.fetch_add(1, std::memory_order_relaxed);
  return find_process_of(thread_id);
}

void note_writer(Object& object, uint32_t thread_id) {
  object.writer_process = process_of(thread_id);
  object.writer_thread = thread_id;
}

bool writer_has_ended(const Object& object) { return has_ended(object.writer_process); }

uint64_t unknown_processes_asked_for() { return unknown_asked_for.load(std::memory_order_relaxed); }

}  // namespace kvcachefs

// The process of a thread, from /proc. Reading that takes some 20 us, and longer for a process that holds its memory map, so
// it is done before the lock of all names is taken, for the threads that will be asked for.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvcachefs {

// While it exists, process_of() on this thread answers for the threads given here without /proc.
class KnownProcesses {
 public:
  explicit KnownProcesses(std::span<const uint32_t> threads);  // reads /proc
  ~KnownProcesses();
  KnownProcesses(const KnownProcesses&) = delete;
  KnownProcesses& operator=(const KnownProcesses&) = delete;

 private:
  friend uint32_t process_of(uint32_t thread_id);
  std::vector<std::pair<uint32_t, uint32_t>> processes_;  // of threads
  const KnownProcesses* outer_;
};

// The thread group (process) of a thread; the thread itself if it has ended.
uint32_t process_of(uint32_t thread_id);
bool has_ended(uint32_t thread_id);
// How often process_of() had to read /proc because the thread was not in a KnownProcesses. For tests.
uint64_t unknown_processes_asked_for();

}  // namespace kvcachefs

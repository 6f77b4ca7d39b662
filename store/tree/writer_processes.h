// The process of a thread that calls. Reading that from /proc takes some 20 us, and longer for a process that holds its memory map, so it is done before
// the lock of all names is taken. For a thread of a process that called lately it is a few system calls, mostly one, without /proc: each file that is made asks.
#pragma once

#include <cstdint>

namespace kvcachefs {

class Object;

// While it exists, process_of() on this thread answers for the thread given here without a system call.
class KnownProcess {
 public:
  explicit KnownProcess(uint32_t thread_id, bool is_asked_for = true);  // may read /proc
  ~KnownProcess();
  KnownProcess(const KnownProcess&) = delete;
  KnownProcess& operator=(const KnownProcess&) = delete;

 private:
  friend uint32_t process_of(uint32_t thread_id);
  const uint32_t thread_id_, process_;
  const KnownProcess* const outer_;
};

// The thread group (process) of a thread; the thread itself if it has ended.
uint32_t process_of(uint32_t thread_id);
// The thread writes the object now. It makes a system call meanwhile, so it lives: after its end nobody can tell its process. Caller holds the lock of the
// Tree, or nobody else knows the object yet.
void note_writer(Object& object, uint32_t thread_id);
// Whether no thread can rename the object for its writer any more: a thread pool may write in one thread, which ends, and rename in another.
bool writer_has_ended(const Object& object);
// How often process_of() was asked for a thread that was not a KnownProcess. For tests.
uint64_t unknown_processes_asked_for();

}  // namespace kvcachefs

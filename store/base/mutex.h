// Mutexes with a rank: the order in which locks may be taken, checked where it is cheap to be strict.
//
// A thread may take a mutex only while every mutex it holds has a lower rank (invariant: the ranks that a thread holds rise
// strictly). With CheckLocks (debug and sanitizer builds) an acquisition against the order writes both ranks to stderr and
// aborts; in other builds Mutex<rank> is std::mutex itself and costs nothing. try_lock() cannot deadlock and is not checked
// against what is held, but what it took counts as held for the acquisitions that follow.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <shared_mutex>

namespace kvcachefs {

// The one lock order of the store, outermost first; store/README.md says what each guards.
enum class LockRank : uint8_t {
  kOwner,          // the store that belongs to a caretaker's daemon: held while that is asked for something
  kClaim,          // this node's claim on the capacity of the volume; held over I/O
  kOptions,        // the options in force; a change of one tells the classes that use it, under it
  kTurn,           // one piece of long work at a time (reading ahead, a rebuild): held over I/O, so no request of a client waits for it
  kJournal,        // one append, or one sync, of the journal at a time; held over I/O
  kIndexCommit,    // one commit of the index at a time; held over I/O
  kIndexWriter,    // LMDB's writer; held over I/O
  kMemoryFile,     // growing and cutting one memory file: the kernel clears pages under it
  kMemoryShape,    // what all memory files take together
  kNames,          // the view of names and the object table; shared or alone
  kObject,         // one object at a time
  kAccesses,       // what clients did and will do next: may look up one index row under it
  kIndex,          // the layers of the index that are not committed; shared or alone
  kPartOfSpace,    // what is dead, raw or recorded: updates the sums of Space under it
  kLeaf,           // a private mutex of one class; nothing of another class is called under it
  kPages,          // giving pages of blocks back to the kernel: one thread at a time
  kInner,          // what is called under leaves: below Volume and the log, and what the end of a block takes, under whatever lock that comes
};

#if defined(KVCACHEFS_CHECK_LOCKS)
constexpr bool kChecksLocks = true;

// The calls of a checked mutex. `mutex` identifies it among those of one rank.
void check_lock_order(LockRank rank, const void* mutex);
void note_locked(LockRank rank, const void* mutex);
void note_unlocked(LockRank rank, const void* mutex);

// For simulations of several machines: what another one does goes on here, on this thread, and the locks that are held by now are none of its.
class AnotherMachine {
 public:
  AnotherMachine();
  ~AnotherMachine();
  AnotherMachine(const AnotherMachine&) = delete;
  AnotherMachine& operator=(const AnotherMachine&) = delete;

 private:
  size_t before_;
};

template <LockRank rank, class Base>
class CheckedMutex {
 public:
  void lock() {
    check_lock_order(rank, this);
    base_.lock();
    note_locked(rank, this);
  }
  bool try_lock() {
    if (!base_.try_lock()) return false;
    note_locked(rank, this);
    return true;
  }
  void unlock() {
    note_unlocked(rank, this);
    base_.unlock();
  }
  void lock_shared()
    requires requires(Base& base) { base.lock_shared(); }
  {
    check_lock_order(rank, this);
    base_.lock_shared();
    note_locked(rank, this);
  }
  bool try_lock_shared()
    requires requires(Base& base) { base.try_lock_shared(); }
  {
    if (!base_.try_lock_shared()) return false;
    note_locked(rank, this);
    return true;
  }
  void unlock_shared()
    requires requires(Base& base) { base.unlock_shared(); }
  {
    note_unlocked(rank, this);
    base_.unlock_shared();
  }

 private:
  Base base_;
};

template <LockRank rank>
using Mutex = CheckedMutex<rank, std::mutex>;
template <LockRank rank>
using SharedMutex = CheckedMutex<rank, std::shared_mutex>;
using ConditionVariable = std::condition_variable_any;

#else
constexpr bool kChecksLocks = false;

struct AnotherMachine {
  AnotherMachine() {}
  ~AnotherMachine() {}
};

template <LockRank rank>
using Mutex = std::mutex;
template <LockRank rank>
using SharedMutex = std::shared_mutex;
using ConditionVariable = std::condition_variable;
#endif

using LeafMutex = Mutex<LockRank::kLeaf>;
using InnerMutex = Mutex<LockRank::kInner>;

}  // namespace kvcachefs

// Mutexes with a rank, which fixes the order in which locks may be taken; checked in builds where the check may cost time.
//
// A thread may take a mutex only while every mutex it holds has a lower rank (invariant: the ranks that a thread holds rise
// strictly). With CheckLocks (debug and sanitizer builds) an acquisition against the order writes both ranks to stderr and
// aborts; in other builds Mutex<rank> is std::mutex itself and costs nothing. try_lock() cannot deadlock and is not checked,
// but a mutex that it took counts as held for later acquisitions.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <shared_mutex>

namespace kvcachefs {

// The lock order of the store, outermost first; store/README.md says what each guards.
enum class LockRank : uint8_t {
  kOwner,          // the store that a caretaker's daemon owns: held while calls go to that store
  kClaim,          // this node's claim on the capacity of the volume; held over I/O
  kOptions,        // the options in force; while it is held, a changed option is passed to the classes that use it
  kTurn,           // one piece of long work at a time (readahead, a rebuild): held over I/O, so no client request waits for it
  kJournal,        // one append, or one sync, of the journal at a time; held over I/O
  kIndexCommit,    // one commit of the index at a time; held over I/O
  kIndexWriter,    // LMDB's writer; held over I/O
  kMemoryFile,     // growing and cutting one memory file: the kernel clears pages under it
  kMemoryShape,    // the total that all memory files take
  kNames,          // the view of names and the object table; shared or alone
  kObject,         // one object at a time
  kAccesses,       // what clients did and will do next: one index row may be looked up under it
  kIndex,          // the layers of the index that are not committed; shared or alone
  kPartOfSpace,    // dead, raw or recorded space: the sums of Space are updated under it
  kLeaf,           // a private mutex of one class; no other class is called under it
  kPages,          // giving pages of blocks back to the kernel: one thread at a time
  kInner,          // below leaves: inside Volume and the log, and what releasing a block takes, whatever locks are held then
};

#if defined(KVCACHEFS_CHECK_LOCKS)
constexpr bool kChecksLocks = true;

// Hooks of a checked mutex. `mutex` distinguishes mutexes of one rank.
void check_lock_order(LockRank rank, const void* mutex);
void note_locked(LockRank rank, const void* mutex);
void note_unlocked(LockRank rank, const void* mutex);

// For simulations of several machines on one thread: while it exists, the code of another machine runs, and the locks held before do not count.
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

// Advisory locks of files: flock(2), fcntl(2) record locks and open file description locks, with the meaning that Linux gives
// them on a local file system. The driver keeps them, because one file can have two nodeids (passthrough.h), and each version of a
// temporary name has its own: the kernel keeps its locks by nodeid, and would grant conflicting locks.
//
// A lock belongs to an owner (the kernel's number for it) and was set through a handle. It ends when the owner unlocks it, when the
// owner closes any descriptor of the file (record locks: at FLUSH), or when that handle is released.
//
// RELEASE arrives after close(2) has returned. So a non-waiting request is not refused at once if, for each conflicting lock, a descriptor
// of the lock's handle was closed since: it is held back until expire() is called with a time that is late enough.
//
// Thread-safe, one leaf mutex. Nothing blocks; completions run once, with no lock held, inside the call that ends the wait.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "store/base/mutex.h"
#include "store/base/types.h"

namespace kvcachefs {

class LockTable {
 public:
  static constexpr int64_t kCloseNs = 250'000'000;  // longest time from FLUSH to RELEASE on a busy machine
  static constexpr size_t kMostLocks = 1 << 20;

  enum class Family : uint8_t { kFlock, kRecord };
  enum class Mode : uint8_t { kUnlocked, kShared, kExclusive };
  enum class Outcome : uint8_t { kGranted, kWouldBlock, kInterrupted, kDeadlock, kTooMany };
  struct Request {
    ObjectId file;
    Family family = Family::kFlock;
    Mode mode = Mode::kUnlocked;
    uint64_t owner = 0;
    uint64_t handle = 0;
    uint32_t process = 0;
    uint64_t first = 0, last = UINT64_MAX;  // bytes, both included
    bool closes_unseen = false;  // closes of the handle send no FLUSH, so flushed() is not called for it
  };
  using Done = std::move_only_function<void(Outcome)>;

  // A request that would raise the number of locks of all files above `most_locks` is answered kTooMany, also an unlock that splits a lock in two.
  explicit LockTable(size_t most_locks = kMostLocks) : most_locks_(most_locks) {}

  // Sets, changes or removes a lock. With `waits`, `done` is called once the lock can be granted; else the answer may be kWouldBlock.
  // `token` identifies the request for interrupt(), which may be called from announce() on.
  void announce(uint64_t token);
  void set(const Request& request, bool waits, uint64_t token, int64_t now_ns, Done done);
  // A signal arrived: a request that still waits is answered kInterrupted. No effect if it was answered already.
  void interrupt(uint64_t token);
  // Returns the first record lock that conflicts with the request.
  std::optional<Request> conflict(const Request& request) const;
  // `owner` closed a descriptor of the handle.
  void flushed(ObjectId file, uint64_t handle, uint64_t owner);
  // The last descriptor of the handle was closed.
  void released(ObjectId file, uint64_t handle);
  // Refuses the non-waiting requests that were held back for kCloseNs. Returns when to call it next; none if nothing is held back.
  std::optional<int64_t> expire(int64_t now_ns);
  std::optional<int64_t> next_expiry() const;
  // Interrupts all waiting requests.
  void interrupt_all();

 private:
  struct Lock : Request {
    bool may_be_closed = false;
  };
  struct Waiter {
    Request request;
    uint64_t token = 0;
    std::optional<int64_t> until_ns;  // refused at this time
    Done done;
  };
  struct File {
    std::vector<Lock> locks;
    std::list<Waiter> waiters;  // oldest first
  };
  using Answers = std::vector<std::pair<Done, Outcome>>;

  static bool conflicts(const Request& request, const Lock& lock);
  static bool overlaps(const Request& request, const Request& other) { return request.first <= other.last && other.first <= request.last; }
  bool can_be_had(const File& file, const Request& request) const;
  static bool may_soon_be_had(const File& file, const Request& request);
  bool deadlocks(const Request& request) const;
  bool is_too_many(const File& file, const Request& request) const;
  void put(File& file, const Request& request);
  void remove(File& file, const Request& range);
  void grant(ObjectId id, Answers& answers);
  static void answer(Answers& answers);

  const size_t most_locks_;
  mutable LeafMutex mutex_;
  std::unordered_map<ObjectId, File> files_;
  std::unordered_map<uint64_t, ObjectId> waits_at_;             // by token
  std::unordered_map<uint64_t, bool> announced_;                // by token: whether it was interrupted before set()
  size_t locks_ = 0;
  size_t expiring_ = 0;  // number of waiters with until_ns
};

}  // namespace kvcachefs

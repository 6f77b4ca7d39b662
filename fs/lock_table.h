// Advisory locks of files: flock(2), fcntl(2) record locks and open file description locks, with the meaning that Linux gives
// them on a local file system. The driver keeps them because one file can have two nodeids (passthrough.h), and versions of one
// temporary name have one each: the kernel keeps its own locks by nodeid, and would grant both.
//
// A lock belongs to an owner, as the kernel names it, and was set through a handle. It ends when its owner gives it up, when the
// owner closes any descriptor of the file (record locks: at FLUSH) or when that handle is released.
//
// RELEASE comes after close(2) has returned. So a request that does not wait is not refused at once where each lock in its way
// was set through a handle of which a descriptor was closed since: it waits until expire() is told that enough time has passed.
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
  static constexpr int64_t kCloseNs = 250'000'000;  // from FLUSH to RELEASE, at most, on a machine that is busy
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
    bool closes_unseen = false;  // the handle's closes are not told by flushed()
  };
  using Done = std::move_only_function<void(Outcome)>;

  // What would be more than `most_locks`, of all files together, is answered kTooMany; also where giving up a part makes two of one.
  explicit LockTable(size_t most_locks = kMostLocks) : most_locks_(most_locks) {}

  // Takes, changes or gives up a lock. `waits`: until it can be had; else the answer is kWouldBlock. `token` names the request to
  // interrupt(), from announce() on.
  void announce(uint64_t token);
  void set(const Request& request, bool waits, uint64_t token, int64_t now_ns, Done done);
  // A signal: the request that waits is answered kInterrupted. Without effect where it was answered already.
  void interrupt(uint64_t token);
  // The first record lock in the way of the request.
  std::optional<Request> conflict(const Request& request) const;
  // A descriptor of the handle was closed by `owner`.
  void flushed(ObjectId file, uint64_t handle, uint64_t owner);
  // The last one was.
  void released(ObjectId file, uint64_t handle);
  // Refuses the non-waiting requests that have been held back for kCloseNs. Returns the time of the next call; none if there are none.
  std::optional<int64_t> expire(int64_t now_ns);
  std::optional<int64_t> next_expiry() const;
  // Interrupts all that wait.
  void interrupt_all();

 private:
  struct Lock : Request {
    bool may_be_closed = false;
  };
  struct Waiter {
    Request request;
    uint64_t token = 0;
    std::optional<int64_t> until_ns;  // does not wait for longer
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
  std::unordered_map<uint64_t, bool> announced_;                // by token: it was interrupted before set()
  size_t locks_ = 0;
  size_t expiring_ = 0;  // of those that wait: with a time at which they are refused
};

}  // namespace kvcachefs

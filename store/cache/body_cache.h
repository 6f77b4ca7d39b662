// The memory for bodies. Memory is reserved here, and taken back from clean bodies: the one opened longest ago first, open or expected ones
// last. Requests wait here until there is some.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "store/api/counters.h"
#include "store/base/units.h"
#include "store/cache/clean_bodies.h"
#include "store/cache/memory_waiters.h"
#include "store/cache/page_warmer.h"
#include "store/cache/resumer.h"
#include "store/chain/access_tracker.h"
#include "store/memory/memory_file.h"
#include "store/memory/pool.h"
#include "store/object/object.h"
#include "store/tree/tree.h"

namespace kvcachefs {

inline constexpr uint64_t kSealingBytes = 4 * kUnitBytes;  // kept for reserve_to_seal(): one unit for each lane, the keeper and the scrubber

// The kind of request that wants memory. Read-ahead leaves in RAM what the readers of chains are expected to read. Writers leave an eighth
// to readers, free or with what they read: otherwise a restore would wait for memory behind the writers, at the speed at which the volume
// takes their bytes.
enum class MemoryFor : uint8_t { kReader, kReadAhead, kWriter };

// Thread-safe. Has no lock of its own; the locks of its parts are leaves. Call with no lock held, except note_clean() and note_used().
// Calls block only while memory is cleared. Dropping bodies takes the bodies' locks, one at a time, and only tries the Tree's.
class BodyCache {
 public:
  struct Parts {
    MemoryPool& pool;
    MemoryFiles& files;
    Tree& tree;
    AccessTracker& accesses;
    Resumer& resumer;
    PageWarmer& warmer;
    Counters& counters;
    bool warms;  // the warmer has a thread
  };
  explicit BodyCache(Parts parts) : parts_(parts) {}

  // Reserves memory for `bytes`, after dropping clean bodies if necessary. Returns an empty reservation if there is none now.
  Reservation reserve(uint64_t bytes, MemoryFor who);
  // Drops clean blocks and reaps memory files that clients have unmapped. Returns false if that freed nothing. Call with no lock held.
  bool recover(uint64_t bytes, MemoryFor who);
  // Reserves memory for a unit that is read again to be sealed: sealing gives memory back, so it must not wait for others. If none is free,
  // calls `before_last_reserve`, which releases what the caller has read before.
  Reservation reserve_to_seal(uint64_t bytes, const std::function<void()>& before_last_reserve);
  // Gets a memory file, or pages of one, for a body. Returns false if there is no memory now.
  bool get_file(FileRequest& file, MemoryFor who);

  // The body has clean blocks: from now on it is dropped last. Caller does not hold its lock.
  void note_clean(const ObjectPtr& object) { clean_.add(object); }
  void note_used(ObjectId id) { clean_.note_used(id); }
  // The body's last handle was closed. Waits for the Tree if bodies have many bytes of attributes.
  void note_closed(const ObjectPtr& object) {
    if (has_too_many_xattrs()) drop_one_with_xattrs(object);
  }
  void forget(const ObjectPtr& object) { clean_.remove(object); }  // nobody will read this state of it again
  // The object's attributes are in the journal. Caller holds its lock.
  void note_xattrs(const Object& object) { clean_.note_xattrs(object); }
  // Drops `bytes` of clean blocks, and forgets bodies that nothing needs any more. Returns the bytes freed.
  uint64_t drop_clean(uint64_t bytes, bool spare_expected = false);
  void drop_all();
  // An object in RAM takes a kilobyte beside its blocks, which the pool does not count: so this limits the number of small bodies. The pool
  // does not count extended attributes either: closed files with many bytes of them are kept only while their total is small.
  void trim();
  bool has_too_many_xattrs() const;
  void trim_xattrs(size_t most_objects = 4);  // ... called when bodies come into RAM between two trim(); looks at so many. Waits for the Tree
  // Call after the limit was lowered: while no memory is asked for, nothing else gives memory back.
  void keep_to_limit();
  void clear() { clean_.clear(); }  // at the end: forgets the list of clean bodies

  // True if a request that comes now may take memory: no waiting request goes before it.
  bool may_take(MemoryFor who) const { return parts_.resumer.waiters().may_take_now(line_of(who)); }
  void wait(MemoryFor who, ObjectId object, uint64_t lacks_bytes, MemoryWaiters::Retry retry, MemoryWaiters::GiveUp give_up);
  bool nobody_waits() const { return parts_.resumer.waiters().nobody_waits(); }
  // Bytes of a body came into RAM: waiting requests may now lack nothing.
  void note_arrival() { parts_.resumer.waiters().note_arrival(); }

  // Bytes that writers leave to readers: an eighth, and what the first waiting reader lacks besides the part kept for seals.
  uint64_t left_to_others(MemoryFor who) const;
  // Larger writes are split into pieces of this size, so that one piece can be written out before the next; so are reads that could never
  // have all their memory at once.
  uint64_t piece_bytes() const;
  // The longest read that can have its memory at once, counting one unit more than its length: it may begin and end within units.
  uint64_t most_read_bytes() const;

  // The unmount has begun: writers no longer leave memory to readers.
  void stop() { stopping_.store(true, std::memory_order_relaxed); }

 private:
  static MemoryWaiters::Kind line_of(MemoryFor who) {
    return who == MemoryFor::kWriter ? MemoryWaiters::Kind::kWriter : MemoryWaiters::Kind::kReader;
  }
  bool is_wanted_soon(const ObjectPtr& object);
  void drop_one_with_xattrs(const ObjectPtr& object);

  const Parts parts_;
  CleanBodies clean_;
  std::atomic<bool> stopping_{false};
};

// Call before a request waits for memory: a memory file without any block of its body would hold memory that nothing can free. Caller does
// not hold the body's lock.
void drop_unused_file(Object& object);

}  // namespace kvcachefs

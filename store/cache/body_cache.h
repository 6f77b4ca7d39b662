// The memory for bodies: reserved, and got back from clean ones, the one opened longest ago first, what is open or expected last;
// and the requests that wait until there is some.
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

inline constexpr uint64_t kSealingBytes = 4 * kUnitBytes;  // kept for reserve_to_seal(): a unit for each lane, the keeper and the scrubber

// The kind of request that wants memory. What is read ahead leaves in RAM what readers of chains are expected to read. Writers leave
// an eighth to readers, to take or to have in it what they read: else a restore would wait for its memory behind them, at the speed
// at which the volume takes what they wrote.
enum class MemoryFor : uint8_t { kReader, kReadAhead, kWriter };

// Thread-safe. It has no lock but those of its parts, leaves all of them. Its calls are made with no lock held, but for note_clean()
// and note_used(), and block on nothing but memory being cleared; dropping bodies takes the locks of bodies, one at a time, and only
// tries that of the Tree.
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

  // Memory for `bytes`, after clean bodies were dropped if need be. Empty when there is none now.
  Reservation reserve(uint64_t bytes, MemoryFor who);
  // Drops clean blocks and takes notice of memory files that clients have unmapped. False: that freed nothing.
  bool recover(uint64_t bytes, MemoryFor who);
  // For a unit that is read again to be sealed, which gives memory back and must not wait until others do. `before_last_reserve`
  // is called where there is none: it lets go of what the caller has read before.
  Reservation reserve_to_seal(uint64_t bytes, const std::function<void()>& before_last_reserve);
  // A memory file, or pages of one, for a body. False: no memory now.
  bool get_file(FileRequest& file, MemoryFor who);

  // The body has clean blocks: it is dropped last from now on. Its lock is not held.
  void note_clean(const ObjectPtr& object) { clean_.add(object); }
  void note_used(ObjectId id) { clean_.note_used(id); }
  // Its last handle was closed. Waits for the Tree where bodies have many bytes of attributes.
  void note_closed(const ObjectPtr& object) {
    if (has_too_many_xattrs()) drop_one_with_xattrs(object);
  }
  // Its attributes are in the journal. The object is locked.
  void note_xattrs(const Object& object) { clean_.note_xattrs(object); }
  // Drops clean blocks of `bytes`, and forgets bodies that nothing needs any more; how much came.
  uint64_t drop_clean(uint64_t bytes, bool spare_expected = false);
  void drop_all();
  // An object in RAM takes a kilobyte beside its blocks, which the pool does not count: small bodies are kept by number. Nor does it count
  // extended attributes: bodies of files that are not open and have many of those are kept as long as they are few in all.
  void trim();
  bool has_too_many_xattrs() const;
  void trim_xattrs(size_t most_objects = 4);  // ... where bodies come into RAM between two trim(), looking at so many. Waits for the Tree
  // After the limit was lowered: nobody else gives memory back while none is asked for.
  void keep_to_limit();
  void clear() { clean_.clear(); }  // at the end: forgets what it knows of clean bodies

  // A request that comes now may take memory: none that waits goes before it.
  bool may_take(MemoryFor who) const { return parts_.resumer.waiters().may_take_now(line_of(who)); }
  void wait(MemoryFor who, ObjectId object, uint64_t lacks_bytes, MemoryWaiters::Retry retry, MemoryWaiters::GiveUp give_up);
  bool nobody_waits() const { return parts_.resumer.waiters().nobody_waits(); }
  // Bytes of a body came into RAM: requests that wait may lack nothing any more.
  void note_arrival() { parts_.resumer.waiters().note_arrival(); }

  // What writers leave to readers: an eighth, and what the first of those that wait lacks beside what is kept for seals.
  uint64_t left_to_others(MemoryFor who) const;
  // Larger writes go in such pieces, so that what they take can be written out in between; reads that can never have their memory at
  // once as well.
  uint64_t piece_bytes() const;
  // The longest read that can have its memory at once; with one unit more, for it may begin and end within units.
  uint64_t most_read_bytes() const;

  // The end has begun: writers leave nothing to readers any more.
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

// Before a request waits for memory: a memory file that has no block of its body yet would hold some that nothing can free. The
// body's lock is not held.
void drop_unused_file(Object& object);

}  // namespace kvcachefs

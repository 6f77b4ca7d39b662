// Calls that were answered kStale. The kernel then looks the name up and repeats the call, once: the thread's next lookup and open
// are known by this, so that no call is told twice, and what the repeated lookup found stays until it is opened.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/base/types.h"
#include "store/object/object.h"

namespace kvcachefs {

// Thread-safe, one leaf mutex. Nothing blocks. A thread 0 is one of a process that is not visible here: it stands for any such.
class StaleOpens {
 public:
  struct Told {
    bool open = false;                     // an open; else another call
    bool write = false, truncate = false;  // what it was opened for
    ObjectId object{};                     // by whose id; invalid: it is not known
  };
  // What was kept for calls that are not repeated any more. Each was counted in its kept_for_repeat: the caller counts it back.
  using Released = std::vector<ObjectPtr>;

  explicit StaleOpens(Clock& clock) : clock_(clock) {}

  // The thread was told, and did not repeat its call yet. No lock where nobody was told.
  bool knows(uint32_t thread_id) const;
  // ... lately enough that what it does now is the repetition.
  std::optional<Told> told(uint32_t thread_id) const;
  // Some thread 0 was told so lately.
  bool unknown_was_told() const;

  void tell(uint32_t thread_id, Told told, Released& released);
  // Tells it, but for a thread that was told and looked nothing up since: the kernel repeats a call whose path leads to the object
  // without a name (/proc/self/fd/3) as it was. False: it is told no more.
  bool tell_unless_blind(uint32_t thread_id, Told told, Released& released);
  // The same for a call that is no open. `by_name`: a thread that repeats a call does not find the name: it is not there.
  bool tell_once(uint32_t thread_id, bool by_name, Released& released);

  // A lookup; empty if it repeats none. Where the name is gone no open follows, and what the thread looks up or opens next is another
  // file; but the kernel may look that name up twice, and find it the second time.
  std::optional<Told> note_lookup(uint32_t thread_id, ObjectId parent, std::string_view name, bool found, Released& released);
  // What a repeated lookup found; it was counted in its kept_for_repeat. Released again where the thread was not told.
  void keep(uint32_t thread_id, const ObjectPtr& object, Released& released);
  struct Repeated {
    bool repeats = false;
    ObjectPtr kept;  // handed over: counted back by the caller once the call is done
  };
  // The thread opens something (null: by creating it).
  Repeated looked_again(uint32_t thread_id, const ObjectPtr& opened);
  // Threads that did not repeat their call in time; `all`: nor will.
  void expire(bool all, Released& released);

 private:
  struct Entry {
    Told told;
    int64_t at_ns = 0;    // monotonic: the repetition follows at once or never
    uint64_t absent = 0;  // what it then looked up in vain; it may be there when the kernel asks again
    bool looked = false;  // it has looked something up since
    ObjectPtr kept{};     // ... which stays until the call is repeated
  };
  using Entries = std::unordered_map<uint32_t, Entry>;
  // mutex_ held, here and below
  bool is_due(const Entry& entry) const;
  bool repeats_blindly(uint32_t thread_id, Released& released);
  void tell_locked(uint32_t thread_id, Told told, Released& released);
  void end(Entries::iterator entry, Released& released);

  Clock& clock_;
  mutable LeafMutex mutex_;
  Entries entries_;
  std::atomic<size_t> count_{0};                         // of entries_
  std::atomic<int64_t> unknown_told_ns_{INT64_MIN / 2};  // when a thread 0 was told
};

}  // namespace kvcachefs

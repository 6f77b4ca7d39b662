// Calls that were answered kStale. The kernel then looks the name up and repeats the call, once. This recognizes the thread's next lookup and
// open, so that no call is answered kStale twice, and keeps the object that the repeated lookup found until it is opened.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/base/types.h"
#include "store/object/object.h"

namespace kvcachefs {

// Thread-safe, one leaf mutex. Nothing blocks. Thread 0 stands for every thread of a process that is not visible here.
class StaleOpens {
 public:
  struct Told {
    bool open = false;                     // the call was an open; else another call
    bool write = false, truncate = false;  // flags of the open
    ObjectId object{};                     // by whose id it was opened; invalid: not known
  };
  // In place of a peer's file `of`, which the thread found under a name and wants to write anew: a file of this node that does not exist
  // before the open is repeated.
  struct StandIn {
    ObjectId id, of, parent;
    std::string name;
  };
  // Objects kept for calls that will not be repeated any more. Each is counted in its kept_for_repeat: the caller counts it back.
  using Released = std::vector<ObjectPtr>;

  explicit StaleOpens(Clock& clock) : clock_(clock) {}

  // Whether the thread was answered kStale, and did not repeat its call yet. Takes no lock if no thread was.
  bool knows(uint32_t thread_id) const;
  // The same, if lately enough that the thread's next call is the repetition.
  std::optional<Told> told(uint32_t thread_id) const;
  ObjectPtr kept_of(uint32_t thread_id, ObjectId object) const;  // what the thread's repeated lookup found, if it is this object
  // Whether an open of this object, by the nodeid of it that the kernel knows, would be the repetition: the thread's lookup found it, or it looked
  // nothing up. The entry stays.
  bool repeats_open(uint32_t thread_id, ObjectId object) const;
  // Whether some thread 0 was answered kStale lately.
  bool unknown_was_told() const;

  void tell(uint32_t thread_id, Told told, Released& released);
  // Notes kStale, unless the thread was answered kStale and looked nothing up since: the kernel repeats a call whose path leads to the object
  // without a name (/proc/self/fd/3) unchanged. False: the caller must not answer kStale again.
  bool tell_unless_blind(uint32_t thread_id, Told told, Released& released);
  // The same for a call other than an open. `by_name`: when it is repeated the name will not be found, for it is not there.
  // If the call was to create a file, `told` has the flags of its open: when it is repeated, it may open a file.
  bool tell_once(uint32_t thread_id, bool by_name, Released& released, Told told);

  // Call at each lookup; nullopt if it repeats none. If the name is gone no open follows, and the thread's next lookup or open is of another
  // file; but the kernel may look that name up twice, and find it the second time.
  std::optional<Told> note_lookup(uint32_t thread_id, ObjectId parent, std::string_view name, bool found, Released& released);
  // Keeps what a repeated lookup found, counted in its kept_for_repeat. Released at once if the thread was not answered kStale.
  void keep(uint32_t thread_id, const ObjectPtr& object, Released& released);
  // Call when such a lookup finds a peer's file. Returns the id that it answers: `fresh.id`, or the one that the last lookup answered for this name.
  ObjectId stand_in(uint32_t thread_id, StandIn fresh);
  // What the thread's last lookup answered, if that was a stand-in with this id.
  std::optional<StandIn> stand_in_of(uint32_t thread_id, ObjectId id) const;
  // Whether some thread's lookup answered a stand-in for this name: it may have the name in a moment, so no other answer is to be relied on.
  bool has_stand_in(ObjectId parent, std::string_view name) const;
  std::optional<ObjectId> stands_for(ObjectId id) const;  // `of` of the stand-in with this id, whichever thread's it is
  struct Repeated {
    bool repeats = false;
    bool blind = false;  // ... and nothing was looked up for it: it opens what it opened before
    ObjectPtr kept;  // handed over: the caller counts it back once the call is done
  };
  // Call when the thread opens an object (null: by creating it).
  Repeated looked_again(uint32_t thread_id, const ObjectPtr& opened);
  // Ends the entries of threads that did not repeat their call in time; `all`: of all threads, for none will.
  void expire(bool all, Released& released);

 private:
  struct Entry {
    Told told;
    int64_t at_ns = 0;    // monotonic: the repetition follows at once or never
    uint64_t absent = 0;  // the name it then looked up and did not find; it may be there when the kernel asks again
    bool looked = false;  // it has looked something up since
    ObjectPtr kept{};     // what that lookup found; kept until the call is repeated
    std::optional<StandIn> stand_in{};  // what that lookup answered in place of it
  };
  using Entries = std::unordered_map<uint32_t, Entry>;
  // These require mutex_ held.
  bool is_due(const Entry& entry) const;
  bool is_blind(const Entry& entry) const;
  bool repeats_blindly(uint32_t thread_id, Released& released);
  void tell_locked(uint32_t thread_id, Told told, Released& released);
  void end(Entries::iterator entry, Released& released);

  Clock& clock_;
  mutable LeafMutex mutex_;
  Entries entries_;
  std::atomic<size_t> count_{0};                         // of entries_
  std::atomic<int64_t> unknown_told_ns_{INT64_MIN / 2};  // when a thread 0 was last answered kStale
};

}  // namespace kvcachefs

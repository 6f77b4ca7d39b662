// The objects with changes that are not journaled yet, and the wake-up of the lane that takes them.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <utility>
#include <vector>

#include "store/base/mutex.h"
#include "store/object/object.h"
#include "store/space/record_space.h"

namespace kvcachefs {

// Thread-safe; mutex_ is a leaf. The bulk lane, one thread, takes the objects of dirty content and waits; the committer takes those of
// dirty attributes.
class DirtyQueue {
 public:
  using Objects = std::vector<ObjectPtr>;

  // Adds an object whose content is dirty and that is not queued yet: the caller has set in_dirty_queue under the object's lock.
  void add_content(ObjectPtr object);
  // Takes all of them. The lane clears in_dirty_queue of objects that it finds clean, and puts the rest back.
  Objects take_content();
  void put_back_content(Objects objects);
  Objects content() const;

  // Adds an object whose attributes changed. The queue may hold an object several times.
  void add_attributes(ObjectPtr object);
  Objects take_attributes();
  bool has_attributes() const;
  void clear();

  // A seal or a spill has ended, in success or not: calls that wait for it try again. Caller may hold any lock but a leaf.
  void seal_ended() const {
    if (seal_ended_) seal_ended_();
  }
  // Sets the function that seal_ended() calls. Once, before use.
  void set_seal_ended(std::function<void()> told) { seal_ended_ = std::move(told); }

  // Tells the lane that there is work: within its interval, or (`hurry`) at once. Takes no lock if the lane knows already.
  void wake(bool hurry = false);
  // Called by the lane at the beginning of a round: work added from here on is for the next round.
  void begin_round();
  // Called by the lane itself: the next round has work. Notifies no thread.
  void note_work(bool hurry);
  // Blocks until there is work. False: the queue was stopped.
  bool wait_for_work();
  // Blocks for the interval, or until a wake-up with `hurry`. False: the queue was stopped.
  bool wait_out(std::chrono::milliseconds interval);
  void stop();

 private:
  mutable LeafMutex mutex_;
  ConditionVariable ready_;
  Objects content_, attributes_;
  bool hurry_ = false;
  bool stopping_ = false;
  std::atomic<bool> has_work_{false};  // written with mutex_ held, or by the lane
  std::function<void()> seal_ended_;
};

// The approximate size of the next record of the attributes. The object is locked.
uint64_t record_bytes(const Object& object);
// The attributes of the object, which is locked, have changed. Has `records` accept the size of their record: once until it is journaled,
// and after a further change only the bytes that the record grew by.
void mark_attributes_dirty(const ObjectPtr& object, RecordSpace& records, DirtyQueue& dirty);

}  // namespace kvcachefs

// The objects with changes that no record tells yet, and the wake-up of the lane that takes them.
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

// Thread-safe; mutex_ is a leaf. One thread, the bulk lane, takes content and waits; the committer takes attributes.
class DirtyQueue {
 public:
  using Objects = std::vector<ObjectPtr>;

  // The content of an object that is not in the queue yet: the caller has set in_dirty_queue under the object's lock.
  void add_content(ObjectPtr object);
  // All of it. The lane clears in_dirty_queue of what it finds clean, and puts the rest back.
  Objects take_content();
  void put_back_content(Objects objects);
  Objects content() const;

  // The attributes of an object, as often as they change.
  void add_attributes(ObjectPtr object);
  Objects take_attributes();
  bool has_attributes() const;
  void clear();

  // A seal or a spill ended, however it did: calls that wait for it look again. Any lock but a leaf may be held.
  void seal_ended() const {
    if (seal_ended_) seal_ended_();
  }
  // `told` is called then. Set once, before use.
  void set_seal_ended(std::function<void()> told) { seal_ended_ = std::move(told); }

  // There is something for the lane: within its interval, or at once. Takes no lock where it knows already.
  void wake(bool hurry = false);
  // By the lane, at the beginning of a round: what is added from here on is for the next.
  void begin_round();
  // By the lane, which needs no notice: the next round has work.
  void note_work(bool hurry);
  // Blocks until there is work. False: the queue was stopped.
  bool wait_for_work();
  // Blocks for the interval, or until somebody is in a hurry. False: the queue was stopped.
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

// About what the next record of the attributes takes. The object is locked.
uint64_t record_bytes(const Object& object);
// The attributes of the object, which is locked, have changed. What the record that tells them takes is accepted here, once until it is
// journaled, and what it takes more after a further change.
void mark_attributes_dirty(const ObjectPtr& object, RecordSpace& records, DirtyQueue& dirty);

}  // namespace kvcachefs

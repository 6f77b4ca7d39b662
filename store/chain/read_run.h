// One pass of one or more readers along a chain: the objects they are expected to read next, in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "store/base/types.h"

namespace kvcachefs {

enum class LoadReason : uint8_t {
  kSuccessor,  // follows an opened object in a known chain
  kProbe,      // was probed, present, in a burst
  kSibling,    // another rank reads the same position of its chain
};

// The queue of expected objects. Readers of one run may overtake each other by kOvertake objects: overtaken objects stay expected
// until then. Items before `planned` have been output in plans.
//   [ left behind | planned, ahead of the furthest reader | not planned yet ]
//   0             passed                                  planned           size
class ReadRun {
 public:
  static constexpr size_t kOvertake = 64;

  bool expects(ObjectId id) const { return expected_.contains(id); }
  bool append(ObjectId id, uint64_t bytes_estimate);  // false: it is already expected
  void set_bytes(ObjectId id, uint64_t bytes);  // of an expected object: its size is now known
  // The readers read the volume directly: planned objects are only opened, and each counts for an eighth of its size. This also
  // applies to objects not planned yet, up to `most_bytes` each.
  void set_only_opens(bool only_opens, uint64_t most_bytes);
  uint64_t share(uint64_t bytes) const { return only_opens_ ? bytes / kOpenedShare : bytes; }
  // A reader opened an expected object. Objects left too far behind are appended to `dropped`.
  void arrive(ObjectId id, std::vector<ObjectId>& dropped);
  // The next object to plan; invalid if all are planned.
  ObjectId peek_unplanned() const { return planned_ < items_.size() ? items_[planned_].id : ObjectId{}; }
  uint64_t unplanned_bytes_estimate() const { return items_[planned_].bytes; }
  size_t unplanned_distance() const { return planned_ - passed_; }
  void take_unplanned();
  void drop_all(std::vector<ObjectId>& dropped);

  size_t unread_planned() const;  // planned, but never opened
  template <class Test>
  bool any_unread_planned(Test test) const {
    for (size_t i = 0; i < planned_; ++i)
      if (!items_[i].read && test(items_[i].id)) return true;
    return false;
  }
  // Calls call(id, bytes) for planned objects ahead of the furthest reader, at most `most` of them.
  template <class Call>
  void for_each_planned(size_t most, Call call) const {
    for (size_t i = passed_; i < planned_ && i - passed_ < most; ++i) call(items_[i].id, items_[i].bytes);
  }
  ObjectId next_expected() const { return passed_ < items_.size() ? items_[passed_].id : ObjectId{}; }
  size_t size() const { return items_.size(); }
  size_t ahead_count() const { return items_.size() - passed_; }
  uint64_t ahead_bytes() const { return ahead_bytes_; }  // expected, ahead of the furthest reader
  bool has_reader() const { return arrivals > 0 || streams > 0; }
  uint64_t outstanding_bytes() const { return outstanding_bytes_; }  // planned, ahead of the furthest reader

  // State that the planner keeps in the run.
  uint32_t generation = 0;  // 0 = the slot is free
  uint64_t stem = 0;
  LoadReason reason = LoadReason::kSuccessor;
  ObjectId tail;               // the last object known to belong to it; the chain is followed from there
  static constexpr uint64_t kNoEnd = UINT64_MAX;
  uint64_t end_seen = kNoEnd;  // changes() of the successor table when nothing followed the tail
  bool ends_here = false;      // the list was given in full: do not follow the chain beyond it
  bool listed = false;     // the probes that gave the list have ended
  bool refilling = false;  // the last plan was full before the window was: the next one continues
  bool second_reader = false;  // reads objects that another live run has read
  uint32_t streams = 0;        // streams that last read here
  uint64_t allowed_bytes = 0;  // grows with every expected read
  uint64_t planned_objects = 0;
  uint64_t planned_before = 0;  // of these: already judged
  ObjectId chain_end;           // the last known object of the chain, if it was reached
  uint64_t arrivals = 0;        // opens of expected objects
  uint32_t reads = 0;           // opens by its readers, expected or not
  uint64_t chunk_bytes = 0;  // mean
  int64_t interval_ns = -1;  // mean time between arrivals
  int64_t last_activity = 0;
  int64_t last_arrival = -1;
  int64_t orphaned_at = -1;  // since when no stream reads here

 private:
  struct Item {
    ObjectId id;
    uint64_t bytes = 0;
    bool read = false;
  };
  static constexpr uint64_t kOpenedShare = 8;

  size_t place_of(uint64_t number) const { return static_cast<size_t>(number - popped_); }
  void pass_to(size_t end);
  void pop_front(std::vector<ObjectId>* dropped);

  std::deque<Item> items_;
  std::unordered_map<ObjectId, uint64_t> expected_;  // -> its number; items are numbered in order of arrival
  uint64_t popped_ = 0;  // items removed from the front: the number of items_[0]
  size_t passed_ = 0;
  size_t planned_ = 0;
  bool only_opens_ = false;
  uint64_t outstanding_bytes_ = 0;
  uint64_t ahead_bytes_ = 0;
};

}  // namespace kvcachefs

// The planned loads that are not under way yet: chooses the body that goes next, and tells whether there is room for it. The queue
// holds ids only: a body's memory is taken, and its units are marked as coming, when it leaves the queue. So a request that
// wants a queued body reads it itself, and a body that is not wanted any more is simply dropped.
//
// Order: bodies with a waiting reader; then the chains that have readers, one read each in turn; then guesses. A chain keeps the
// planned order, so that neighbours on the volume stay together. Pure logic, not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>

#include "store/base/types.h"
#include "store/base/units.h"
#include "store/chain/plan.h"

namespace kvcachefs {

class ReadAheadQueue {
 public:
  static constexpr uint64_t kTurnBytes = kMiB;  // one read of the volume

  struct Item {
    PlannedLoad load;
    bool awaited = false;  // a client reads it, or the body right before it
  };

  // Queues a load. Does nothing if the object is queued already.
  void push(const PlannedLoad& load);
  // Puts back an item that next() gave, if it could not be begun or only in part: it is the next one again.
  void put_back(Item item);
  // A client reads the body: it and the next bodies of its chain, one read in all, go before everything else, whatever is under
  // way; the rest of the chain goes before other chains. False if it is not queued.
  bool promote(ObjectId id);
  bool remove(ObjectId id);  // it is not wanted any more. False if it is not queued
  // Takes out the next item to be read. No value if there is none, or no room for a whole read within `limit_bytes`, of which
  // `under_way_bytes` are in use.
  std::optional<Item> next(uint64_t under_way_bytes, uint64_t limit_bytes);

  bool contains(ObjectId id) const { return where_.contains(id); }
  bool empty() const { return where_.empty(); }
  size_t size() const { return where_.size(); }
  uint64_t bytes() const { return bytes_; }  // as the planner estimates them

 private:
  using Items = std::list<Item>;
  using Turns = std::list<uint32_t>;  // runs that have queued items
  struct Run {
    Items items;
    uint64_t taken_bytes = 0;  // in this turn
    bool guess = true;         // it has no reader
  };

  Run& run_of(const PlannedLoad& load);
  void lift(uint32_t number, Run& run);
  Turns& turns_of(const Run& run) { return run.guess ? guesses_ : read_; }
  Item take(Items& from, Items::iterator at);
  void end_if_empty(uint32_t number);

  Items awaited_;
  std::unordered_map<uint32_t, Run> runs_;
  Turns read_, guesses_;
  std::unordered_map<ObjectId, Items::iterator> where_;
  uint64_t bytes_ = 0;
};

}  // namespace kvcachefs

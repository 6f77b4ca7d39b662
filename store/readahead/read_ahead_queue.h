// What was planned to be read ahead and is not under way yet: which body goes next, and whether there is room for it. Bodies
// are known by id only: their memory is taken, and their units are marked as coming, when they leave the queue. So who wants
// such a body reads it himself, and what nobody wants any more is simply left out.
//
// Order: what somebody waits for; then the chains that have readers, one read each in turn; then guesses. Within a chain as it
// was planned, so that neighbours on the volume stay together. Pure logic, not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>

#include "store/base/types.h"
#include "store/base/units.h"
#include "store/chain/planner.h"

namespace kvcachefs {

class ReadAheadQueue {
 public:
  static constexpr uint64_t kTurnBytes = kMiB;  // one read of the volume

  struct Item {
    PlannedLoad load;
    bool awaited = false;  // somebody reads it, or what is right before it
  };

  // Of an object that is queued already nothing more is taken.
  void push(const PlannedLoad& load);
  // What next() gave could not be begun, or only a part of it was: it is the next one again.
  void put_back(Item item);
  // Somebody reads the body: it and the next of its chain, one read in all, go before everything else, whatever is under way;
  // the rest of the chain goes before other chains. False if it is not queued.
  bool promote(ObjectId id);
  bool remove(ObjectId id);  // nobody wants it any more. False if it is not queued
  // The next to be read, taken out. None if there is none, or no room for a whole read among `limit_bytes` of which
  // `under_way_bytes` are in use.
  std::optional<Item> next(uint64_t under_way_bytes, uint64_t limit_bytes);

  bool contains(ObjectId id) const { return where_.contains(id); }
  bool empty() const { return where_.empty(); }
  size_t size() const { return where_.size(); }
  uint64_t bytes() const { return bytes_; }  // as the planner estimates them

 private:
  using Items = std::list<Item>;
  using Turns = std::list<uint32_t>;  // of runs that have something queued
  struct Run {
    Items items;
    uint64_t taken_bytes = 0;  // in this turn
    bool guess = true;         // nobody reads it
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

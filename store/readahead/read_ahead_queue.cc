#include "store/readahead/read_ahead_queue.h"

#include <algorithm>
#include <utility>

namespace kvcachefs {

ReadAheadQueue::Run& ReadAheadQueue::run_of(const PlannedLoad& load) {
  auto [found, inserted] = runs_.try_emplace(load.run);
  Run& run = found->second;
  if (inserted) turns_of(run).push_back(load.run);
  if (run.guess && !load.guess) {  // the run now has a reader
    std::erase(turns_of(run), load.run);
    run.guess = false;
    turns_of(run).push_back(load.run);
  }
  return run;
}

// Makes the turn of the run the next one.
void ReadAheadQueue::lift(uint32_t number, Run& run) {
  std::erase(turns_of(run), number);
  run.taken_bytes = 0;
  turns_of(run).push_front(number);
}

void ReadAheadQueue::end_if_empty(uint32_t number) {
  auto found = runs_.find(number);
  if (found == runs_.end() || !found->second.items.empty()) return;
  std::erase(turns_of(found->second), number);
  runs_.erase(found);
}

ReadAheadQueue::Item ReadAheadQueue::take(Items& from, Items::iterator at) {
  Item item = std::move(*at);
  bytes_ -= item.load.bytes;
  where_.erase(item.load.id);
  from.erase(at);
  return item;
}

void ReadAheadQueue::push(const PlannedLoad& load) {
  if (contains(load.id)) return;
  Items& items = run_of(load).items;
  items.push_back({load, false});
  where_.emplace(load.id, std::prev(items.end()));
  bytes_ += load.bytes;
}

void ReadAheadQueue::put_back(Item item) {
  if (contains(item.load.id)) return;
  const uint32_t number = item.load.run;
  bytes_ += item.load.bytes;
  Items* items = &awaited_;
  if (!item.awaited) {
    Run& run = run_of(item.load);
    lift(number, run);
    items = &run.items;
  }
  items->push_front(std::move(item));
  where_.emplace(items->front().load.id, items->begin());
}

bool ReadAheadQueue::promote(ObjectId id) {
  auto found = where_.find(id);
  if (found == where_.end()) return false;
  if (found->second->awaited) return true;
  const uint32_t number = found->second->load.run;
  Run& run = runs_.at(number);
  auto end = found->second;
  uint64_t bytes = 0;
  do {
    bytes += end->load.bytes;
    end->awaited = true;
    ++end;
  } while (end != run.items.end() && bytes + end->load.bytes <= kTurnBytes);
  awaited_.splice(awaited_.end(), run.items, found->second, end);
  if (run.guess) {
    std::erase(guesses_, number);
    run.guess = false;
  }
  lift(number, run);
  end_if_empty(number);
  return true;
}

bool ReadAheadQueue::remove(ObjectId id) {
  auto found = where_.find(id);
  if (found == where_.end()) return false;
  const auto at = found->second;
  if (at->awaited) {
    take(awaited_, at);
    return true;
  }
  const uint32_t number = at->load.run;
  take(runs_.at(number).items, at);
  end_if_empty(number);
  return true;
}

std::optional<ReadAheadQueue::Item> ReadAheadQueue::next(uint64_t under_way_bytes, uint64_t limit_bytes) {
  if (!awaited_.empty()) return take(awaited_, awaited_.begin());
  if (empty() || (under_way_bytes > 0 && under_way_bytes + kTurnBytes > limit_bytes)) return std::nullopt;
  Turns& turns = read_.empty() ? guesses_ : read_;
  const uint32_t number = turns.front();
  Run& run = runs_.at(number);
  Item item = take(run.items, run.items.begin());
  run.taken_bytes += item.load.bytes;
  if (run.items.empty()) {
    end_if_empty(number);
  } else if (run.taken_bytes + run.items.front().load.bytes > kTurnBytes) {
    run.taken_bytes = 0;
    turns.splice(turns.end(), turns, turns.begin());
  }
  return item;
}

}  // namespace kvcachefs

#include "store/chain/read_run.h"

#include <algorithm>
#include <utility>

namespace kvcachefs {

bool ReadRun::append(ObjectId id, uint64_t bytes_estimate) {
  if (!expected_.try_emplace(id, popped_ + items_.size()).second) return false;
  items_.push_back(Item{id, bytes_estimate, false});
  ahead_bytes_ += bytes_estimate;
  tail = id;
  end_seen = kNoEnd;
  return true;
}

void ReadRun::set_bytes(ObjectId id, uint64_t bytes) {
  auto found = expected_.find(id);
  if (found == expected_.end()) return;
  const size_t at = place_of(found->second);
  if (at >= passed_) ahead_bytes_ += bytes - items_[at].bytes;
  if (at >= passed_ && at < planned_) outstanding_bytes_ += bytes - items_[at].bytes;
  items_[at].bytes = bytes;
}

void ReadRun::set_only_opens(bool only_opens, uint64_t most_bytes) {
  if (only_opens == std::exchange(only_opens_, only_opens)) return;
  for (size_t at = planned_; at < items_.size(); ++at) {
    uint64_t& bytes = items_[at].bytes;
    ahead_bytes_ -= bytes;
    bytes = only_opens ? bytes / kOpenedShare : std::min(bytes * kOpenedShare, most_bytes);
    ahead_bytes_ += bytes;
  }
}

void ReadRun::take_unplanned() {
  outstanding_bytes_ += items_[planned_].bytes;
  ++planned_;
  ++planned_objects;
}

// The furthest reader is now at items_[end - 1].
void ReadRun::pass_to(size_t end) {
  for (; passed_ < end; ++passed_) {
    ahead_bytes_ -= items_[passed_].bytes;
    if (passed_ < planned_) outstanding_bytes_ -= items_[passed_].bytes;
  }
  planned_ = std::max(planned_, passed_);
}

void ReadRun::pop_front(std::vector<ObjectId>* dropped) {
  const Item& front = items_.front();
  if (!front.read) {
    expected_.erase(front.id);
    if (dropped != nullptr) dropped->push_back(front.id);
  }
  items_.pop_front();
  ++popped_;
  --passed_;
  --planned_;
}

void ReadRun::arrive(ObjectId id, std::vector<ObjectId>& dropped) {
  auto found = expected_.find(id);
  if (found == expected_.end()) return;
  const size_t at = place_of(found->second);
  expected_.erase(found);
  items_[at].read = true;
  ++arrivals;
  if (at >= passed_) pass_to(at + 1);
  while (!items_.empty() && passed_ > 0 && items_.front().read) pop_front(nullptr);
  while (passed_ > kOvertake) pop_front(&dropped);
}

size_t ReadRun::unread_planned() const {
  return static_cast<size_t>(std::count_if(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(planned_),
                                           [](const Item& item) { return !item.read; }));
}

void ReadRun::drop_all(std::vector<ObjectId>& dropped) {
  for (const Item& item : items_) {
    if (!item.read) dropped.push_back(item.id);
  }
  popped_ += items_.size();
  items_.clear();
  expected_.clear();
  passed_ = planned_ = 0;
  outstanding_bytes_ = ahead_bytes_ = 0;
}

}  // namespace kvcachefs

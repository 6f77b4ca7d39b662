#include "store/kernel_ahead.h"

#include <algorithm>
#include <utility>

namespace kvcachefs {

namespace {
constexpr size_t kMostQueued = 64;
}  // namespace

void KernelAhead::push(Work work) {
  std::lock_guard lock(mutex_);
  if (stopped_ || queue_.size() >= kMostQueued) return;
  const ObjectId id = work.id;
  if (!entries_.try_emplace(id, Entry{std::move(work), false, {}}).second) return;
  count_.store(entries_.size(), std::memory_order_relaxed);
  queue_.push_back(id);
  ready_.notify_one();
}

bool KernelAhead::await(ObjectId id, Then& then) {
  if (count_.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard lock(mutex_);
  auto found = entries_.find(id);
  if (stopped_ || found == entries_.end() || found->second.work.size_bytes > kMostAwaitedBytes) return false;
  Entry& entry = found->second;
  entry.waiting.push_back(std::move(then));
  if (!entry.begun) {
    auto place = std::find(queue_.begin(), queue_.end(), id);
    std::rotate(queue_.begin(), place, std::next(place));
  }
  return true;
}

std::optional<KernelAhead::Work> KernelAhead::next() {
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [&] { return stopped_ || !queue_.empty(); });
  if (stopped_) return {};
  Entry& entry = entries_.at(queue_.front());
  queue_.pop_front();
  entry.begun = true;
  return entry.work;
}

void KernelAhead::finish(ObjectId id) {
  std::vector<Then> waiting;
  {
    std::lock_guard lock(mutex_);
    auto done = entries_.extract(id);
    if (!done.empty()) waiting = std::move(done.mapped().waiting);
    count_.store(entries_.size(), std::memory_order_relaxed);
  }
  for (Then& then : waiting) then();
}

void KernelAhead::stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  ready_.notify_all();
}

void KernelAhead::give_up() {
  std::unordered_map<ObjectId, Entry> entries;
  {
    std::lock_guard lock(mutex_);
    entries.swap(entries_);
    queue_.clear();
    count_.store(0, std::memory_order_relaxed);
  }
  for (auto& [id, entry] : entries)
    for (Then& then : entry.waiting) then();
}

}  // namespace kvcachefs

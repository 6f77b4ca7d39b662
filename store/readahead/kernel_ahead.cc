#include "store/readahead/kernel_ahead.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kvcachefs {

void KernelAhead::push(Work work) {
  std::lock_guard lock(mutex_);
  if (stopped_ || queue_.size() >= most_queued_) return;
  const ObjectId id = work.id;
  if (auto found = entries_.find(id); found != entries_.end()) {
    if (!found->second.begun) std::swap(found->second.work, work);  // the body may have moved; the old file is released by the caller
    return;
  }
  entries_[id].work = std::move(work);
  count_.store(entries_.size(), std::memory_order_relaxed);
  queue_.push_back(id);
  ready_.notify_one();
}

bool KernelAhead::await(ObjectId id, Then& then) {
  if (count_.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard lock(mutex_);
  auto found = entries_.find(id);
  if (stopped_ || found == entries_.end() || found->second.is_large()) return false;
  Entry& entry = found->second;
  if (stalls() || (!entry.begun && large_begun_ > 0)) return false;
  if (!entry.begun && entry.waiting.empty()) {  // moves it behind the files that are awaited already
    const auto place = std::find(queue_.begin(), queue_.end(), id);
    uint64_t before_bytes = 0;
    auto front = queue_.begin();
    for (; front != place && !entries_.at(*front).waiting.empty(); ++front) before_bytes += entries_.at(*front).work.size_bytes;
    if (before_bytes > kMostAwaitedBytes) return false;
    std::rotate(front, place, std::next(place));
  }
  entry.waiting.push_back(std::move(then));
  return true;
}

bool KernelAhead::stalls() const {
  const auto now = std::chrono::steady_clock::now();
  return std::ranges::any_of(entries_, [&](const auto& each) { return each.second.begun && now - *each.second.begun > kStalled; });
}

std::vector<KernelAhead::Then> KernelAhead::take_stalled() {
  std::vector<Then> taken;
  if (count_.load(std::memory_order_relaxed) == 0) return taken;
  std::lock_guard lock(mutex_);
  if (!stalls()) return taken;
  for (auto& [id, entry] : entries_) {
    std::ranges::move(entry.waiting, std::back_inserter(taken));
    entry.waiting.clear();
  }
  return taken;
}

std::optional<KernelAhead::Work> KernelAhead::next() {
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [&] { return stopped_ || !queue_.empty(); });
  if (stopped_) return {};
  Entry& entry = entries_.at(queue_.front());
  queue_.pop_front();
  entry.begun = std::chrono::steady_clock::now();
  if (entry.is_large()) ++large_begun_;
  return entry.work;
}

void KernelAhead::finish(ObjectId id) {
  std::vector<Then> waiting;
  decltype(entries_)::node_type done;  // its file is released after the lock
  {
    std::lock_guard lock(mutex_);
    done = entries_.extract(id);
    if (done.empty()) return;
    if (done.mapped().is_large()) --large_begun_;
    waiting = std::move(done.mapped().waiting);
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

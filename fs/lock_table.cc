#include "fs/lock_table.h"

#include <algorithm>
#include <utility>

namespace kvcachefs {

bool LockTable::conflicts(const Request& request, const Lock& lock) {
  if (lock.family != request.family || lock.owner == request.owner) return false;
  if (lock.mode == Mode::kShared && request.mode == Mode::kShared) return false;
  return overlaps(request, lock);
}

bool LockTable::can_be_had(const File& file, const Request& request) const {
  return std::none_of(file.locks.begin(), file.locks.end(), [&](const Lock& lock) { return conflicts(request, lock); });
}

// True if every lock that conflicts with the request may belong to a closed descriptor.
bool LockTable::may_soon_be_had(const File& file, const Request& request) {
  return std::all_of(file.locks.begin(), file.locks.end(),
                     [&](const Lock& lock) { return !conflicts(request, lock) || lock.may_be_closed || lock.closes_unseen; });
}

// True if the owner of a conflicting lock waits, directly or through others, for a record lock of the requesting owner.
bool LockTable::deadlocks(const Request& request) const {
  std::unordered_set<uint64_t> seen;
  std::vector<Request> waiting{request};
  while (!waiting.empty()) {
    const Request blocked = waiting.back();
    waiting.pop_back();
    auto file = files_.find(blocked.file);
    if (file == files_.end()) continue;
    for (const Lock& lock : file->second.locks) {
      if (!conflicts(blocked, lock)) continue;
      if (lock.owner == request.owner) return true;
      if (!seen.insert(lock.owner).second) continue;
      for (const auto& [id, other] : files_)
        for (const Waiter& waiter : other.waiters)
          if (waiter.request.family == Family::kRecord && waiter.request.owner == lock.owner) waiting.push_back(waiter.request);
    }
  }
  return false;
}

// Unlocks the range for the owner's locks of that family: locks that extend beyond it are cut, or split in two.
void LockTable::remove(File& file, const Request& range) {
  std::vector<Lock> rests;
  std::erase_if(file.locks, [&](const Lock& lock) {
    if (lock.family != range.family || lock.owner != range.owner || !overlaps(range, lock)) return false;
    if (lock.first < range.first) {
      rests.push_back(lock);
      rests.back().last = range.first - 1;
    }
    if (lock.last > range.last) {
      rests.push_back(lock);
      rests.back().first = range.last + 1;
    }
    --locks_;
    return true;
  });
  locks_ += rests.size();
  file.locks.insert(file.locks.end(), rests.begin(), rests.end());
}

// Call before put(). Does not take into account that put() merges neighbours.
bool LockTable::is_too_many(const File& file, const Request& request) const {
  size_t before = 0, after = request.mode == Mode::kUnlocked ? 0 : 1;
  for (const Lock& lock : file.locks) {
    if (lock.family != request.family || lock.owner != request.owner || !overlaps(request, lock)) continue;
    ++before;
    after += (lock.first < request.first) + (lock.last > request.last);
  }
  return after > before && locks_ + after - before > most_locks_;
}

// Merges neighbours of one kind, so that a file locked byte by byte has one lock. Locks set through another handle stay
// separate, because they end with that handle.
void LockTable::put(File& file, const Request& request) {
  remove(file, request);
  if (request.mode == Mode::kUnlocked) return;
  Lock merged{request, false};
  std::erase_if(file.locks, [&](const Lock& lock) {
    if (lock.family != merged.family || lock.owner != merged.owner || lock.mode != merged.mode || lock.handle != merged.handle) return false;
    const bool before = lock.last != UINT64_MAX && lock.last + 1 == merged.first;
    const bool after = merged.last != UINT64_MAX && merged.last + 1 == lock.first;
    if (!before && !after) return false;
    merged.first = std::min(merged.first, lock.first);
    merged.last = std::max(merged.last, lock.last);
    --locks_;
    return true;
  });
  file.locks.push_back(merged);
  ++locks_;
}

void LockTable::announce(uint64_t token) {
  std::lock_guard lock(mutex_);
  announced_[token] = false;
}

void LockTable::set(const Request& request, bool waits, uint64_t token, int64_t now_ns, Done done) {
  Answers answers;
  {
    std::lock_guard lock(mutex_);
    const auto announced = announced_.find(token);
    const bool interrupted = announced != announced_.end() && announced->second;
    if (announced != announced_.end()) announced_.erase(announced);
    File& file = files_[request.file];
    if (request.mode != Mode::kUnlocked && request.family == Family::kFlock) {
      // A change gives up the old lock first, as Linux does: if it then fails, the owner has no lock.
      const bool same = std::any_of(file.locks.begin(), file.locks.end(), [&](const Lock& held) {
        return held.family == Family::kFlock && held.owner == request.owner && held.mode == request.mode;
      });
      if (!same) {
        remove(file, request);
        grant(request.file, answers);
      }
    }
    if (request.mode == Mode::kUnlocked || can_be_had(file, request)) {
      if (is_too_many(file, request)) {
        answers.emplace_back(std::move(done), Outcome::kTooMany);
      } else {
        put(file, request);
        answers.emplace_back(std::move(done), Outcome::kGranted);
        grant(request.file, answers);  // the owner may now hold less than before
      }
    } else if (waits && interrupted) {
      answers.emplace_back(std::move(done), Outcome::kInterrupted);
    } else if (waits && request.family == Family::kRecord && deadlocks(request)) {
      answers.emplace_back(std::move(done), Outcome::kDeadlock);
    } else if (waits || may_soon_be_had(file, request)) {
      file.waiters.push_back({request, token, waits ? std::nullopt : std::optional(now_ns + kCloseNs), std::move(done)});
      if (!waits) ++expiring_;
      waits_at_[token] = request.file;
    } else {
      answers.emplace_back(std::move(done), Outcome::kWouldBlock);
    }
    if (file.locks.empty() && file.waiters.empty()) files_.erase(request.file);
  }
  answer(answers);
}

// mutex_ held. Grants waiting requests, oldest first, as far as the locks granted before allow.
void LockTable::grant(ObjectId id, Answers& answers) {
  auto found = files_.find(id);
  if (found == files_.end()) return;
  File& file = found->second;
  for (auto waiter = file.waiters.begin(); waiter != file.waiters.end();) {
    if (!can_be_had(file, waiter->request)) {
      ++waiter;
      continue;
    }
    const bool too_many = is_too_many(file, waiter->request);
    if (!too_many) put(file, waiter->request);
    answers.emplace_back(std::move(waiter->done), too_many ? Outcome::kTooMany : Outcome::kGranted);
    if (waiter->until_ns) --expiring_;
    waits_at_.erase(waiter->token);
    file.waiters.erase(waiter);
    waiter = file.waiters.begin();  // an owner may hold less than before
  }
}

void LockTable::answer(Answers& answers) {
  for (auto& [done, outcome] : answers) done(outcome);
}

void LockTable::interrupt(uint64_t token) {
  Answers answers;
  {
    std::lock_guard lock(mutex_);
    if (auto announced = announced_.find(token); announced != announced_.end()) announced->second = true;
    auto where = waits_at_.find(token);
    if (where == waits_at_.end()) return;
    const ObjectId id = where->second;
    File& file = files_.at(id);
    auto waiter = std::find_if(file.waiters.begin(), file.waiters.end(), [&](const Waiter& each) { return each.token == token; });
    answers.emplace_back(std::move(waiter->done), Outcome::kInterrupted);
    if (waiter->until_ns) --expiring_;
    file.waiters.erase(waiter);
    waits_at_.erase(where);
    if (file.locks.empty() && file.waiters.empty()) files_.erase(id);
  }
  answer(answers);
}

void LockTable::interrupt_all() {
  Answers answers;
  {
    std::lock_guard lock(mutex_);
    for (auto& [id, file] : files_) {
      for (Waiter& waiter : file.waiters) answers.emplace_back(std::move(waiter.done), Outcome::kInterrupted);
      file.waiters.clear();
    }
    waits_at_.clear();
    expiring_ = 0;
  }
  answer(answers);
}

std::optional<LockTable::Request> LockTable::conflict(const Request& request) const {
  std::lock_guard lock(mutex_);
  auto found = files_.find(request.file);
  if (found == files_.end()) return std::nullopt;
  std::optional<Request> first;
  for (const Lock& held : found->second.locks)
    if (conflicts(request, held) && (!first || held.first < first->first)) first = held;
  return first;
}

void LockTable::flushed(ObjectId id, uint64_t handle, uint64_t owner) {
  Answers answers;
  {
    std::lock_guard lock(mutex_);
    auto found = files_.find(id);
    if (found == files_.end()) return;
    File& file = found->second;
    locks_ -= std::erase_if(file.locks, [&](const Lock& held) { return held.family == Family::kRecord && held.owner == owner; });
    bool marked = false;
    for (Lock& held : file.locks)
      if (held.handle == handle) held.may_be_closed = marked = true;
    grant(id, answers);
    if (file.locks.empty() && file.waiters.empty()) files_.erase(id);
  }
  answer(answers);
}

void LockTable::released(ObjectId id, uint64_t handle) {
  Answers answers;
  {
    std::lock_guard lock(mutex_);
    auto found = files_.find(id);
    if (found == files_.end()) return;
    File& file = found->second;
    locks_ -= std::erase_if(file.locks, [&](const Lock& held) { return held.handle == handle; });
    grant(id, answers);
    if (file.locks.empty() && file.waiters.empty()) files_.erase(id);
  }
  answer(answers);
}

std::optional<int64_t> LockTable::next_expiry() const {
  std::lock_guard lock(mutex_);
  std::optional<int64_t> next;
  if (expiring_ == 0) return next;
  for (const auto& [id, file] : files_)
    for (const Waiter& waiter : file.waiters)
      if (waiter.until_ns && (!next || *waiter.until_ns < *next)) next = waiter.until_ns;
  return next;
}

std::optional<int64_t> LockTable::expire(int64_t now_ns) {
  Answers answers;
  {
    std::lock_guard lock(mutex_);
    for (auto at = files_.begin(); expiring_ > 0 && at != files_.end();) {
      File& file = at->second;
      for (auto waiter = file.waiters.begin(); waiter != file.waiters.end();) {
        if (!waiter->until_ns || *waiter->until_ns > now_ns) {
          ++waiter;
          continue;
        }
        answers.emplace_back(std::move(waiter->done), Outcome::kWouldBlock);
        --expiring_;
        waits_at_.erase(waiter->token);
        waiter = file.waiters.erase(waiter);
      }
      at = file.locks.empty() && file.waiters.empty() ? files_.erase(at) : std::next(at);
    }
  }
  answer(answers);
  return next_expiry();
}

}  // namespace kvcachefs

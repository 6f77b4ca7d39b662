#include "store/cache/memory_waiters.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "store/base/log.h"
#include "store/base/units.h"

namespace kvcachefs {

namespace {
constexpr int64_t kStuckNs = 10'000'000'000;
constexpr int64_t kFirstNs = 100'000'000;
}  // namespace

void MemoryWaiters::add(Kind kind, ObjectId object, uint64_t lacks_bytes, int64_t now_ns, Retry retry,
                        GiveUp give_up) {
  std::lock_guard lock(mutex_);
  auto& line = lines_[static_cast<size_t>(kind)];
  line.push_back({next_number_++, object, lacks_bytes, now_ns, false, INT64_MIN, std::move(retry), std::move(give_up)});
  counts_[static_cast<size_t>(kind)].fetch_add(1);
  count_.fetch_add(1);
}

// True if the first writer goes before a reader with that number. Not called while the writers' line is being tried.
bool MemoryWaiters::writer_comes_first(uint64_t before_number, int64_t now_ns) {
  uint64_t lacks = 0;
  {
    std::lock_guard lock(mutex_);
    auto& writers = lines_[static_cast<size_t>(Kind::kWriter)];
    if (writers.empty() || writers.front().number > before_number) return false;
    Entry& writer = writers.front();
    if (writer.first_since_ns == INT64_MIN) writer.first_since_ns = now_ns;
    if ((now_ns - writer.first_since_ns) / kFirstNs % 2 != 0) return false;
    lacks = writer.lacks_bytes;
  }
  return lacks > 0 && rules_.has_room_without_reads(lacks);
}

bool MemoryWaiters::resume(int64_t now_ns) {
  if (nobody_waits()) return false;
  const bool look_at_all = look_at_all_.exchange(false);
  bool any = resume_line(Kind::kReader, look_at_all, now_ns);
  if (resume_line(Kind::kWriter, look_at_all, now_ns)) {
    any = true;
    resume_line(Kind::kReader, false, now_ns);  // the readers that let a writer go first
  }
  readers_pause_ = writer_comes_first(UINT64_MAX, now_ns);
  return any;
}

bool MemoryWaiters::resume_line(Kind kind, bool look_at_all, int64_t now_ns) {
  std::deque<Entry> line, left;
  auto& waiting = lines_[static_cast<size_t>(kind)];
  {
    std::lock_guard lock(mutex_);
    if (waiting.empty()) return false;
    line.swap(waiting);
  }
  bool any = false, may_take = true;
  const std::optional<Error> no_use = rules_.no_use();
  for (Entry& entry : line) {
    if (may_take && kind == Kind::kReader && writer_comes_first(entry.number, now_ns)) may_take = false;
    Try attempt{.may_take = may_take};
    const bool goes_on = (may_take || look_at_all) && entry.retry(attempt);
    const bool gives_up = !goes_on && no_use && (kind == Kind::kWriter || now_ns - entry.since_ns >= kStuckNs);
    if (gives_up) entry.give_up(*no_use);
    if (goes_on || gives_up) {
      counts_[static_cast<size_t>(kind)].fetch_sub(1);
      count_.fetch_sub(1);
      any = true;
      continue;
    }
    if (may_take) entry.lacks_bytes = attempt.lacks_bytes;
    may_take = false;
    left.push_back(std::move(entry));
  }
  if (!left.empty()) look_for_stuck(left, kind, now_ns);
  std::lock_guard lock(mutex_);
  waiting.insert(waiting.begin(), std::make_move_iterator(left.begin()), std::make_move_iterator(left.end()));
  if (kind == Kind::kReader) first_reader_lacks_ = waiting.empty() ? 0 : waiting.front().lacks_bytes;
  return any;
}

// The first of a line goes on when memory comes back. If none can come back, the wait is a fault of this program or of the options.
void MemoryWaiters::look_for_stuck(std::deque<Entry>& line, Kind kind, int64_t now_ns) {
  Entry& first = line.front();
  if (first.told || now_ns - first.since_ns < kStuckNs || !rules_.nothing_moves()) return;
  first.told = true;
  log::error(
      "object {}: a {} has waited {} s for {} of memory, {} others wait behind it, and nothing is being written or read that "
      "would bring memory back. Raise the option memory; if `kvcachefs status` shows that most of it is free, this is a fault of "
      "kvcachefs: report it with this line",
      first.object.value, kind == Kind::kReader ? "read" : "write", (now_ns - first.since_ns) / 1'000'000'000,
      format_size(first.lacks_bytes), line.size() - 1);
}

}  // namespace kvcachefs

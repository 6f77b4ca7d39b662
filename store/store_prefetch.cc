// Carries out what the prefetcher plans: whole bodies into RAM, neighbours on the volume in one read, as background I/O.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/store_impl.h"
#include "store/store_load.h"

namespace kvcachefs {

namespace {
constexpr size_t kMaxLoadsAtOnce = 256;
// Handed to the volume together, as neighbours that become large reads. Not more: what waits here waits for the memory of
// all, and a page that was never used costs milliseconds to get on some machines. Of one chain as much as becomes one read;
// less where its reader is right behind it. Where chains come mixed each of them has less of it.
constexpr uint64_t kFirstBytes = 256 * kKiB;
constexpr uint64_t kOneReadBytes = kMiB;
constexpr uint64_t kMixedBytes = 4 * kMiB;
constexpr uint64_t kMaxBodyBytes = 256 * kMiB;  // larger ones are read ahead within the body only

// What this thread holds back between hold_read_ahead() and resume_read_ahead().
struct HeldKick {
  const Store* store = nullptr;  // nullptr: nothing is held back
  bool due = false;
};
constinit thread_local HeldKick held_kick;
}  // namespace

void StoreImpl::kick_prefetch() {
  if (held_kick.store == this) {
    held_kick.due = true;
    return;
  }
  {
    std::lock_guard lock(prefetch_mutex_);
    prefetch_kicked_ = true;
  }
  prefetch_ready_.notify_one();
}

void StoreImpl::hold_read_ahead() { held_kick = {.store = this}; }

void StoreImpl::resume_read_ahead() {
  if (std::exchange(held_kick, {}).due) kick_prefetch();
}

// Reads that wait for their neighbours.
struct StoreImpl::HeldLoads {
  std::vector<std::shared_ptr<LoadJob>> jobs;
  uint64_t bytes = 0;
  uint32_t run = 0;     // of the first
  bool mixed = false;   // there are others'
  bool urgent = false;  // a reader is right behind the first

  void note(const PlannedLoad& load) {
    if (jobs.empty()) *this = {.jobs = {}, .run = load.run, .urgent = load.priority == 0};
    mixed |= load.run != run;
  }
  uint64_t enough() const { return mixed ? kMixedBytes : urgent ? kFirstBytes : kOneReadBytes; }
};

void StoreImpl::load_ahead(const PlannedLoad& load, HeldLoads& held) {
  held.note(load);
  const size_t before = held.jobs.size();
  const uint64_t bytes = prefetch_body(load.id, held.jobs);
  held.bytes += bytes;
  if (held.bytes > held.enough() && before > 0) {  // cut where the read would be cut: what does not fit begins the next
    std::vector<std::shared_ptr<LoadJob>> next(std::make_move_iterator(held.jobs.begin() + static_cast<ptrdiff_t>(before)),
                                               std::make_move_iterator(held.jobs.end()));
    held.jobs.resize(before);
    submit_loads(std::move(held.jobs));
    held = {.jobs = std::move(next), .bytes = bytes, .run = load.run};
  }
  if (held.bytes >= held.enough()) submit_loads(std::exchange(held, {}).jobs);
}

bool StoreImpl::prefetch_step() {
  {
    std::lock_guard lock(prefetch_mutex_);
    prefetch_kicked_ = false;
  }
  HeldLoads loads_held;
  // By pieces: clients' lookups, opens and reads want the prefetcher's lock, which a plan holds while it looks up what follows.
  bool any = false;
  for (size_t planned = 0; planned < kMaxLoadsAtOnce;) {
    const uint64_t limit = pool_->limit_bytes(), used = pool_->used_bytes();
    // Clean bodies can make room; dirty ones (reserved for the volume) cannot, nor what clients have mapped, nor what is being
    // read ahead, for readers that may have gone as well.
    const uint64_t dirty = std::min(space_.reserved_bytes(), used);
    const uint64_t held = dirty + files_->lingering_bytes() + ahead_in_flight_bytes_.load(std::memory_order_relaxed);
    const Plan plan = prefetcher_->plan(clock_.monotonic_ns(), limit - std::min(limit, held));
    for (ObjectId id : plan.cancels) prefetcher_->skipped(id, SkipReason::kCancelled);
    for (const PlannedLoad& load : plan.loads) load_ahead(load, loads_held);
    any |= !plan.loads.empty() || !plan.cancels.empty();
    if (plan.loads.empty()) break;
    planned += plan.loads.size();
    if (loads_held.jobs.empty()) ::sched_yield();  // readers first, also on this processor; none waits for what is in hand
  }
  submit_loads(std::move(loads_held.jobs));
  return any;
}

// True for a body that will be passed through, which the kernel reads: bytes of it in RAM here would be read twice. It is
// read ahead into the page cache, unless clients read with O_DIRECT: those would wait for the device twice.
bool StoreImpl::leave_to_kernel(ObjectId id, uint64_t size_bytes) {
  if (!passes_through_) return false;
  FilePtr file = passable_file(id);
  if (!file) return false;
  constexpr int64_t kRememberedNs = 10'000'000'000;
  const int64_t direct_ns = passed_direct_ns_.load(std::memory_order_relaxed);
  if (direct_ns == 0 || clock_.monotonic_ns() - direct_ns > kRememberedNs) read_ahead_in_kernel(std::move(file), size_bytes);
  return true;
}

void StoreImpl::read_ahead_in_kernel(FilePtr file, uint64_t size_bytes) {
  constexpr size_t kMostWaiting = 64;
  std::lock_guard lock(kernel_ahead_mutex_);
  if (kernel_ahead_.size() >= kMostWaiting) return;  // it is the one needed last
  kernel_ahead_.emplace_back(std::move(file), size_bytes);
  kernel_ahead_ready_.notify_one();
}

// Two threads at it: each has one request at a time under way, which does not fill the device.
void StoreImpl::kernel_ahead_loop() {
  while (true) {
    std::pair<FilePtr, uint64_t> next;
    {
      std::unique_lock lock(kernel_ahead_mutex_);
      kernel_ahead_ready_.wait(lock, [&] { return stopping_ || !kernel_ahead_.empty(); });
      if (stopping_) return;
      next = std::move(kernel_ahead_.front());
      kernel_ahead_.pop_front();
    }
    next.first->will_need(0, next.second);
  }
}

// Adds the reads one body takes and returns their bytes; answers the plan itself when it takes none.
uint64_t StoreImpl::prefetch_body(ObjectId id, std::vector<std::shared_ptr<LoadJob>>& jobs) {
  auto got = get(id);
  if (!got) {
    prefetcher_->skipped(id, got.error().code == Code::kNotFound ? SkipReason::kGone : SkipReason::kFailed);
    return 0;
  }
  const ObjectPtr object = *got;
  size_t units = 0;
  uint64_t missing = 0, size = 0;
  {
    std::lock_guard lock(object->mutex);
    size = object->size_bytes;
    units = div_ceil(size, kUnitBytes);
    const bool readable = object->is_regular() && !object->raw && !object->base.quarantined && object->base.place.kind != PlaceKind::kRaw;
    if (!readable || size > kMaxBodyBytes) units = 0;
    for (size_t index = 0; index < units; ++index)
      if (object->needs_load(index) && !object->loading.contains(index))
        missing += MemoryPool::block_bytes(std::min(kUnitBytes, size - index * kUnitBytes));
  }
  if (missing > 0 && leave_to_kernel(id, size)) {
    prefetcher_->skipped(id, SkipReason::kResident);
    forget_when_idle(object);
    return 0;
  }
  if (missing == 0) {
    prefetcher_->skipped(id, units == 0 ? SkipReason::kFailed : SkipReason::kResident);
    forget_when_idle(object);
    return 0;
  }
  // The planner goes by estimates, and takes what it cancels for not there: here is what is really being read.
  if (ahead_in_flight_bytes_.load(std::memory_order_relaxed) + missing > pool_->limit_bytes() / 2) {
    prefetcher_->skipped(id, SkipReason::kNoRoom);
    forget_when_idle(object);
    return 0;
  }
  const int64_t started_ns = clock_.monotonic_ns();
  ahead_in_flight_bytes_.fetch_add(missing, std::memory_order_relaxed);
  auto waiter = std::make_shared<LoadWaiter>();
  waiter->done = [this, id, size, missing, started_ns](Status status) {
    ahead_in_flight_bytes_.fetch_sub(missing, std::memory_order_relaxed);
    if (!status) return prefetcher_->skipped(id, SkipReason::kFailed);
    const int64_t now = clock_.monotonic_ns();
    prefetcher_->loaded(id, size, now - started_ns, now);
  };
  LoadMemory memory;
  while (!make_jobs(object, 0, units, units, memory, waiter, /*urgent=*/false, jobs)) {
    if (get_load_memory(memory)) continue;
    ahead_in_flight_bytes_.fetch_sub(missing, std::memory_order_relaxed);
    drop_unused_file(object);
    prefetcher_->skipped(id, SkipReason::kNoRoom);
    forget_when_idle(object);
    return 0;
  }
  waiter->finish_one({});
  return missing;
}

void StoreImpl::prefetch_loop() {
  while (true) {
    // None while nobody reads: an idle mount is not woken.
    const std::optional<int64_t> deadline = prefetcher_->deadline();
    {
      std::unique_lock lock(prefetch_mutex_);
      const auto wanted = [&] { return stopping_ || prefetch_kicked_; };
      if (deadline)
        prefetch_ready_.wait_for(lock, std::chrono::nanoseconds(std::max<int64_t>(*deadline - clock_.monotonic_ns(), 0)), wanted);
      else
        prefetch_ready_.wait(lock, wanted);
      if (stopping_) return;
    }
    prefetch_step();
  }
}

void StoreImpl::forget_when_idle(const ObjectPtr& object) {
  std::unique_lock lock(names_mutex_);
  forget_if_idle(object);
}

}  // namespace kvcachefs

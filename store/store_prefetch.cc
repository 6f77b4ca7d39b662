// Carries out what is planned: whole bodies into RAM, neighbours on the volume in one read, as background I/O.
#include <sched.h>
#include <sys/resource.h>

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
// Given to the volume at a time. It has 8 MiB of such reads under way (on a network half its queue: 32 of 1 MiB); as much again
// lies ready, for while answers are given and more is prepared. The rest is queued here, where it can be put in another order
// or left out.
constexpr uint64_t kLocalUnderWayBytes = 16 * kMiB;
constexpr uint64_t kNetworkUnderWayBytes = 64 * kMiB;
constexpr int64_t kMemoryPauseNs = 20'000'000;  // before memory that was refused is asked for again

// What this thread holds back between hold_read_ahead() and resume_read_ahead().
struct HeldKick {
  const Store* store = nullptr;  // nullptr: nothing is held back
  bool due = false;
};
constinit thread_local HeldKick held_kick;

// What the kernel has read from storage for this thread: of what it is asked for, what its cache did not have.
uint64_t thread_input_bytes() {
  constexpr uint64_t kInputBlock = 512;
  rusage usage{};
  if (getrusage(RUSAGE_THREAD, &usage) != 0) return 0;
  return static_cast<uint64_t>(usage.ru_inblock) * kInputBlock;
}

}  // namespace

void StoreImpl::kick_prefetch() {
  if (held_kick.store == this) {
    held_kick.due = true;
    return;
  }
  wake_prefetcher();
}

// Or who helps, which looks by itself.
void StoreImpl::wake_prefetcher() {
  bool helped = false;
  {
    std::lock_guard lock(prefetch_mutex_);
    prefetch_kicked_ = true;
    helped = helped_;
  }
  if (helped)
    helper_due_ = true;
  else
    prefetch_ready_.notify_one();
}

void StoreImpl::hold_read_ahead() {
  held_kick = {.store = this};
  clock_.hold();
}

void StoreImpl::resume_read_ahead() {
  clock_.release();
  if (std::exchange(held_kick, {}).due) kick_prefetch();
}

void StoreImpl::HeldLoads::note(const ReadAheadQueue::Item& item) {
  if (jobs.empty())
    *this = {.jobs = {},
             .begun_ns = begun_ns,
             .run = item.load.run,
             .awaited = item.awaited,
             .urgent = item.awaited || item.load.priority == 0};
  mixed |= item.load.run != run;
}

uint64_t StoreImpl::HeldLoads::enough() const { return mixed ? kMixedBytes : urgent ? kFirstBytes : kOneReadBytes; }

// Of a body that is being read ahead: ends the planned load with what came of it, once all is there.
struct StoreImpl::AheadWaiter : LoadWaiter {
  ObjectPtr object;    // that the last of its reads goes into
  uint64_t bytes = 0;  // of them all. Both are set before the last read is counted
};

void StoreImpl::load_ahead(ReadAheadQueue::Item item, By by) {
  HeldLoads& held = *held_loads_;
  if (held.awaited != item.awaited) submit_held();
  held.note(item);
  if (held.begun_ns == 0) held.begun_ns = clock_.monotonic_ns();
  const size_t before = held.jobs.size();
  uint64_t bytes = 0;
  const BodyAhead outcome = prefetch_body(item, by, held.jobs, bytes);
  held.bytes += bytes;
  if (held.bytes > held.enough() && before > 0) {  // cut where the read would be cut: what does not fit begins the next
    std::vector<std::shared_ptr<LoadJob>> next(std::make_move_iterator(held.jobs.begin() + static_cast<ptrdiff_t>(before)),
                                               std::make_move_iterator(held.jobs.end()));
    held.jobs.resize(before);
    const int64_t begun_ns = held.begun_ns;
    submit_held();
    held.begun_ns = begun_ns;
    held.note(item);
    held.jobs = std::move(next);
    held.bytes = bytes;
  }
  if (held.bytes >= held.enough()) submit_held();
  if (held.jobs.empty()) held.begun_ns = 0;
  ahead_lacks_memory_ = outcome == BodyAhead::kNoMemory;
  if (outcome == BodyAhead::kDone) return;
  if (outcome == BodyAhead::kPart) item.awaited = false;  // of a large one: the rest as there is room, or when it is asked for
  {
    std::lock_guard lock(prefetch_mutex_);
    ahead_queue_.put_back(std::move(item));
    if (by == By::kThread || outcome == BodyAhead::kPart) return;  // where it finds no memory it waits, which the helper cannot
    for_thread_ = true;
  }
  prefetch_ready_.notify_one();
}

StoreImpl::AheadPiece StoreImpl::submit_held() {
  if (held_loads_->jobs.empty()) return AheadPiece::kNothing;
  submit_loads(std::exchange(*held_loads_, {}).jobs);
  return AheadPiece::kDone;
}

// The next that is queued, where there is room for it.
StoreImpl::AheadPiece StoreImpl::begin_queued(By by) {
  if (ahead_lacks_memory_) return AheadPiece::kNothing;
  std::optional<ReadAheadQueue::Item> item;
  {
    std::lock_guard lock(prefetch_mutex_);
    item = ahead_queue_.next(ahead_in_flight_bytes_.load(std::memory_order_relaxed), ahead_limit_bytes());
  }
  if (!item) return AheadPiece::kNothing;
  load_ahead(std::move(*item), by);
  return ahead_lacks_memory_ ? AheadPiece::kNothing : AheadPiece::kDone;
}

// Below what the volume has under way at a time it would be idle now and then; above, what somebody waits for waits longer.
uint64_t StoreImpl::ahead_limit_bytes() const {
  const uint64_t most = volume_->features().network ? kNetworkUnderWayBytes : kLocalUnderWayBytes;
  return std::min(most, pool_->limit_bytes() / 2);
}

// A few of what follows. Clients' lookups, opens and reads want the tracker's lock, which a plan holds while it looks that up.
StoreImpl::AheadPiece StoreImpl::plan_some() {
  if (plans_left_ == 0) return AheadPiece::kNothing;
  const Plan plan = accesses_->plan(clock_.monotonic_ns(), free_for_ahead());
  for (ObjectId id : plan.cancels) cancel_ahead(id);
  {
    std::lock_guard lock(prefetch_mutex_);
    for (const PlannedLoad& load : plan.loads) ahead_queue_.push(load);
  }
  for (ObjectId id : plan.again)
    if (ObjectPtr object = tree_->find(id)) file_mover_->move_soon(object);
  plans_left_ = plan.loads.empty() ? 0 : plans_left_ - std::min(plans_left_, plan.loads.size());
  return plan.loads.empty() && plan.cancels.empty() ? AheadPiece::kNothing : AheadPiece::kDone;
}

// prefetch_turn_ held. What somebody waits for is queued first, so before anything is planned.
StoreImpl::AheadPiece StoreImpl::prefetch_piece(By by) {
  if (begin_queued(by) == AheadPiece::kDone) return AheadPiece::kDone;
  if (plan_some() == AheadPiece::kDone) return AheadPiece::kDone;
  return submit_held();
}

// prefetch_turn_ held.
void StoreImpl::start_round() {
  {
    std::lock_guard lock(prefetch_mutex_);
    prefetch_kicked_ = false;
  }
  ahead_lacks_memory_ = false;
  plans_left_ = kMaxLoadsAtOnce;
}

bool StoreImpl::prefetch_step() {
  bool any = false;
  {
    std::lock_guard turn(prefetch_turn_);
    start_round();
  }
  for (bool goes_on = true, planned = false; goes_on;) {
    std::unique_lock turn(prefetch_turn_);
    const size_t plans_left = plans_left_;
    goes_on = take_in_arrived() == AheadPiece::kDone || prefetch_piece(By::kThread) == AheadPiece::kDone;
    const bool plans = plans_left_ < plans_left, in_hand = !held_loads_->jobs.empty();
    turn.unlock();
    any |= goes_on;
    // Between plans, not between bodies: where others compute, each time costs milliseconds.
    if (goes_on && plans && std::exchange(planned, true) && !in_hand) ::sched_yield();  // readers first, also on this processor; none waits for what is in hand
  }
  return any;
}

// Clean bodies can make room; dirty ones cannot, nor what clients have mapped, nor what is being read
// ahead or queued for it, for readers that may have gone as well.
uint64_t StoreImpl::free_for_ahead() {
  uint64_t held = pool_->dirty_bytes();
  held += files_->lingering_bytes() + ahead_in_flight_bytes_.load(std::memory_order_relaxed);
  {
    std::lock_guard lock(prefetch_mutex_);
    held += ahead_queue_.bytes();
  }
  return pool_->limit_bytes() - std::min(pool_->limit_bytes(), held);
}

// What is under way of it arrives, and counts then.
void StoreImpl::cancel_ahead(ObjectId id) {
  {
    std::lock_guard lock(prefetch_mutex_);
    if (!ahead_queue_.remove(id)) return;
  }
  end_ahead(id, SkipReason::kCancelled);
}

// No more of it is read ahead.
void StoreImpl::end_ahead(ObjectId id, SkipReason reason) {
  auto begun = begun_ahead_.extract(id);
  if (begun.empty()) return accesses_->skipped(id, reason);
  begun.mapped().waiter->finish_one({});
}

// Somebody reads a body that may be queued. His own read does not wait for the queue; what follows is his next.
void StoreImpl::promote_ahead(ObjectId id) {
  {
    std::lock_guard lock(prefetch_mutex_);
    if (!ahead_queue_.promote(id)) return;
  }
  wake_prefetcher();
}

// Some of what was under way is there, or failed. More is begun when a quarter is: not for each read by itself.
void StoreImpl::ahead_arrived(uint64_t bytes) {
  const uint64_t before = ahead_in_flight_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  const uint64_t limit = ahead_limit_bytes(), refill = limit - limit / 4;
  if (before <= refill || before - bytes > refill) return;
  {
    std::lock_guard lock(prefetch_mutex_);
    if (ahead_queue_.empty()) return;
  }
  wake_prefetcher();
}

// Of a body that will be passed through: the kernel reads it, bytes of it in RAM here would be read twice. It is read ahead into
// the page cache, unless clients read with O_DIRECT. For those it has been opened, which reads its inode.
std::optional<SkipReason> StoreImpl::leave_to_kernel(ObjectId id, uint64_t size_bytes) {
  if (!passes_through_ || came_lately(read_here_ns_)) return {};
  FilePtr file = passable_file(id);
  if (!file) return {};
  if (came_lately(passed_direct_ns_)) return SkipReason::kOnlyOpened;
  kernel_ahead_.push({id, std::move(file), size_bytes});
  return SkipReason::kLeftToKernel;
}

// A reader of a kind: with O_DIRECT, to a body that is passed through, he would wait for the device twice; by a descriptor that
// can write as well he reads here, past the page cache.
bool StoreImpl::came_lately(const std::atomic<int64_t>& at_ns) const {
  constexpr int64_t kRememberedNs = 10'000'000'000;
  const int64_t came_ns = at_ns.load(std::memory_order_relaxed);
  return came_ns != 0 && clock_.monotonic_ns() - came_ns <= kRememberedNs;
}

// Several threads at it, each at a body of its own: one has a request or two at a time under way, which does not fill the device
// (cold 9 MiB, one reader: 1.13 GiB/s with one thread, 1.36 with two, 1.44 with four). Its reader waits meanwhile,
// up to 64 MiB (await_loads()): beside it he would fill the cache in small pages (0.80 to 1.02 GiB/s).
void StoreImpl::kernel_ahead_loop() {
  while (auto work = kernel_ahead_.next()) {
    if (passes_extents_ && !came_lately(passed_direct_ns_)) {  // since it was queued
      kernel_reads(work->size_bytes);
      const uint64_t before = thread_input_bytes();
      work->file->will_need(0, work->size_bytes);
      counters_.kernel_ahead_bytes.fetch_add(thread_input_bytes() - before, std::memory_order_relaxed);
    }
    kernel_ahead_.finish(work->id);
  }
}

// What of a body, from unit `first` on, is to be read ahead now.
struct StoreImpl::Lacking {
  uint64_t size_bytes = 0;
  size_t units = 0;            // of the body; 0: it cannot be read ahead
  size_t last = 0;             // up to here now
  uint64_t now_bytes = 0;      // of memory, for [first, last)
  uint64_t all_bytes = 0;      // of memory, for all of the body
  bool solo = false;           // it lies in a file of its own
  ExtentId pack;               // the one it lies in; not valid: it lies elsewhere
};

StoreImpl::Lacking StoreImpl::lacking(Object& object, size_t first, uint64_t room_bytes) {
  Lacking lacks;
  const auto lock = object.lock();
  lacks.size_bytes = object.size_bytes;
  lacks.solo = object.base.place.kind == PlaceKind::kSolo;
  if (object.base.place.kind == PlaceKind::kPacked && !object.spill) lacks.pack = object.base.place.extent;
  const bool readable = object.is_regular() && !object.raw && !object.base.quarantined && object.base.place.kind != PlaceKind::kRaw;
  if (readable && object.size_bytes <= kMaxBodyBytes) lacks.units = div_ceil(object.size_bytes, kUnitBytes);
  lacks.last = lacks.units;
  for (size_t index = first; index < lacks.units; ++index) {
    if (!object.needs_load(index) || object.loading.contains(index)) continue;
    const uint64_t bytes = MemoryPool::block_bytes(std::min(kUnitBytes, object.size_bytes - index * kUnitBytes));
    lacks.all_bytes += bytes;
    if (lacks.last == lacks.units && lacks.now_bytes > 0 && lacks.now_bytes + bytes > room_bytes) lacks.last = index;
    if (lacks.last == lacks.units) lacks.now_bytes += bytes;
  }
  return lacks;
}

// Adds the reads that a body takes, as far as there is room for them now; ends the planned load itself when it takes none.
StoreImpl::BodyAhead StoreImpl::prefetch_body(const ReadAheadQueue::Item& item, By by,
                                              std::vector<std::shared_ptr<LoadJob>>& jobs, uint64_t& bytes) {
  const ObjectId id = item.load.id;
  if (by == By::kHelper && item.load.bytes > kHelpedBytes) return BodyAhead::kNotHere;
  auto got = tree_->get(id);
  if (!got) {
    end_ahead(id, got.error().code == Code::kNotFound ? SkipReason::kGone : SkipReason::kFailed);
    return BodyAhead::kDone;
  }
  const ObjectPtr object = *got;
  const auto begun = begun_ahead_.find(id);
  const bool is_begun = begun != begun_ahead_.end();
  const size_t first = is_begun ? begun->second.next_unit : 0;
  const uint64_t limit = ahead_limit_bytes(), under_way = ahead_in_flight_bytes_.load(std::memory_order_relaxed);
  const Lacking lacks = lacking(*object, first, std::max(kOneReadBytes, limit - std::min(limit, under_way)));
  const FilePtr file = lacks.pack.valid() ? extents_->cached(lacks.pack) : nullptr;
  if (by == By::kHelper && lacks.all_bytes > 0 && (!file || lacks.all_bytes > kHelpedBytes)) return BodyAhead::kNotHere;
  std::optional<SkipReason> end;
  if (lacks.all_bytes == 0)
    end = lacks.units == 0 ? SkipReason::kFailed : SkipReason::kResident;
  else if (!is_begun && lacks.solo)
    end = leave_to_kernel(id, lacks.size_bytes);
  if (!end && lacks.all_bytes > pool_->limit_bytes() / 2) end = SkipReason::kNoRoom;  // it would push itself out
  if (end) {
    end_ahead(id, *end);
    if (lacks.all_bytes == 0) file_mover_->move_soon(object);
    tree_->forget_when_idle(object);
    return BodyAhead::kDone;
  }
  auto waiter = is_begun ? begun->second.waiter : make_ahead_waiter(id, held_loads_->begun_ns);
  LoadMemory memory;
  if (!item.awaited) memory.who = MemoryFor::kReadAhead;
  const size_t before = jobs.size();
  while (!make_jobs(object, first, lacks.last, lacks.last, memory, waiter, item.awaited, jobs)) {
    if (get_load_memory(memory)) continue;
    drop_unused_file(object);
    tree_->forget_when_idle(object);
    return BodyAhead::kNoMemory;
  }
  waiter->object = object;
  for (size_t i = before; i < jobs.size(); ++i) {
    if (jobs[i]->place.kind == PlaceKind::kPacked && jobs[i]->place.extent == lacks.pack) jobs[i]->file = file;
    jobs[i]->ahead = AheadBytes(*this, jobs[i]->memory_bytes());
    bytes += jobs[i]->ahead.bytes();
    for (uint32_t length : jobs[i]->lengths) waiter->bytes += length;
  }
  if (lacks.last < lacks.units) {
    begun_ahead_.insert_or_assign(id, BegunAhead{std::move(waiter), lacks.last});
    return BodyAhead::kPart;
  }
  begun_ahead_.erase(id);
  waiter->finish_one({});
  return BodyAhead::kDone;
}

// From now on its reads count as under way: how long it was queued says nothing of the volume, and windows that counted it would
// feed on themselves.
std::shared_ptr<StoreImpl::AheadWaiter> StoreImpl::make_ahead_waiter(ObjectId id, int64_t begun_ns) {
  auto waiter = std::make_shared<AheadWaiter>();
  waiter->done = [this, id, begun_ns, ahead = waiter.get()](Status status) {
    if (!status) return accesses_->skipped(id, SkipReason::kFailed);
    Arrivals alone(*this, clock_.monotonic_ns());
    Arrivals& all = alone.outer != nullptr ? *alone.outer : alone;
    all.bodies.push_back({id, ahead->bytes, begun_ns});
    all.objects.push_back(std::move(ahead->object));
  };
  return waiter;
}

namespace {
constinit thread_local void* innermost_arrivals = nullptr;
}  // namespace

StoreImpl::Arrivals::Arrivals(StoreImpl& of, int64_t at_ns)
    : store(of), arrived_ns(at_ns), outer(static_cast<Arrivals*>(innermost_arrivals)) {
  if (outer != nullptr && &outer->store != &store) outer = nullptr;
  shadowed = std::exchange(innermost_arrivals, this);
}

StoreImpl::Arrivals::~Arrivals() {
  innermost_arrivals = shadowed;
  if (bodies.empty()) return;
  store.accesses_->loaded(bodies, arrived_ns);
  for (const ObjectPtr& object : objects) {
    auto lock = object->lock();
    const bool left = !object->any_in_ram();
    lock.unlock();
    if (left) store.accesses_->left_ram(object->id);  // before it counted as loaded
  }
}

void StoreImpl::prefetch_loop() {
  while (true) {
    // None while nobody reads: an idle mount is not woken.
    std::optional<int64_t> deadline = accesses_->deadline();
    {
      std::lock_guard turn(prefetch_turn_);
      if (ahead_lacks_memory_)  // nobody tells of bodies that became clean
        deadline = std::min(deadline.value_or(INT64_MAX), clock_.monotonic_ns() + kMemoryPauseNs);
    }
    {
      std::unique_lock lock(prefetch_mutex_);
      const auto wanted = [&] { return stopping_ || for_thread_ || (!helped_ && (prefetch_kicked_ || !arrived_.empty())); };
      if (deadline)
        prefetch_ready_.wait_for(lock, std::chrono::nanoseconds(std::max<int64_t>(*deadline - clock_.monotonic_ns(), 0)), wanted);
      else
        prefetch_ready_.wait(lock, wanted);
      if (stopping_) return;
      for_thread_ = false;
      thread_works_ = true;
    }
    prefetch_step();
    std::lock_guard lock(prefetch_mutex_);
    thread_works_ = false;
    helper_due_ = true;  // what came meanwhile
  }
}

// For a thread of the volume, which must not wait for the names.
void StoreImpl::forget_later(const ObjectPtr& object) {
  keeper_work_.add([this, object] { tree_->forget_when_idle(object); });
}

}  // namespace kvcachefs

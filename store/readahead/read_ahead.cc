#include "store/readahead/read_ahead.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <mutex>
#include <utility>

#include "store/base/thread.h"
#include "store/readahead/arrivals.h"

namespace kvcachefs {

namespace {
constexpr size_t kMaxLoadsAtOnce = 256;
// How much is held back, so that neighbours become large reads, and is then handed to the volume together. Not more: the first read
// waits until all have their memory, and a page that was never used takes milliseconds to get on some machines. For one chain it is as
// much as becomes one read; less if its reader is right behind it. More if chains come mixed, as each has a smaller part of it.
constexpr uint64_t kFirstBytes = 256 * kKiB;
constexpr uint64_t kOneReadBytes = kMiB;
constexpr uint64_t kMixedBytes = 4 * kMiB;
constexpr uint64_t kMaxBodyBytes = 256 * kMiB;  // larger ones are read ahead within the body only
// Bytes of reads given to the volume at a time. It has 8 MiB of such reads under way (on a network half its queue: 32 of 1 MiB). As
// much again lies ready, for the time in which answers are given and more is prepared. The rest is queued here, where it can be
// reordered or dropped.
constexpr uint64_t kLocalUnderWayBytes = 16 * kMiB;
constexpr uint64_t kNetworkUnderWayBytes = 64 * kMiB;
constexpr int64_t kMemoryPauseNs = 20'000'000;  // before memory that was refused is asked for again
constexpr int kKernelThreads = 4;  // threads that read files into the page cache; mostly they wait for the volume

// The kick that this thread holds back between hold() and resume().
struct HeldKick {
  const ReadAhead* of = nullptr;  // nullptr: nothing is held back
  bool due = false;
};
constinit thread_local HeldKick held_kick;

// Bytes that the kernel has read from storage for this thread, because the page cache did not have them.
uint64_t thread_input_bytes() {
  constexpr uint64_t kInputBlock = 512;
  rusage usage{};
  if (getrusage(RUSAGE_THREAD, &usage) != 0) return 0;
  return static_cast<uint64_t>(usage.ru_inblock) * kInputBlock;
}

}  // namespace

ReadAhead::ReadAhead(Parts parts) : parts_(parts) {
  parts_.loader.set_arrivals(*this);
}

ReadAhead::~ReadAhead() {
  stop();
  give_up();
}

void ReadAhead::give_up() {
  arrived_.clear();
  held_ = {};
}

// --- threads ---

Status ReadAhead::start() {
  KVC_ASSIGN(threads_.emplace_back(), start_thread("kvc-prefetcher", [this] { run(); }));
  for (int i = 0; i < kKernelThreads; ++i) {
    KVC_ASSIGN(threads_.emplace_back(), start_thread("kvc-kernel", [this] { run_kernel(); }));
  }
  return {};
}

void ReadAhead::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    ready_.notify_all();
  }
  kernel_.stop();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void ReadAhead::finish() {
  {
    std::lock_guard lock(mutex_);
    helped_ = false;
  }
  helper_there_ = false;
  std::lock_guard turn(turn_);
  while (take_in_arrived() == Piece::kDone) {
  }
}

void ReadAhead::run() {
  while (true) {
    // No value while no client reads: an idle mount is not woken.
    std::optional<int64_t> deadline = parts_.accesses.deadline();
    {
      std::lock_guard turn(turn_);
      if (lacks_memory_)  // no notice comes when bodies become clean
        deadline = std::min(deadline.value_or(INT64_MAX), parts_.clock.monotonic_ns() + kMemoryPauseNs);
    }
    {
      std::unique_lock lock(mutex_);
      const auto wanted = [&] { return stopping_ || for_thread_ || (!helped_ && (kicked_ || !arrived_.empty())); };
      if (deadline)
        ready_.wait_for(lock, std::chrono::nanoseconds(std::max<int64_t>(*deadline - parts_.clock.monotonic_ns(), 0)), wanted);
      else
        ready_.wait(lock, wanted);
      if (stopping_) return;
      for_thread_ = false;
      thread_works_ = true;
    }
    step();
    std::lock_guard lock(mutex_);
    thread_works_ = false;
    helper_due_ = true;  // for work that came meanwhile
  }
}

// Several threads run this, each for a body of its own: one thread has a request or two at a time under way, which does not fill the
// device (cold 9 MiB, one reader: 1.13 GiB/s with one thread, 1.36 with two, 1.44 with four). The reader of the body waits meanwhile,
// up to 64 MiB (KernelAhead::await()): beside it the reader would fill the cache in small pages (0.80 to 1.02 GiB/s).
void ReadAhead::run_kernel() {
  while (auto work = kernel_.next()) {
    if (parts_.backing.passes_extents() && !parts_.backing.passed_direct_lately()) {  // may have changed since it was queued
      parts_.backing.expect_kernel_reads(work->size_bytes);
      const uint64_t before = thread_input_bytes();
      work->file->will_need(0, work->size_bytes);
      parts_.counters.kernel_ahead_bytes.fetch_add(thread_input_bytes() - before, std::memory_order_relaxed);
    }
    kernel_.finish(work->id);
  }
}

// --- calls by requests ---

void ReadAhead::kick() {
  if (held_kick.of == this) {
    held_kick.due = true;
    return;
  }
  wake();
}

// Wakes the prefetcher, unless a helper is there, which looks by itself.
void ReadAhead::wake() {
  bool helped = false;
  {
    std::lock_guard lock(mutex_);
    kicked_ = true;
    helped = helped_;
  }
  if (helped)
    helper_due_ = true;
  else
    ready_.notify_one();
}

void ReadAhead::hold() {
  held_kick.of = this;
  parts_.clock.hold();
  parts_.accesses.hold();
}

void ReadAhead::release() {
  held_kick.of = nullptr;
  parts_.clock.release();
  parts_.accesses.release();
}

void ReadAhead::resume() {
  parts_.clock.release();
  parts_.accesses.settle();
  if (std::exchange(held_kick, {}).due) kick();
}

void ReadAhead::promote(ObjectId id) {
  {
    std::lock_guard lock(mutex_);
    if (!queue_.promote(id)) return;
  }
  wake();
}

void ReadAhead::note_demand(ObjectId id) {
  promote(id);
  resume();
}

void ReadAhead::hurry_into_file(const ObjectPtr& object) {
  {
    std::lock_guard lock(mutex_);
    if (!queue_.contains(object->id)) return;
  }
  if (parts_.backing.extent_of(object->id)) return;  // the kernel will read it
  size_t units = 0;
  {
    const auto lock = object->lock();
    if (!parts_.policy.takes(object->size_bytes) || object->write_handles > 0) return;
    units = div_ceil(object->size_bytes, kUnitBytes);
  }
  promote(object->id);
  auto nobody = std::make_shared<LoadWaiter>();
  nobody->done = [](const Status&) {};
  // If there is no memory for all of it, its reader asks for the units that it needs.
  MemoryWaiters::Try now{.may_take = parts_.cache.may_take(MemoryFor::kReader)};
  if (parts_.loader.start(object, {0, units, units}, MemoryFor::kReader, nobody, nullptr, now)) nobody->finish_one({});
}

// --- choosing the next body ---

// With less than the volume has under way at a time, it would be idle now and then; with more, requests with a waiting client wait longer.
uint64_t ReadAhead::limit_bytes() const {
  return std::min(parts_.on_network ? kNetworkUnderWayBytes : kLocalUnderWayBytes, parts_.pool.limit_bytes() / 2);
}

// Memory that reading ahead can have. Clean bodies can make room. Dirty ones cannot, nor memory that clients have mapped, nor bodies being
// read ahead or queued, though their readers may have gone.
uint64_t ReadAhead::free_bytes() {
  uint64_t held = parts_.pool.dirty_bytes();
  held += parts_.files.lingering_bytes() + in_flight_bytes_.load(std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    held += queue_.bytes();
  }
  return parts_.pool.limit_bytes() - std::min(parts_.pool.limit_bytes(), held);
}

// Some reads under way have arrived or failed. More are begun only when a quarter has, not for each read by itself.
void ReadAhead::ahead_ended(uint64_t bytes) {
  const uint64_t before = in_flight_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  const uint64_t limit = limit_bytes(), refill = limit - limit / 4;
  if (before <= refill || before - bytes > refill) return;
  {
    std::lock_guard lock(mutex_);
    if (queue_.empty()) return;
  }
  wake();
}

void ReadAhead::start_round() {
  {
    std::lock_guard lock(mutex_);
    kicked_ = false;
  }
  lacks_memory_ = false;
  plans_left_ = kMaxLoadsAtOnce;
}

bool ReadAhead::step() {
  bool any = false;
  {
    std::lock_guard turn(turn_);
    start_round();
  }
  for (bool goes_on = true, planned = false; goes_on;) {
    std::unique_lock turn(turn_);
    const size_t plans_left = plans_left_;
    goes_on = take_in_arrived() == Piece::kDone || piece(By::kThread) == Piece::kDone;
    const bool plans = plans_left_ < plans_left, in_hand = !held_.jobs.empty();
    turn.unlock();
    any |= goes_on;
    // Yields to readers on this processor too. Only between plans, not between bodies: where other threads compute, each yield costs
    // milliseconds. Not while reads are held back.
    if (goes_on && plans && std::exchange(planned, true) && !in_hand) ::sched_yield();
  }
  return any;
}

// Queued bodies go before new plans: bodies with a waiting reader are in the queue.
ReadAhead::Piece ReadAhead::piece(By by) {
  if (begin_queued(by) == Piece::kDone) return Piece::kDone;
  if (plan_some() == Piece::kDone) return Piece::kDone;
  return submit_held();
}

// Begins the next queued body, if there is room for it.
ReadAhead::Piece ReadAhead::begin_queued(By by) {
  if (lacks_memory_) return Piece::kNothing;
  std::optional<ReadAheadQueue::Item> item;
  {
    std::lock_guard lock(mutex_);
    item = queue_.next(in_flight_bytes_.load(std::memory_order_relaxed), limit_bytes());
  }
  if (!item) return Piece::kNothing;
  load(std::move(*item), by);
  return lacks_memory_ ? Piece::kNothing : Piece::kDone;
}

// Plans a few bodies. Not more: a plan holds the tracker's lock while it looks them up, and clients' lookups, opens and reads want that lock.
ReadAhead::Piece ReadAhead::plan_some() {
  if (plans_left_ == 0) return Piece::kNothing;
  const Plan plan = parts_.accesses.plan(parts_.clock.monotonic_ns(), free_bytes());
  for (ObjectId id : plan.cancels) cancel(id);
  {
    std::lock_guard lock(mutex_);
    for (const PlannedLoad& load : plan.loads) queue_.push(load);
  }
  for (ObjectId id : plan.again)
    if (ObjectPtr object = parts_.tree.find(id)) parts_.mover.move_soon(object);
  plans_left_ = plan.loads.empty() ? 0 : plans_left_ - std::min(plans_left_, plan.loads.size());
  return plan.loads.empty() && plan.cancels.empty() ? Piece::kNothing : Piece::kDone;
}

// Takes a body out of the queue. Its reads that are under way still arrive, and count then.
void ReadAhead::cancel(ObjectId id) {
  {
    std::lock_guard lock(mutex_);
    if (!queue_.remove(id)) return;
  }
  end(id, SkipReason::kCancelled);
}

// --- reads that go together ---

void ReadAhead::Held::note(const ReadAheadQueue::Item& item) {
  if (jobs.empty())
    *this = {.jobs = {},
             .begun_ns = begun_ns,
             .run = item.load.run,
             .awaited = item.awaited,
             .urgent = item.awaited || item.load.priority == 0};
  mixed |= item.load.run != run;
}

uint64_t ReadAhead::Held::enough() const { return mixed ? kMixedBytes : urgent ? kFirstBytes : kOneReadBytes; }

ReadAhead::Piece ReadAhead::submit_held() {
  if (held_.jobs.empty()) return Piece::kNothing;
  parts_.loader.submit(std::exchange(held_, {}).jobs);
  return Piece::kDone;
}

void ReadAhead::load(ReadAheadQueue::Item item, By by) {
  if (held_.awaited != item.awaited) submit_held();
  held_.note(item);
  if (held_.begun_ns == 0) held_.begun_ns = parts_.clock.monotonic_ns();
  const size_t before = held_.jobs.size();
  uint64_t bytes = 0;
  const Body outcome = read_body(item, by, held_.jobs, bytes);
  held_.bytes += bytes;
  if (held_.bytes > held_.enough() && before > 0) {  // cuts where the read would be cut: jobs that do not fit begin the next one
    LoadJobs next(std::make_move_iterator(held_.jobs.begin() + static_cast<ptrdiff_t>(before)),
                  std::make_move_iterator(held_.jobs.end()));
    held_.jobs.resize(before);
    const int64_t begun_ns = held_.begun_ns;
    submit_held();
    held_.begun_ns = begun_ns;
    held_.note(item);
    held_.jobs = std::move(next);
    held_.bytes = bytes;
  }
  if (held_.bytes >= held_.enough()) submit_held();
  if (held_.jobs.empty()) held_.begun_ns = 0;
  lacks_memory_ = outcome == Body::kNoMemory;
  if (outcome == Body::kDone) return;
  if (outcome == Body::kPart) item.awaited = false;  // the rest of a large body comes as there is room, or on demand
  {
    std::lock_guard lock(mutex_);
    queue_.put_back(std::move(item));
    if (by == By::kThread || outcome == Body::kPart) return;  // the prefetcher waits for memory, which a helper cannot
    for_thread_ = true;
  }
  ready_.notify_one();
}

// --- one body ---

// Waits for the reads of one body that is read ahead; reports the result of the planned load once all have ended.
struct ReadAhead::Waiter : LoadWaiter {
  ObjectPtr object;    // the object that the last of its reads goes into
  uint64_t bytes = 0;  // of all its reads. Both are set before the last read is counted
};

// The time of a load counts from here: the time in the queue tells nothing about the volume, and windows that counted it would grow
// by their own length.
std::shared_ptr<ReadAhead::Waiter> ReadAhead::make_waiter(ObjectId id, int64_t begun_ns) {
  auto waiter = std::make_shared<Waiter>();
  waiter->done = [this, id, begun_ns, ahead = waiter.get()](Status status) {
    if (!status) return parts_.accesses.skipped(id, SkipReason::kFailed);
    Arrivals arrivals(parts_.accesses, parts_.clock.monotonic_ns());
    arrivals.add({id, ahead->bytes, begun_ns}, std::move(ahead->object));
  };
  return waiter;
}

// Ends the planned load of a body of which no more is read ahead.
void ReadAhead::end(ObjectId id, SkipReason reason) {
  auto begun = begun_.extract(id);
  if (begun.empty()) return parts_.accesses.skipped(id, reason);
  begun.mapped().waiter->finish_one({});
}

// If the body will be passed through, the kernel reads it: bytes in RAM here would be read twice. So it is read ahead into the page
// cache, unless clients read with O_DIRECT. For those it has only been opened here, which reads its inode.
std::optional<SkipReason> ReadAhead::leave_to_kernel(ObjectId id, uint64_t size_bytes) {
  if (!parts_.backing.passes_through() || parts_.backing.read_here_lately()) return {};
  FilePtr file = parts_.backing.extent_of(id);
  if (!file) return {};
  if (parts_.backing.passed_direct_lately()) return SkipReason::kOnlyOpened;
  kernel_.push({id, std::move(file), size_bytes});
  return SkipReason::kLeftToKernel;
}

// The part of a body, from unit `first` on, that is to be read ahead now.
struct ReadAhead::Lacking {
  uint64_t size_bytes = 0;
  size_t units = 0;            // of the body; 0: it cannot be read ahead
  size_t last = 0;             // end of the units to be read now
  uint64_t now_bytes = 0;      // memory for [first, last)
  uint64_t all_bytes = 0;      // memory for all of the body
  bool solo = false;           // it lies in a file of its own
  ExtentId pack;               // the pack it lies in; not valid: it lies elsewhere
};

ReadAhead::Lacking ReadAhead::lacking(Object& object, size_t first, uint64_t room_bytes) {
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

// Adds the reads that a body takes, as far as there is room for them now. If it takes none, ends the planned load.
ReadAhead::Body ReadAhead::read_body(const ReadAheadQueue::Item& item, By by, LoadJobs& jobs, uint64_t& bytes) {
  const ObjectId id = item.load.id;
  if (by == By::kHelper && item.load.bytes > kHelpedBytes) return Body::kNotHere;
  auto got = parts_.tree.get(id);
  if (!got) {
    end(id, got.error().code == Code::kNotFound ? SkipReason::kGone : SkipReason::kFailed);
    return Body::kDone;
  }
  const ObjectPtr object = *got;
  const auto begun = begun_.find(id);
  const bool is_begun = begun != begun_.end();
  const size_t first = is_begun ? begun->second.next_unit : 0;
  const uint64_t limit = limit_bytes(), under_way = in_flight_bytes_.load(std::memory_order_relaxed);
  const Lacking lacks = lacking(*object, first, std::max(kOneReadBytes, limit - std::min(limit, under_way)));
  const FilePtr file = lacks.pack.valid() ? parts_.extents.cached(lacks.pack) : nullptr;
  if (by == By::kHelper && lacks.all_bytes > 0 && (!file || lacks.all_bytes > kHelpedBytes)) return Body::kNotHere;
  std::optional<SkipReason> reason;
  if (lacks.all_bytes == 0)
    reason = lacks.units == 0 ? SkipReason::kFailed : SkipReason::kResident;
  else if (!is_begun && lacks.solo)
    reason = leave_to_kernel(id, lacks.size_bytes);
  if (!reason && lacks.all_bytes > parts_.pool.limit_bytes() / 2) reason = SkipReason::kNoRoom;  // it would evict its own units
  if (reason) {
    end(id, *reason);
    if (lacks.all_bytes == 0) parts_.mover.move_soon(object);
    parts_.tree.forget_when_idle(object);
    return Body::kDone;
  }
  auto waiter = is_begun ? begun->second.waiter : make_waiter(id, held_.begun_ns);
  LoadMemory memory;
  if (!item.awaited) memory.who = MemoryFor::kReadAhead;
  const size_t before = jobs.size();
  while (!parts_.loader.plan(object, {first, lacks.last, lacks.last}, memory, waiter, item.awaited, jobs)) {
    if (parts_.loader.get_memory(memory)) continue;
    drop_unused_file(*object);
    parts_.tree.forget_when_idle(object);
    return Body::kNoMemory;
  }
  waiter->object = object;
  for (size_t i = before; i < jobs.size(); ++i) {
    if (jobs[i]->place.kind == PlaceKind::kPacked && jobs[i]->place.extent == lacks.pack) jobs[i]->file = file;
    const uint64_t of_job = std::max(jobs[i]->memory_bytes(), jobs[i]->place.kind == PlaceKind::kSolo ? limit / most_files_ : 0);
    in_flight_bytes_.fetch_add(of_job, std::memory_order_relaxed);
    jobs[i]->ahead = AheadBytes(*this, of_job);
    bytes += of_job;
    for (uint32_t length : jobs[i]->lengths) waiter->bytes += length;
  }
  if (lacks.last < lacks.units) {
    begun_.insert_or_assign(id, Begun{std::move(waiter), lacks.last});
    return Body::kPart;
  }
  begun_.erase(id);
  waiter->finish_one({});
  return Body::kDone;
}

}  // namespace kvcachefs

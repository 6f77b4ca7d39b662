// The io_uring engine. One thread owns the ring: it alone submits and reaps, so the ring needs no lock, requests
// do not die with the thread that submitted them, and completions never wait for a thread that sleeps elsewhere.
// Other threads append requests to a list and wake the engine's thread through an eventfd that the ring itself reads. One system
// call hands all requests of the list, and all continuations, to the kernel; it is also the wait when no answers are
// due.
#include <liburing.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "store/base/log.h"
#include "store/base/mutex.h"
#include "store/base/thread.h"
#include "store/base/unique_fd.h"
#include "store/volume/io_engine.h"
#include "store/volume/request_queue.h"
#include "store/volume/transfer.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kWakeUp = ~uint64_t{0};  // user_data of the eventfd read; other values are slot indices
constexpr unsigned kMaxAgain = 100;         // EAGAINs for one request before it counts as failed
constexpr size_t kReapBatch = 32;

// A request in flight. It has at most one entry in the ring at any time.
struct Slot {
  QueuedRequest queued;
  std::optional<Transfer> transfer;
  unsigned again = 0;
};

class UringEngine final : public IoEngine {
 public:
  UringEngine(unsigned queue_depth, uint64_t max_background_read_bytes)
      : queue_(std::max(1u, queue_depth / 2), max_background_read_bytes),
        slots_(queue_depth),
        wake_fd_(::eventfd(0, EFD_CLOEXEC)) {
    for (unsigned i = queue_depth; i > 0; --i) free_slots_.push_back(i - 1);
  }

  // Starts the thread. The thread sets the ring up, because the kernel ties the ring to the thread that does so.
  Status start() {
    if (!wake_fd_.valid()) return fail_errno(errno, "eventfd");
    std::promise<Status> ready;
    auto outcome = ready.get_future();
    KVC_ASSIGN(thread_, start_thread("kvc-io", [this, promise = std::move(ready)]() mutable {
                 auto status = set_up_ring();
                 const bool ok = status.has_value();
                 promise.set_value(std::move(status));
                 if (ok) run();
               }));
    return outcome.get();
  }

  ~UringEngine() override {
    counter_.wait_for_all();
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_up();
    thread_.join();
  }

  void submit(std::vector<IoRequest> requests) override {
    if (requests.empty()) return;
    const uint64_t generation = counter_.begin(requests.size());
    bool first = false;
    {
      const std::lock_guard lock(mutex_);
      first = incoming_.empty();  // else a wake-up is on its way already
      for (auto& request : requests) incoming_.push_back({std::move(request), generation});
    }
    // No wake-up from a `done`: the engine's thread looks into the list before it sleeps.
    if (first && std::this_thread::get_id() != thread_.get_id()) wake_up();
  }

  void drain() override { counter_.wait(); }

 private:
  struct Finished {
    QueuedRequest queued;
    Result<size_t> result;
  };

  Status set_up_ring();
  void run();
  void take_incoming();
  void fill_ring();
  void start_slot(unsigned index, QueuedRequest queued);
  void issue(unsigned index);
  void issue_wake_read();
  void enter_kernel(unsigned wait_for);
  bool reap();
  void complete(unsigned index, int result);
  void finish(unsigned index, Result<size_t> result);
  bool answers_are_due() const { return !finished_urgent_.empty() || !finished_background_.empty(); }
  void offer_processor();
  void answer_one();
  void wake_up() {
    const uint64_t one = 1;
    (void)retry_interrupted([&] { return ::write(wake_fd_.get(), &one, sizeof(one)); });
  }

  RequestCounter counter_;
  InnerMutex mutex_;  // guards the next two
  std::vector<QueuedRequest> incoming_;
  bool stopping_ = false;

  // Only the engine's thread touches these.
  io_uring ring_{};
  RequestQueue queue_;
  std::vector<Slot> slots_;
  std::vector<unsigned> free_slots_;
  uint64_t wake_count_ = 0;
  std::deque<Finished> finished_urgent_;  // completed, `done` not called yet
  std::deque<Finished> finished_background_;
  bool background_is_next_ = false;  // to be answered next, if both wait
  bool stop_seen_ = false;
  bool failing_ = false;

  UniqueFd wake_fd_;
  std::thread thread_;
};

Status UringEngine::set_up_ring() {
  // Each slot has at most one entry, and one more is for the wake-up: entries never run out.
  const auto entries = static_cast<unsigned>(slots_.size()) + 1;
  int error = -EINVAL;
#ifdef IORING_SETUP_DEFER_TASKRUN
  // Linux >= 6.1: the kernel processes completions when this thread asks for them, and does not interrupt it for that.
  // TASKRUN_FLAG tells liburing when a look at the completions must do that.
  error = io_uring_queue_init(
      entries, &ring_, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG);
#endif
  if (error == -EINVAL) error = io_uring_queue_init(entries, &ring_, 0);
  if (error < 0) return fail(Code::kUnsupported, std::string("io_uring_setup: ") + std::strerror(-error));
  io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
  const auto supports = [&](int operation) { return io_uring_opcode_supported(probe, operation) != 0; };
  const bool enough =
      probe != nullptr && supports(IORING_OP_READV) && supports(IORING_OP_WRITEV) && supports(IORING_OP_READ);
  if (probe != nullptr) io_uring_free_probe(probe);
  if (enough) return {};
  io_uring_queue_exit(&ring_);
  return fail(Code::kUnsupported, "io_uring without READV, WRITEV and READ");
}

// Answers take time (checking a megabyte takes 100 us): between any two of them the loop reaps new completions and starts what
// may start, so that the volume is not idle meanwhile. When answers were given in batches, 1 MiB reads with 8
// in flight reached 3.3 GiB/s; this way they reach 4.4. For the same reason requests that completions allow to start are started
// before the first of these completions is answered: a device behind a throttle completes everything it has at once, and without
// this was idle for 0.4 ms in 6.
void UringEngine::run() {
  issue_wake_read();
  bool answers_are_next = true;
  while (true) {
    take_incoming();
    fill_ring();
    if (stop_seen_ && !answers_are_due()) break;
    enter_kernel(answers_are_due() ? 0 : 1);
    answers_are_next = !reap() || !answers_are_next;  // answers come at every second turn at the latest
    if (!answers_are_next) continue;
    offer_processor();
    answer_one();
  }
  io_uring_queue_exit(&ring_);
}

void UringEngine::take_incoming() {
  std::vector<QueuedRequest> taken;
  {
    const std::lock_guard lock(mutex_);
    taken.swap(incoming_);
    stop_seen_ = stopping_;
  }
  for (auto& queued : taken) queue_.push(std::move(queued));
}

void UringEngine::fill_ring() {
  if (queue_.empty()) return;
  const auto now = Clock::now();
  const bool others = others_read(now);
  while (!free_slots_.empty()) {
    auto queued = queue_.next(now, others);
    if (!queued) return;
    const unsigned index = free_slots_.back();
    free_slots_.pop_back();
    start_slot(index, std::move(*queued));
  }
}

void UringEngine::start_slot(unsigned index, QueuedRequest queued) {
  Slot& slot = slots_[index];
  slot.queued = std::move(queued);
  slot.again = 0;
  IoRequest& request = slot.queued.request;
  Transfer& transfer = slot.transfer.emplace(request.kind, request.file->descriptor(), request.file->path(),
                                             request.file->is_direct(), request.offset);
  for (const auto piece : request.pieces) transfer.add(piece.data(), piece.size());
  if (auto checked = transfer.check(); !checked) return finish(index, std::unexpected(std::move(checked).error()));
  if (transfer.pending().empty()) return finish(index, size_t{0});
  issue(index);
}

void UringEngine::issue(unsigned index) {
  Transfer& transfer = *slots_[index].transfer;
  const auto pieces = transfer.pending();
  const auto count = static_cast<unsigned>(pieces.size());
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  if (transfer.reading())
    io_uring_prep_readv(entry, transfer.fd(), pieces.data(), count, transfer.pending_offset());
  else
    io_uring_prep_writev(entry, transfer.fd(), pieces.data(), count, transfer.pending_offset());
  io_uring_sqe_set_data64(entry, index);
}

void UringEngine::issue_wake_read() {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  io_uring_prep_read(entry, wake_fd_.get(), &wake_count_, sizeof(wake_count_), 0);
  io_uring_sqe_set_data64(entry, kWakeUp);
}

// Submits the new entries and waits for `wait_for` completions.
void UringEngine::enter_kernel(unsigned wait_for) {
  if (wait_for == 0 && io_uring_sq_ready(&ring_) == 0) return;
  const int result = io_uring_submit_and_wait(&ring_, wait_for);
  if (result >= 0 || result == -EINTR) {
    failing_ = false;
    return;
  }
  // The kernel is short of memory (EAGAIN, EBUSY, ENOMEM): the entries stay in the ring and are submitted by the next call.
  if (!failing_) log::warn("io_uring_enter: {}; trying until it works", std::strerror(-result));
  failing_ = true;
  if (wait_for == 0) return;  // answers are due, and may free memory
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Returns true if it did something.
bool UringEngine::reap() {
  bool any = false;
  std::array<io_uring_cqe*, kReapBatch> found{};
  std::array<std::pair<uint64_t, int>, kReapBatch> results{};
  while (true) {
    const unsigned count = io_uring_peek_batch_cqe(&ring_, found.data(), kReapBatch);
    if (count == 0) return any;
    for (unsigned i = 0; i < count; ++i) results[i] = {found[i]->user_data, found[i]->res};
    io_uring_cq_advance(&ring_, count);
    for (unsigned i = 0; i < count; ++i) {
      const auto [data, result] = results[i];
      if (data == kWakeUp)
        issue_wake_read();
      else
        complete(static_cast<unsigned>(data), result);
      any |= data != kWakeUp;
    }
  }
}

void UringEngine::complete(unsigned index, int result) {
  Slot& slot = slots_[index];
  const bool again = result == -EINTR || (result == -EAGAIN && ++slot.again < kMaxAgain);
  if (again) return issue(index);
  if (result < 0) return finish(index, slot.transfer->failed(-result));
  if (auto advanced = slot.transfer->advance(static_cast<size_t>(result)); !advanced)
    return finish(index, std::unexpected(std::move(advanced).error()));
  if (!slot.transfer->complete()) return issue(index);
  finish(index, slot.transfer->transferred());
}

void UringEngine::finish(unsigned index, Result<size_t> result) {
  QueuedRequest queued = std::exchange(slots_[index].queued, {});
  slots_[index].transfer.reset();
  free_slots_.push_back(index);
  queue_.finished(queued.request);
  auto& finished = queued.request.urgent ? finished_urgent_ : finished_background_;
  finished.push_back({std::move(queued), std::move(result)});
}

// Yields between background answers. The scheduler leaves a thread running for milliseconds, and wakes the waiter of the
// last answer on this very processor.
void UringEngine::offer_processor() {
  const bool answered_background = !background_is_next_;
  if (answered_background && finished_urgent_.empty() && !finished_background_.empty()) ::sched_yield();
}

// Alternates if both kinds wait, so that each waits for at most one answer of the other.
void UringEngine::answer_one() {
  if (!answers_are_due()) return;
  const bool background = finished_urgent_.empty() || (background_is_next_ && !finished_background_.empty());
  background_is_next_ = !background;
  auto& from = background ? finished_background_ : finished_urgent_;
  Finished next = std::move(from.front());
  from.pop_front();
  const uint64_t generation = next.queued.generation;
  next.queued.request.done(std::move(next.result));
  next.queued = {};  // release what the request owns before it counts as finished
  counter_.end(generation);
}

}  // namespace

Result<std::unique_ptr<IoEngine>> make_uring_engine(unsigned queue_depth, uint64_t max_background_read_bytes) {
  auto engine = std::make_unique<UringEngine>(std::max(1u, queue_depth), max_background_read_bytes);
  KVC_TRY(engine->start());
  return engine;
}

}  // namespace kvcachefs

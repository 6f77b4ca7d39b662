// The engine for kernels without io_uring: a pool of threads that make blocking calls.
#include <algorithm>
#include <thread>

#include "store/base/mutex.h"
#include "store/base/thread.h"
#include "store/volume/io_engine.h"
#include "store/volume/request_queue.h"
#include "store/volume/transfer.h"

namespace kvcachefs {

namespace {

Result<size_t> run_request(IoRequest& request) {
  File& file = *request.file;
  Transfer transfer(request.kind, file.descriptor(), file.path(), file.is_direct(), request.offset);
  for (const auto piece : request.pieces) transfer.add(piece.data(), piece.size());
  return run_transfer(transfer);
}

class PosixEngine final : public IoEngine {
 public:
  // If there is more than one thread, one is kept free of background requests.
  PosixEngine(unsigned threads, uint64_t max_background_read_bytes)
      : queue_(std::max(1u, threads - 1), max_background_read_bytes) {}

  Status start(unsigned threads) {
    for (unsigned i = 0; i < threads; ++i) {
      KVC_ASSIGN(threads_.emplace_back(), start_thread("kvc-io", [this] { run(); }));
    }
    return {};
  }

  ~PosixEngine() override {
    counter_.wait_for_all();
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  void submit(std::vector<IoRequest> requests) override {
    const uint64_t generation = counter_.begin(requests.size());
    const size_t count = requests.size();
    {
      const std::lock_guard lock(mutex_);
      for (auto& request : requests) queue_.push({std::move(request), generation});
    }
    count == 1 ? changed_.notify_one() : changed_.notify_all();
  }

  void drain() override { counter_.wait(); }

 private:
  void run() {
    while (auto queued = take()) {
      const uint64_t generation = queued->generation;
      auto result = run_request(queued->request);
      give_back(queued->request);
      queued->request.done(std::move(result));
      queued.reset();  // release what the request owns before it counts as finished
      counter_.end(generation);
    }
  }

  // Waits for a request that may start; nullopt when the engine stops.
  std::optional<QueuedRequest> take() {
    std::unique_lock lock(mutex_);
    while (true) {
      const auto now = Clock::now();
      if (auto queued = queue_.next(now, others_read(now))) return queued;
      if (stopping_) return std::nullopt;
      changed_.wait(lock);
    }
  }

  void give_back(const IoRequest& request) {
    const std::lock_guard lock(mutex_);
    queue_.finished(request);
    if (!queue_.empty()) changed_.notify_one();  // a request that was held back may be able to start now
  }

  RequestCounter counter_;
  InnerMutex mutex_;  // guards queue_ and stopping_
  ConditionVariable changed_;
  RequestQueue queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

Result<std::unique_ptr<IoEngine>> make_posix_engine(unsigned threads, uint64_t max_background_read_bytes) {
  auto engine = std::make_unique<PosixEngine>(std::max(1u, threads), max_background_read_bytes);
  KVC_TRY(engine->start(std::max(1u, threads)));
  return engine;
}

}  // namespace kvcachefs

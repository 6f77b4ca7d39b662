// Private to the files that read bodies into RAM.
#pragma once

#include <algorithm>
#include <atomic>
#include <utility>

#include "store/object/wanted_units.h"
#include "store/store_impl.h"

namespace kvcachefs {

// Larger bodies are not for a thread that polls (help()): to check one takes it from its requests for too long.
constexpr uint64_t kHelpedBytes = 128 * kKiB;

// Counts among what is being read ahead, until it is released.
struct StoreImpl::AheadBytes {
  AheadBytes() = default;
  AheadBytes(StoreImpl& store, uint64_t bytes) : store_(&store), bytes_(bytes) {
    store.ahead_in_flight_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  AheadBytes(AheadBytes&& other) noexcept : store_(std::exchange(other.store_, nullptr)), bytes_(other.bytes_) {}
  AheadBytes& operator=(AheadBytes&& other) noexcept {
    release();
    store_ = std::exchange(other.store_, nullptr);
    bytes_ = other.bytes_;
    return *this;
  }
  ~AheadBytes() { release(); }
  void release() {
    if (StoreImpl* store = std::exchange(store_, nullptr)) store->ahead_arrived(bytes_);
  }
  uint64_t bytes() const { return bytes_; }

 private:
  StoreImpl* store_ = nullptr;
  uint64_t bytes_ = 0;
};

// Bodies that are read ahead and came with one read of the volume: the tracker, whose lock clients want, is told of them
// together. On the stack of who takes in the read.
struct StoreImpl::Arrivals {
  Arrivals(StoreImpl& of, int64_t at_ns);
  ~Arrivals();
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;
  StoreImpl& store;
  const int64_t arrived_ns;
  Arrivals* outer;     // on the same stack, of the same store
  void* shadowed;      // on the same stack
  std::vector<AccessTracker::Loaded> bodies;
  std::vector<ObjectPtr> objects;
};

// Memory that a read of the volume is under way for, until it is released.
class LoadingBytes {
 public:
  LoadingBytes() = default;
  LoadingBytes(std::atomic<uint64_t>& sum, uint64_t bytes) : sum_(&sum), bytes_(bytes) { sum.fetch_add(bytes, std::memory_order_relaxed); }
  LoadingBytes(LoadingBytes&& other) noexcept : sum_(std::exchange(other.sum_, nullptr)), bytes_(other.bytes_) {}
  LoadingBytes& operator=(LoadingBytes&& other) noexcept {
    release();
    sum_ = std::exchange(other.sum_, nullptr);
    bytes_ = other.bytes_;
    return *this;
  }
  ~LoadingBytes() { release(); }
  void release() {
    if (auto* sum = std::exchange(sum_, nullptr)) sum->fetch_sub(bytes_, std::memory_order_relaxed);
  }

 private:
  std::atomic<uint64_t>* sum_ = nullptr;
  uint64_t bytes_ = 0;
};

// While it exists this thread must not block: others wait for it, for it takes in what the volume answers, or resumes requests.
// What would open a file or ask the volume for something goes to another thread (may_block_elsewhere()).
class MustNotBlock {
 public:
  MustNotBlock() { ++depth_; }
  ~MustNotBlock() { --depth_; }
  MustNotBlock(const MustNotBlock&) = delete;
  MustNotBlock& operator=(const MustNotBlock&) = delete;
  static bool here() { return depth_ > 0; }

 private:
  static constinit thread_local int depth_;
};

// One read of the volume for consecutive units of a body.
struct StoreImpl::LoadJob {
  ObjectPtr object;
  uint32_t base_version = 0;
  bool spilled = false;
  bool urgent = true;
  Place place;
  size_t first = 0;
  std::vector<uint64_t> checksums;  // of the units, in order
  std::vector<uint32_t> lengths;    // bytes of each on the volume
  std::vector<BlockPtr> blocks;
  FilePtr file;
  AheadBytes ahead;  // of a read ahead
  LoadingBytes loading;

  bool is_superseded(size_t i) const;  // the i-th of its units; the object is locked
  // Whether what was read is what was written. `from` is for the message; null for an inline body.
  Status check(size_t bytes_read, const File* from) const;
  uint64_t offset() const { return place.offset + first * kUnitBytes; }
  uint64_t padded_bytes() const {
    uint64_t bytes = 0;
    for (uint32_t length : lengths) bytes += align_up(length, kBlockBytes);
    return bytes;
  }
  uint64_t memory_bytes() const {
    uint64_t bytes = 0;
    for (const BlockPtr& block : blocks) bytes += block->capacity_bytes();
    return bytes;
  }
};

// What one read of the volume brought, of several bodies, some of which may be taken in already.
struct StoreImpl::ArrivedRead {
  std::vector<std::shared_ptr<LoadJob>> jobs;
  Result<size_t> result;
  int64_t arrived_ns = 0;
  size_t next = 0;           // of jobs
  uint64_t before_bytes = 0;  // of the read, for the jobs before that
};

// Reads ahead that wait for their neighbours.
struct StoreImpl::HeldLoads {
  std::vector<std::shared_ptr<LoadJob>> jobs;
  uint64_t bytes = 0;
  int64_t begun_ns = 0;  // all together; sending them takes time
  uint32_t run = 0;      // of the first
  bool mixed = false;    // there are others'
  bool awaited = false;  // somebody waits for them
  bool urgent = false;   // a reader is right behind the first

  void note(const ReadAheadQueue::Item& item);
  uint64_t enough() const;
};

// What make_jobs() lacks, and what it was given.
struct StoreImpl::LoadMemory {
  Reservation blocks;
  uint64_t needed = 0;  // for blocks of the pool
  MemoryFor who = MemoryFor::kReader;
  FileRequest file;
  WantedUnits* pin = nullptr;  // takes hold of the wanted units in the moment in which all of them have memory
};

// Runs `done` when all the units it was given have been read, or with the first error.
struct StoreImpl::LoadWaiter {
  std::atomic<size_t> open{1};  // one for who sets it up
  LeafMutex mutex;
  std::optional<Error> error;
  StatusCompletion done;
  void finish_one(Status status) {
    if (!status) {
      std::lock_guard lock(mutex);
      if (!error) error = std::move(status).error();
    }
    if (open.fetch_sub(1) != 1) return;
    if (error) return done(std::unexpected(std::move(*error)));
    done({});
  }
};

}  // namespace kvcachefs

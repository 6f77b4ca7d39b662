// The parts of loading units of bodies from the volume into RAM: the reads, the memory, and the waiting requests.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "store/api/request_types.h"
#include "store/base/mutex.h"
#include "store/base/result.h"
#include "store/base/types.h"
#include "store/base/units.h"
#include "store/cache/body_cache.h"
#include "store/memory/pool.h"
#include "store/object/file_request.h"
#include "store/object/object.h"
#include "store/object/wanted_units.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// The missing units among [first, last) of a body; a request waits for those in [first, wanted).
struct LoadRange {
  size_t first = 0;
  size_t wanted = 0;
  size_t last = 0;
  bool reads_ahead() const { return last > wanted; }
};

// Counts memory as waiting for a read of the volume, until it is released.
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

struct ArrivedRead;

// Receives the reads that Loader has sent to the volume, and the end of reads ahead. Called on any thread; must not block.
class ArrivalSink {
 public:
  // A read has ended. The sink must have all its bodies taken in by Loader::take_in_next(): now, or by another thread later.
  virtual void arrived(std::unique_ptr<ArrivedRead> read) = 0;
  // Memory of AheadBytes was released.
  virtual void ahead_ended(uint64_t bytes) = 0;

 protected:
  ~ArrivalSink() = default;
};

// Memory of a read ahead. Its owner counts it, and is told when it is released.
class AheadBytes {
 public:
  AheadBytes() = default;
  AheadBytes(ArrivalSink& owner, uint64_t bytes) : owner_(&owner), bytes_(bytes) {}
  AheadBytes(AheadBytes&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)), bytes_(other.bytes_) {}
  AheadBytes& operator=(AheadBytes&& other) noexcept {
    release();
    owner_ = std::exchange(other.owner_, nullptr);
    bytes_ = other.bytes_;
    return *this;
  }
  ~AheadBytes() { release(); }
  void release() {
    if (ArrivalSink* owner = std::exchange(owner_, nullptr)) owner->ahead_ended(bytes_);
  }

 private:
  ArrivalSink* owner_ = nullptr;
  uint64_t bytes_ = 0;
};

// One read of the volume for consecutive units of a body.
struct LoadJob {
  ObjectPtr object;
  uint32_t base_version = 0;
  bool spilled = false;
  bool urgent = true;
  bool peers_were_read = false;  // since the bytes were found bad or missing: whether its node has given them up is known
  Place place;
  size_t first = 0;
  std::vector<uint64_t> checksums;  // of the units, in order
  std::vector<uint32_t> lengths;    // bytes of each on the volume
  std::vector<BlockPtr> blocks;
  FilePtr file;
  AheadBytes ahead;  // if it is a read ahead
  LoadingBytes loading;

  // The bytes read for the i-th unit are outdated: the body was replaced, or its spilled unit written anew. The object is
  // locked.
  bool is_superseded(size_t i) const;
  // Verifies the bytes that were read against their checksums. `from` is for the message; null for an inline body.
  Status check(size_t bytes_read, const File* from) const;
  uint64_t offset() const { return place.offset + first * kUnitBytes; }
  uint64_t padded_bytes() const;
  uint64_t memory_bytes() const;
};
using LoadJobPtr = std::shared_ptr<LoadJob>;
using LoadJobs = std::vector<LoadJobPtr>;

// The result of one read of the volume, for several bodies, some of which may be taken in already.
struct ArrivedRead {
  LoadJobs jobs;
  Result<size_t> result;
  int64_t arrived_ns = 0;
  size_t next = 0;            // of jobs
  uint64_t before_bytes = 0;  // of the read, for the jobs before `next`
  bool all_taken_in() const { return next == jobs.size(); }
};

// The memory that Loader::plan() lacks, and the memory that it was given.
struct LoadMemory {
  Reservation blocks;
  uint64_t needed = 0;  // for blocks of the pool
  MemoryFor who = MemoryFor::kReader;
  FileRequest file;
  WantedUnits* pin = nullptr;  // holds the wanted units from the moment at which all of them have memory
};

// Runs `done` when all units that it counts have been read, with the first error if there was one. Its mutex is a leaf.
struct LoadWaiter {
  std::atomic<size_t> open{1};  // units, plus one for the caller that sets it up
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

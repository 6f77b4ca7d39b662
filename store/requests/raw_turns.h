// Requests of raw files go past the pool of memory, so they are bounded by themselves: no more is under way than keeps the volume busy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "store/base/units.h"
#include "store/cache/io_budget.h"
#include "store/cache/resumer.h"

namespace kvcachefs {

// Thread-safe; its lock is that of IoBudget, a leaf. One for each direction. Those that wait go on at the resumer, for they may block
// and a turn may end on a thread of the volume.
class RawTurns {
 public:
  explicit RawTurns(Resumer& resumer) : resumer_(resumer) {}

  // True: it is the turn of a request of `bytes`, until end().
  bool try_begin(uint64_t bytes) { return budget_.try_begin(bytes); }
  // For one that was refused: `begin` runs once it is its turn, which counts by then.
  void wait(uint64_t bytes, IoBudget::Begin begin) { run(budget_.wait(bytes, std::move(begin))); }
  void end(uint64_t bytes) { run(budget_.end(bytes)); }
  // The turn of a request, until it ends. A request that begins anew, for the file is another by now, ends it first: the others could be
  // waiting for theirs with all that there are.
  class Turn {
   public:
    Turn(RawTurns& of, uint64_t bytes) : of_(&of), bytes_(bytes) {}
    Turn(Turn&& other) noexcept : of_(std::exchange(other.of_, nullptr)), bytes_(other.bytes_) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn() { end(); }
    void end() {
      if (RawTurns* of = std::exchange(of_, nullptr)) of->end(bytes_);
    }

   private:
    RawTurns* of_;
    const uint64_t bytes_;
  };
  size_t waiting() const { return budget_.waiting(); }

 private:
  static constexpr uint64_t kUnderWayBytes = 32 * kMiB;

  void run(std::vector<IoBudget::Begin> turns) {
    for (IoBudget::Begin& turn : turns) resumer_.answer_later(std::move(turn));
  }

  Resumer& resumer_;
  IoBudget budget_{kUnderWayBytes};
};

}  // namespace kvcachefs

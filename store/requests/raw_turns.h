// Bounds the requests of raw files that are under way to as much as keeps the volume busy: their bytes do not count in the memory pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "store/base/units.h"
#include "store/cache/io_budget.h"
#include "store/cache/resumer.h"

namespace kvcachefs {

// Thread-safe; its lock is that of IoBudget, a leaf. One for each direction. Waiting requests go on at the resumer: they may block, and
// a turn may end on a thread of the volume.
class RawTurns {
 public:
  explicit RawTurns(Resumer& resumer) : resumer_(resumer) {}

  // True: a request of `bytes` has its turn, until end().
  bool try_begin(uint64_t bytes) { return budget_.try_begin(bytes); }
  // For a request that was refused: `begin` runs once it has its turn, which is counted by then.
  void wait(uint64_t bytes, IoBudget::Begin begin) { run(budget_.wait(bytes, std::move(begin))); }
  void end(uint64_t bytes) { run(budget_.end(bytes)); }
  // The turn of a request, until end() or destruction. A request that begins anew (its file is another by now) ends its turn first:
  // otherwise requests that hold all turns could wait for further ones.
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

// How much of the volume may be used. Space is reserved before bytes are accepted, so that nothing accepted meets a full
// disk later (invariant 8). All counters are atomics; nothing here blocks.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "store/base/result.h"
#include "store/volume/volume.h"

namespace kvcachefs {

class Space {
 public:
  // `limit_bytes` is the capacity option; `keep_free_bytes` of the backing file system are left alone.
  void configure(uint64_t limit_bytes, uint64_t keep_free_bytes) {
    limit_bytes_ = limit_bytes;
    keep_free_bytes_ = keep_free_bytes;
  }
  // Sets `bytes` aside for a body to come; false when they do not fit. What is on its way out counts until its blocks were
  // given back.
  bool try_reserve(uint64_t bytes) {
    uint64_t reserved = reserved_bytes_.load();
    do {
      if (bytes > room_beside(reserved)) return false;
    } while (!reserved_bytes_.compare_exchange_weak(reserved, reserved + bytes));
    return true;
  }
  void release(uint64_t bytes) { reserved_bytes_.fetch_sub(bytes); }
  // What was set aside is on the volume now. Counted as live (set_live()) before this call.
  void consume(uint64_t bytes) {
    uint64_t free = backing_free_bytes_.load();
    while (!backing_free_bytes_.compare_exchange_weak(free, free - std::min(free, bytes))) {
    }
    reserved_bytes_.fetch_sub(bytes);
  }
  // What could be reserved now.
  uint64_t room_bytes() const { return room_beside(reserved_bytes_); }

  // Something was removed, replaced or let go of: its space may come back. Told apart by number, so that what was waited
  // for in vain is not waited for again.
  void hope() { hopes_.fetch_add(1); }
  uint64_t hopes() const { return hopes_; }

  void set_live(uint64_t bytes) { live_bytes_ = bytes; }
  void set_dead(uint64_t bytes) { dead_bytes_ = bytes; }
  void set_overhead(uint64_t bytes) { overhead_bytes_ = bytes; }
  void set_backing(const SpaceInfo& backing) {
    backing_free_bytes_ = backing.available_bytes > keep_free_bytes_ ? backing.available_bytes - keep_free_bytes_ : 0;
  }

  uint64_t limit_bytes() const { return limit_bytes_; }
  uint64_t keep_free_bytes() const { return keep_free_bytes_; }
  uint64_t reserved_bytes() const { return reserved_bytes_; }
  uint64_t live_bytes() const { return live_bytes_; }
  uint64_t dead_bytes() const { return dead_bytes_; }
  // Everything on the volume: live places, raw files, places not given back yet, journals, checkpoints, index.
  // What goes from live to dead is counted as dead first, and read in the other order.
  uint64_t physical_bytes() const {
    const uint64_t live = live_bytes_;
    return live + dead_bytes_ + raw_bytes_ + overhead_bytes_;
  }
  // What was unlinked but is not journaled as gone yet (still counted as live).
  void add_leaving(uint64_t bytes) {
    leaving_bytes_.fetch_add(bytes);
    hope();
  }
  void remove_leaving(uint64_t bytes) { leaving_bytes_.fetch_sub(bytes); }
  uint64_t leaving_bytes() const { return leaving_bytes_; }
  // Blocks of raw files, measured now and then; add_raw() for what was allocated since.
  void set_raw(uint64_t bytes) { raw_bytes_ = bytes; }
  void add_raw(uint64_t bytes) { raw_bytes_.fetch_add(bytes); }
  // What df shows as free: space that comes back by itself counts as free at once.
  uint64_t free_bytes() const {
    const uint64_t leaving = leaving_bytes_;
    const uint64_t used = live_bytes_ + raw_bytes_ + overhead_bytes_ + reserved_bytes_ - std::min<uint64_t>(leaving, live_bytes_);
    const uint64_t limit = limit_bytes_;
    const uint64_t by_limit = limit > used ? limit - used : 0;
    const uint64_t backing = backing_free_bytes_ + dead_bytes_ + leaving;
    const uint64_t by_backing = backing > reserved_bytes_ ? backing - reserved_bytes_ : 0;
    return by_limit < by_backing ? by_limit : by_backing;
  }

 private:
  uint64_t room_beside(uint64_t reserved) const {
    const uint64_t used = physical_bytes() + reserved, limit = limit_bytes_, backing = backing_free_bytes_;
    return std::min(limit - std::min(used, limit), backing - std::min(reserved, backing));
  }

  std::atomic<uint64_t> limit_bytes_{UINT64_MAX}, keep_free_bytes_{0};
  std::atomic<uint64_t> reserved_bytes_{0}, live_bytes_{0}, dead_bytes_{0}, overhead_bytes_{0},
      leaving_bytes_{0}, raw_bytes_{0}, hopes_{0};
  std::atomic<uint64_t> backing_free_bytes_{UINT64_MAX};
};

}  // namespace kvcachefs

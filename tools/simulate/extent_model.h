// The cost of evictions for a volume. Units are appended to extents in the order in which they are written. The space of an evicted
// unit comes back at once (holes of 4 KiB are punched) or, if that is impossible, with the last unit of its extent:
// the live rest of the emptiest extent is then written again elsewhere when space runs out.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace kvcachefs {

struct ExtentSettings {
  bool on = false;
  bool punch = false;
  uint64_t extent_bytes = uint64_t{256} << 20;
  uint64_t bytes_per_token = 36 << 10;
  double fill = 0.95;  // held bytes as a part of the space that extents may take
  double give_up = 0;  // compaction evicts units worth at most this many times as much as those evicted anyway; 0: it moves all
};

struct ExtentCounts {
  uint64_t written_bytes = 0;    // by clients
  uint64_t rewritten_bytes = 0;  // by compaction
  uint64_t restored_units = 0;   // prefix hits
  uint64_t restored_ranges = 0;  // contiguous ranges of extents that contained them

  double write_amplification() const {
    return written_bytes == 0 ? 1
                              : static_cast<double>(written_bytes + rewritten_bytes) / static_cast<double>(written_bytes);
  }
  double units_per_range() const {
    return restored_ranges == 0 ? 0 : static_cast<double>(restored_units) / static_cast<double>(restored_ranges);
  }
};

class ExtentModel {
 public:
  ExtentModel(const ExtentSettings& settings, uint32_t distinct_units, uint64_t held_bytes);

  // Compaction calls `give_up` for each live unit, the last units of an extent first; true: the unit was evicted instead of moved.
  void set_give_up(std::function<bool(uint32_t)> give_up) { give_up_ = std::move(give_up); }
  void write(uint32_t unit, uint64_t bytes);
  void evict(uint32_t unit);
  // Reads the units in this order.
  void restore(std::span<const uint32_t> units);
  const ExtentCounts& counts() const { return counts_; }

 private:
  static constexpr uint32_t kNowhere = UINT32_MAX;
  struct Place {
    uint32_t extent = kNowhere;
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  struct Extent {
    uint64_t used_bytes = 0;  // from its start
    uint64_t live_bytes = 0;
    std::vector<uint32_t> units;  // also units that have left
  };
  void append(uint32_t unit, uint64_t bytes);
  void compact();

  ExtentSettings settings_;
  uint64_t limit_bytes_;
  std::function<bool(uint32_t)> give_up_;
  std::vector<Place> places_;
  std::vector<Extent> extents_;
  uint32_t open_ = 0;
  uint64_t taken_bytes_ = 0;
  ExtentCounts counts_;
};

}  // namespace kvcachefs

// Gives dead places back to the backing file system: a pack of which nothing lives, and what was solo or raw, by removing the file,
// a range of a pack by punching it.
//
// Each call on a file may take a round trip or wait for a discard of the device, however little it gives back: some milliseconds.
// So neighbours are punched together, several files at a time, the longest ranges first; and short ones are left where the caller
// asked for less than there is, for their neighbours may die, and they go with them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "store/api/counters.h"
#include "store/base/clock.h"
#include "store/base/parallel_runner.h"
#include "store/base/records.h"
#include "store/extent/extents.h"
#include "store/index/index.h"
#include "store/space/dead_space.h"

namespace kvcachefs {

// Used by the keeper's thread alone.
class Reclaimer {
 public:
  // What the store knows of who uses a place. Both may be asked for any place, from the keeper's thread.
  struct Users {
    std::function<bool(const FreedPlace&)> needs;  // an object reads from there still; once false it stays false
    std::function<bool()> commits;                 // batches are under way, whose dead places DeadSpace does not know yet
    std::function<bool(const FreedPlace&)> held = {};  // for other nodes, which may not know yet that it was given up. May be empty
    std::function<bool(ExtentId)> may_be_read = {};    // other nodes may read there what an earlier life gave up. May be empty
    std::function<bool(ExtentId)> keeps = {};          // a lost record may name more in the pack: it never goes as a whole. May be empty
  };
  struct Amount {
    uint64_t enough_bytes = UINT64_MAX;  // ranges are punched until so much came back; what is removed as a whole is
    int64_t most_ns = INT64_MAX;         // then what was not begun is left; something is done in any case
  };
  struct Outcome {
    bool cut_short = false;     // by most_ns
    uint64_t needed_bytes = 0;  // are dead, and read still
    uint64_t held_bytes = 0;    // are dead, and held for other nodes
    size_t held_places = 0;
    uint64_t left_bytes = 0;    // were more than enough
    uint64_t punched = 0, punched_bytes = 0;
  };
  // `threads` punch and remove beside the caller. `can_punch`: of the volume; else ranges come back with the whole pack.
  Reclaimer(DeadSpace& dead, Extents& extents, const Index& index, Counters& counters, Clock& clock, Users users, bool can_punch,
            unsigned threads);

  // Of places whose records are synced (invariant 6), as DeadSpace::take() gave them. What is not given back goes to
  // DeadSpace::settle(). Blocks on the volume; no lock of the store may be held.
  Outcome reclaim(std::vector<FreedPlace> dead, const Amount& amount);

 private:
  struct Range {
    size_t first = 0, count = 0;  // of the dead places, which lie one behind the other
    uint64_t begin = 0, end = 0;
    bool left = false;  // for a later call
    bool gone = false;
    uint64_t bytes() const { return end - begin; }
  };
  struct File {  // worked on by one thread
    ExtentId id;
    PlaceKind kind = PlaceKind::kNone;
    enum class How : uint8_t { kNotNow, kPunch, kRemove } how = How::kNotNow;
    std::vector<Range> ranges;  // of a file that is removed: what counts as gone with it
  };
  std::vector<File> group(const std::vector<FreedPlace>& dead, std::vector<FreedPlace>& kept, Outcome& outcome) const;
  void choose_how(File& file, bool in_use) const;
  static uint64_t leave_short_ones(std::vector<File>& files, uint64_t enough_bytes);
  void work_on(File& file, int64_t until_ns) const;
  Status remove(File& file) const;
  Status punch(File& file, int64_t until_ns) const;
  Status keep_unpunched(File& file) const;
  static Status mark_gone(File& file);

  DeadSpace& dead_;
  Extents& extents_;
  const Index& index_;
  Counters& counters_;
  Clock& clock_;
  const Users users_;
  const bool can_punch_;
  ParallelRunner runner_;
};

}  // namespace kvcachefs

// Gives dead places back to the backing file system: removes a pack without live bodies, a solo or a raw file; punches ranges of other
// packs.
//
// Each call on a file may take a round trip or wait for a discard of the device, some milliseconds, however little it gives back. So
// neighbouring ranges are punched together, several files at a time, the longest ranges first. If the caller asked for less than there is,
// short ranges are left: their neighbours may die and go in the same call.
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

// Used by the keeper's thread only.
class Reclaimer {
 public:
  // Tells which users a place has. Each may be asked for any place, from the keeper's thread.
  struct Users {
    std::function<bool(const FreedPlace&)> needs;  // an object still reads from there; once false it stays false
    std::function<bool()> commits;                 // batches are under way whose dead places DeadSpace does not know yet
    std::function<bool(const FreedPlace&)> held = {};  // for other nodes, which may not know yet that it was given up. May be empty
    std::function<bool(ExtentId)> may_be_read = {};    // other nodes may still read what an earlier run gave up there. May be empty
    std::function<bool(ExtentId)> keeps = {};          // a lost record may name more in the pack: it never goes as a whole. May be empty
  };
  struct Amount {
    uint64_t enough_bytes = UINT64_MAX;  // punch ranges until this much came back; whole files are removed in any case
    int64_t most_ns = INT64_MAX;         // after that, work not begun is left; something is done in any case
  };
  struct Outcome {
    bool cut_short = false;     // by most_ns
    uint64_t needed_bytes = 0;  // dead, but still read
    uint64_t held_bytes = 0;    // dead, but held for other nodes
    size_t held_places = 0;
    uint64_t left_bytes = 0;    // more than was asked for
    uint64_t punched = 0, punched_bytes = 0;
  };
  // `threads` punch and remove beside the caller. `can_punch`: the volume can; otherwise ranges come back with the whole pack.
  Reclaimer(DeadSpace& dead, Extents& extents, const Index& index, Counters& counters, Clock& clock, Users users, bool can_punch,
            unsigned threads);

  // Gives back places whose records are synced (invariant 6), as taken by DeadSpace::take(). The rest goes to DeadSpace::settle(). Blocks
  // on the volume; call with no lock of the store held.
  Outcome reclaim(std::vector<FreedPlace> dead, const Amount& amount);

 private:
  struct Range {
    size_t first = 0, count = 0;  // adjacent dead places, by index
    uint64_t begin = 0, end = 0;
    bool left = false;  // for a later call
    bool gone = false;
    uint64_t bytes() const { return end - begin; }
  };
  struct File {  // each file is worked on by one thread
    ExtentId id;
    PlaceKind kind = PlaceKind::kNone;
    enum class How : uint8_t { kNotNow, kPunch, kRemove } how = How::kNotNow;
    std::vector<Range> ranges;  // for a removed file: the places that go with it
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

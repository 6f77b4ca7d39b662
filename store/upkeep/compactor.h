// For volumes that cannot punch holes (NFS before 4.2), where space comes back only with whole packs. Bodies in packs that are mostly dead
// are moved, or evicted where they are worth little more than the next victims: then the whole pack is dead and is removed.
//
// A round chooses packs, scans all objects of the index for the bodies in them, and empties one pack after the other, starting with the one
// with the fewest live bytes. Nothing here writes: a body to be moved is marked dirty again, unchanged, and a lane seals it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "store/api/counters.h"
#include "store/base/clock.h"
#include "store/base/types.h"
#include "store/index/index.h"
#include "store/space/dead_space.h"
#include "store/space/space.h"
#include "store/tree/tree.h"
#include "store/upkeep/eviction.h"
#include "store/writeback/pack_target.h"
#include "store/writeback/relocator.h"
#include "store/writeback/volume_refusals.h"

namespace kvcachefs {

// Used by the keeper's thread only, or during a start. Call with no lock held. Does not block on the volume, except for index reads.
class Compactor {
 public:
  struct Parts {
    Tree& tree;
    const Index& index;
    const DeadSpace& dead;
    Space& space;
    const VolumeRefusals& refusals;
    Relocator& relocator;
    Eviction& eviction;
    Counters& counters;
    const Clock& clock;
    uint64_t extent_bytes;  // option: packs are no larger
  };
  explicit Compactor(Parts parts) : parts_(parts) {}

  // Reserves room for moved bodies, which a full volume would not have: at most the live bytes of one pack that is emptied, as soon as that
  // much is free. Call at the start, and whenever space came back, before waiting calls try again.
  void keep_room();

  // Does one piece of the work that is due when less than `wanted_bytes` can be reserved. Returns true if bodies were moved or evicted:
  // their old space comes back after the next index point, once all dirty data is journaled. `waited_for`: a call waits for room.
  bool step(uint64_t wanted_bytes, bool waited_for);
  // True if a round is under way, or one was due for waiting calls and has begun now. While is_listing() is true it makes no room yet.
  bool is_under_way(uint64_t wanted_bytes) { return !packs_.empty() || begin(wanted_bytes); }
  bool is_listing() const { return !packs_.empty() && !listed_; }
  // True if more can be done at once; otherwise the next piece is due in the keeper's next step.
  bool goes_on() const { return !packs_.empty() && (!listed_ || idle_); }

 private:
  struct Resident {  // a body in a pack
    uint64_t offset = 0;
    ObjectId id;
  };
  struct Pack {
    ExtentId id;
    uint64_t dead_bytes = 0, live_bytes = 0, bodies = 0;
    std::vector<Resident> residents;  // by offset, once all objects were scanned
    bool thinned = false;             // bodies of little worth were evicted
    size_t gone = 0;                  // how many of the residents have left
  };
  struct Went {
    uint64_t bytes = 0;  // 0: the body already left the pack, or is being written
    bool fits = true;
  };
  bool begin(uint64_t wanted_bytes);
  std::vector<Pack> emptiest(uint64_t wanted_bytes, std::vector<Pack> candidates) const;
  bool list_some(bool waited_for);
  uint64_t piece_bytes(bool waited_for);
  bool empty_some(uint64_t most_bytes);
  uint64_t thin(const Pack& pack, double most_worth);
  Went move(ExtentId pack, ObjectId id);
  void end_round();

  const Parts parts_;
  std::vector<Pack> packs_;  // of the round, the next one last; empty: no round is under way
  bool listed_ = false;
  ObjectId listed_until_;
  int64_t look_again_ns_ = 0;  // before that time a look finds nothing, unless the number of dead bytes changes
  uint64_t looked_at_bytes_ = 0;  // the number of dead bytes at the last look
  uint64_t written_bytes_ = 0;  // by clients, at the last piece
  bool idle_ = false;           // no client wrote since the piece before
  uint64_t kept_bytes_ = 0;     // reserved by keep_room()
  // The packs of the last rounds: a pack that still has bodies is not chosen again before this time.
  std::unordered_map<ExtentId, int64_t> passed_over_until_ns_;
};

}  // namespace kvcachefs

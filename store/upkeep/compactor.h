// Where the volume cannot punch holes (NFS before 4.2), space comes back with whole packs. What lives in packs that are mostly dead is
// moved, or goes where it is worth little more than what is evicted anyway: then the pack is dead, and removed.
//
// A round chooses packs, looks through all objects of the index for the bodies in them, and empties one pack after the other, those in
// which least lives first. Nothing here writes: a body that is moved is dirty again, as it is, and a lane seals it.
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

// The keeper's thread alone, or a start. No lock held. Does not block on the volume, but for index reads.
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

  // A full volume has no room for what is to be moved: as much as lives in a pack that is emptied, at most, is set aside for that, as soon
  // as there is so much. To be called at the start, and when space came back, before calls that wait try again.
  void keep_room();

  // A piece of what is due where less than `wanted_bytes` can be reserved. True: bodies were moved or evicted; what they were comes back
  // after the next index point, once all that is dirty is journaled. `waited_for`: a call waits for room.
  bool step(uint64_t wanted_bytes, bool waited_for);
  // A round is under way, or one was due for calls that wait, and has begun. While it is_listing() it makes no room yet.
  bool is_under_way(uint64_t wanted_bytes) { return !packs_.empty() || begin(wanted_bytes); }
  bool is_listing() const { return !packs_.empty() && !listed_; }
  // There is more to do at once; else the next piece is due in the keeper's next step.
  bool goes_on() const { return !packs_.empty() && (!listed_ || idle_); }

 private:
  struct Resident {  // a body in a pack
    uint64_t offset = 0;
    ObjectId id;
  };
  struct Pack {
    ExtentId id;
    uint64_t dead_bytes = 0, live_bytes = 0, bodies = 0;
    std::vector<Resident> residents;  // by offset, once all objects were looked through
    bool thinned = false;             // what is worth little went
    size_t gone = 0;                  // of the residents
  };
  struct Went {
    uint64_t bytes = 0;  // 0: it left the pack already, or is being written
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
  std::vector<Pack> packs_;  // of the round, the next last; none: no round is under way
  bool listed_ = false;
  ObjectId listed_until_;
  int64_t look_again_ns_ = 0;  // before that there is nothing to be found, unless more or less is dead
  uint64_t looked_at_bytes_ = 0;  // so much was
  uint64_t written_bytes_ = 0;  // by clients, at the last piece
  bool idle_ = false;           // none wrote since the one before
  uint64_t kept_bytes_ = 0;     // reserved by keep_room()
  // The packs of the last rounds: what has not left them is not asked again at once.
  std::unordered_map<ExtentId, int64_t> passed_over_until_ns_;
};

}  // namespace kvcachefs

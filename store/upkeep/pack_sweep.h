// After an unclean end: gives back the blocks of packs that no record names. What a batch freed is known to the daemon that
// journaled it only; when that died between the commit of the index and the reclaim, nobody else hears of it.
//
// Packs of earlier epochs only: nothing is put into them any more, so what no record names and nobody has in hand stays dead.
// One stat for each pack; the objects are scanned only if one has more blocks than its bodies need.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "store/base/parallel_runner.h"
#include "store/base/result.h"
#include "store/extent/extents.h"
#include "store/extent/pack_gaps.h"
#include "store/index/index.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// Used by the thread that commits the index, after a commit (and checkpoint) behind which recovery never goes back.
class PackSweep {
 public:
  // Ranges of these packs that are dead, but perhaps in use, and will be given back by somebody else.
  using InHand = std::function<void(const std::function<void(ExtentId, ByteRange)>&)>;

  struct Epochs {
    uint32_t after = 0, through = 0;
  };
  // `epochs`: of the packs it looks at, all before that of `extents`. `threads` that stat packs beside the caller's: on a network volume each is a round trip.
  PackSweep(Extents& extents, const Index& index, Epochs epochs, InHand in_hand, unsigned threads);

  // A piece of the work, some tens of milliseconds (a scan of all objects takes longer). False: done. No lock of the store may
  // be held. May be taken up again after an error, but need not.
  Result<bool> step();
  // Every pack was looked at: surplus_bytes() is known.
  bool measured() const { return listed_ && unmeasured_.empty(); }
  // Of blocks that no record names and nobody had in hand when the first step was made; as far as they were not given back yet.
  uint64_t surplus_bytes() const { return surplus_bytes_; }

  uint64_t packs() const { return packs_swept_; }
  uint64_t ranges() const { return ranges_; }
  uint64_t bytes() const { return bytes_; }

 private:
  struct Pack {
    ExtentId id;
    uint64_t bodies = 0;
    uint64_t live_bytes = 0;
    uint64_t file_bytes = 0, allocated_bytes = 0;
    uint64_t surplus_bytes = 0;  // its part of surplus_bytes_
  };
  struct Gaps {
    Pack pack;
    std::vector<ByteRange> ranges;  // to be punched, from the back
  };
  Status list_packs();
  Status measure_some();
  Status find_gaps();
  Status punch_some();
  std::string path_of(ExtentId id) const;

  Extents& extents_;
  const Index& index_;
  const Epochs epochs_;
  const InHand in_hand_;
  ParallelRunner runner_;
  bool listed_ = false;
  std::vector<Pack> unmeasured_, surplus_;
  std::unordered_map<ExtentId, uint64_t> in_hand_bytes_;  // until all are measured
  std::vector<Gaps> gaps_;
  uint64_t surplus_bytes_ = 0;
  uint64_t packs_swept_ = 0, ranges_ = 0, bytes_ = 0;
};

}  // namespace kvcachefs

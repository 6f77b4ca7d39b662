// After an unclean end: gives back blocks of packs that no record names. Only the daemon that journaled a batch knows what it freed; if
// that daemon died between the index commit and the reclaim, nothing else reports those blocks.
//
// Looks only at packs of earlier epochs: nothing is added to them, so a range that no record names and nothing else has in hand stays dead.
// Costs one stat for each pack; the objects are scanned only if a pack has more blocks than its bodies need.
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

// Used by the thread that commits the index, after a commit (and checkpoint) that recovery never goes back behind.
class PackSweep {
 public:
  // Reports dead ranges of these packs that may still be in use and that another class will give back.
  using InHand = std::function<void(const std::function<void(ExtentId, ByteRange)>&)>;

  struct Epochs {
    uint32_t after = 0, through = 0;
  };
  // `epochs`: of the packs to look at; all lie before the epoch of `extents`. `threads` stat packs beside the caller: on a network volume
  // each is a round trip.
  PackSweep(Extents& extents, const Index& index, Epochs epochs, InHand in_hand, unsigned threads);

  // Does a piece of the work, some tens of milliseconds (a scan of all objects takes longer). Returns false when done. Call with no lock of
  // the store held. May be called again after an error, but need not be.
  Result<bool> step();
  // True once every pack was looked at: surplus_bytes() is known.
  bool measured() const { return listed_ && unmeasured_.empty(); }
  // Bytes of blocks that no record names and nothing had in hand at the first step, minus those given back since.
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
    std::vector<ByteRange> ranges;  // to be punched, last one first
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

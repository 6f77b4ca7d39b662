// What earlier lives left on the volume and no record names, as far as it is known: extents that were never journaled, or given
// up and not removed any more, and dead ranges of packs. The index remembers it (Leftovers in index.h) for as long as it is not
// swept; this is what it was told, what this life found out since, and what it will be told next.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "store/index/index.h"
#include "store/space/dead_space.h"

namespace kvcachefs {

// Used by a start, then by the thread that commits the index alone: no lock.
//
// Invariant: what was measured of it counts in Space until it is swept, or what is accepted meanwhile would pass the capacity.
class OrphanNotes {
 public:
  OrphanNotes(const DeadSpace& dead, Space& space) : dead_(dead), space_(space) {}

  // At a start, from the index as it was opened. One that remembers nothing leaves what was taken from another before.
  void take_leftovers(const Index& index);
  // The life before ended in a way that may have left dead ranges in packs, whatever the index says.
  void doubt_packs() { packs_unswept_ = true; }
  // ... or extents in epochs after swept_epoch(). Until those were listed.
  void doubt_epochs() { unlisted_ = true; }
  bool unlisted() const { return unlisted_; }

  // To be called before each commit of the index: from then on replay does not tell of what the commit holds. `taken` is what
  // the reclaimer has in hand; what waits for it is asked for. Extents of epochs that are to be listed anyway are not named.
  // `ends`: before the commit of a clean end, after which nothing is listed: all that was given up is named.
  void note_leftovers(Index& index, std::span<const FreedPlace> taken, bool ends = false);
  // A sweep found out something since then: the index is to be told soon, for it may hear of nothing else for long.
  bool changed() const { return changed_; }

  // Of this epoch and those before no extent is without a record, but for extents().
  uint32_t swept_epoch() const { return swept_epoch_; }
  const std::vector<Leftovers::Extent>& extents() const { return extents_; }
  // extents() is from the life before and was not looked at yet.
  bool extents_due() const { return extents_due_; }
  bool take_extents_due() { return std::exchange(extents_due_, false); }
  // All of extents() was removed but for `left`; all epochs up to `swept_epoch`, where it is told, were listed. `left_bytes`: what is
  // still there of what was measured().
  void extents_swept(std::vector<Leftovers::Extent> left, std::optional<uint32_t> swept_epoch, uint64_t left_bytes);

  // Packs may hold blocks that no record names.
  bool packs_unswept() const { return packs_unswept_; }
  void packs_swept();

  // What the extents that are to be removed take, and the ranges that are to be punched, without what DeadSpace counts of them:
  // measured at a start, before anything is accepted, and told again as it falls.
  void measured(uint64_t extent_bytes, uint64_t pack_bytes);
  void packs_left(uint64_t pack_bytes);
  // What a lost record may have named, in extents and packs, is kept and counts for all of this life. At a start.
  void kept(uint64_t bytes) { space_.set_kept(bytes); }
  uint64_t bytes() const { return extent_bytes_ + pack_bytes_; }  // that are to be given back, as Space is told

 private:
  void tell_space() { space_.set_orphaned(bytes()); }

  const DeadSpace& dead_;
  Space& space_;
  uint64_t extent_bytes_ = 0, pack_bytes_ = 0;
  uint32_t swept_epoch_ = 0;
  std::vector<Leftovers::Extent> extents_;
  bool extents_due_ = false;
  bool packs_unswept_ = false, unlisted_ = false;
  bool changed_ = false;
};

}  // namespace kvcachefs

// Leftovers of earlier lives on the volume that no record names, as far as known: extents that were never journaled, or given
// up and not removed, and dead ranges of packs. The index remembers them (Leftovers in index.h) until they are swept. This holds
// what the index told, what this life found out since, and what the index will be told next.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "store/index/index.h"
#include "store/space/dead_space.h"

namespace kvcachefs {

// Used by a start, then only by the thread that commits the index: no lock.
//
// Invariant: leftovers that were measured count in Space until they are swept, or data accepted meanwhile would pass the capacity.
class OrphanNotes {
 public:
  OrphanNotes(const DeadSpace& dead, Space& space) : dead_(dead), space_(space) {}

  // At a start, from the index as opened. An index that remembers nothing keeps what an earlier call took from another one, except places. Returns
  // the places that peers may still read: they are for DeadSpace.
  std::vector<FreedPlace> take_leftovers(const Index& index);
  // The life before ended in a way that may have left dead ranges in packs, whatever the index says.
  void doubt_packs() { packs_unswept_ = true; }
  // The same for extents in epochs after swept_epoch(); holds until those are listed.
  void doubt_epochs() { unlisted_ = true; }
  bool unlisted() const { return unlisted_; }

  // Call before each commit of the index: after that commit replay does not tell what the commit holds. `taken`: places that the
  // reclaimer has in hand; those that wait for it come from DeadSpace. Extents of epochs that are to be listed anyway are not named.
  // `ends`: before the commit of a clean end, after which nothing is listed; then all extents given up are named. `may_be_read`: whether peers may
  // still read a place; empty: not known of any. Call when no batch up to the index's next_position() is on its way to DeadSpace.
  static constexpr size_t kMostHeld = 16 * 1024;  // of more such places some are not named
  using MayBeRead = std::function<bool(const FreedPlace&)>;
  // Returns about how many bytes of the index each commit takes for this.
  uint64_t note_leftovers(Index& index, std::span<const FreedPlace> taken, const MayBeRead& may_be_read = {}, bool ends = false);
  // A sweep found out something since the last commit: commit the index soon, for nothing else may cause a commit for long.
  bool changed() const { return changed_; }

  // In this epoch and those before it no extent lacks a record, except extents().
  uint32_t swept_epoch() const { return swept_epoch_; }
  const std::vector<Leftovers::Extent>& extents() const { return extents_; }
  // extents() is from the life before and was not looked at yet.
  bool extents_due() const { return extents_due_; }
  bool take_extents_due() { return std::exchange(extents_due_, false); }
  // All of extents() was removed except `left`; all epochs up to `swept_epoch`, if given, were listed. `left_bytes`: the bytes still
  // there of those given to measured().
  void extents_swept(std::vector<Leftovers::Extent> left, std::optional<uint32_t> swept_epoch, uint64_t left_bytes);

  // Whether peers read only those places of the earlier lives that DeadSpace was given, or none.
  bool places_known() const { return places_known_; }
  void now_places_are_known() { places_known_ = true; }  // nobody reads any other place now
  void doubt_places() { places_known_ = false; }

  // Packs may hold blocks that no record names.
  bool packs_unswept() const { return packs_unswept_; }
  void packs_swept();

  // The bytes of the extents to be removed, and of the ranges to be punched, without those that DeadSpace counts:
  // measured at a start, before anything is accepted, and updated as they fall.
  void measured(uint64_t extent_bytes, uint64_t pack_bytes);
  void packs_left(uint64_t pack_bytes);
  // Bytes that a lost record may have named, in extents and packs, are kept and count for all of this life. Call at a start.
  void kept(uint64_t bytes) { space_.set_kept(bytes); }
  uint64_t bytes() const { return extent_bytes_ + pack_bytes_; }  // bytes to be given back, as told to Space

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
  bool places_known_ = false;
};

}  // namespace kvcachefs

// Dead space on the volume that was not given back yet: places that no record names any more, or ever named; and the packs that
// are being written, which nobody may remove. The reclaimer takes the places once their records are synced (invariant 6), and
// reports those that it could not give back.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "store/base/mutex.h"
#include "store/base/records.h"
#include "store/base/result.h"
#include "store/base/types.h"
#include "store/index/index.h"
#include "store/space/space.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// Thread-safe. This class changes the dead bytes of Space under its own lock, or the sums would run backwards: a batch and a
// reclaim change them at once. No call blocks on the volume except forget_reclaimed().
class DeadSpace {
 public:
  explicit DeadSpace(Space& space) : space_(space) {}

  // Adds a place whose bytes no record will name: dead from now on. `object` may be invalid. Ignores places other than packed and
  // solo ones. Calls Space::hope().
  void add(ObjectId object, const Place& place);
  // Call when a batch is in the journal and in the index, which now counts `live_bytes`: `freed` is dead, and `consumed_bytes` of the
  // reservations for its bodies are live. Called by the committer alone, and by a start.
  void journaled(std::span<const FreedPlace> freed, uint64_t live_bytes, uint64_t consumed_bytes);

  // A pack is being written. Until it is closed is_open() keeps the reclaimer from removing it, however much of it died.
  void pack_opened(ExtentId extent);
  // All bodies of these packs are journaled or given up: the reclaimer looks at them once more, for everything in them may have
  // died already. Call before the commit that carried the last body counts as ended.
  void packs_closed(std::span<const ExtentId> extents);
  bool is_open(ExtentId extent) const;
  // Makes the reclaimer look at a pack again, as packs_closed() does.
  void look_again(ExtentId extent);
  // True if a place in this pack is dead and not taken yet: it may still be read, or its record is not synced. Before removing the
  // whole pack first check that no commit is under way, then call this: it knows all places that ended commits freed.
  bool mentions(ExtentId extent) const;

  // Takes all places, for the reclaimer. Their bytes count as dead until settle().
  std::vector<FreedPlace> take();
  // Puts back places that were taken and not looked at; they will be taken again.
  void put_back(std::vector<FreedPlace> places);
  // Everything taken was given back now, except `kept`. Recounts the dead bytes, tells Space, and returns by how many bytes they
  // fell since take().
  uint64_t settle(std::vector<FreedPlace> kept);
  // On a volume that cannot punch: notes a dead range of a pack, which counts as dead until the whole pack goes.
  void keep_unpunched(ExtentId extent, uint64_t bytes);
  // The extent was removed, with the unpunched ranges in it.
  void removed(ExtentId extent);

  // Whether places wait to be taken. Their bytes may be 0: the length of raw files is not known.
  bool any() const;
  // Bytes of those places, and of places taken and not settled.
  uint64_t bytes() const;
  bool has_unpunched() const;
  uint64_t unpunched_bytes() const;
  // The ranges noted by keep_unpunched(), summed by pack.
  std::vector<std::pair<ExtentId, uint64_t>> unpunched() const;
  // Calls `look` for each place that waits to be taken, under the lock of this class: `look` may take no lock.
  void for_each(const std::function<void(const FreedPlace&)>& look) const;

  // --- at a start, before any other thread uses this ---
  // Adds places freed by a batch that was replayed, or that the start itself made.
  void found(std::span<const FreedPlace> freed);
  // It is not known which batch gave up the places found; it was one before `position`.
  void found_before(JournalPosition position);
  // Call when the index is filled anew: the places will be found again.
  void clear();
  // The journals tell which places were given up, not which were reclaimed since. Forgets places in extents that are gone, and counts
  // the blocks left in the others: one `info` (of an extent file) for each extent. Without `can_punch` it also finds the dead ranges
  // that earlier lives left in packs: one `info` for each pack of the index. True if there is anything to give back. Blocks.
  using ExtentInfo = std::function<Result<FileInfo>(ExtentId, PlaceKind)>;
  bool forget_reclaimed(const Index& index, bool can_punch, const ExtentInfo& info);

 private:
  uint64_t dead_bytes() const { return freed_bytes_ + unpunched_bytes_; }  // mutex_ held

  Space& space_;
  mutable Mutex<LockRank::kPartOfSpace> mutex_;  // before the mutex of Space only; guards all below
  std::vector<FreedPlace> freed_;  // to be reclaimed once their records are synced
  uint64_t freed_bytes_ = 0;       // in whole blocks; at a start measured, which may be less
  std::unordered_map<ExtentId, uint64_t> unpunched_;
  uint64_t unpunched_bytes_ = 0;          // the sum of unpunched_
  uint64_t unpunched_bytes_at_take_ = 0;
  std::unordered_set<ExtentId> open_packs_;  // with bodies on their way
};

}  // namespace kvcachefs

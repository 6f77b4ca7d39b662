// Finds space that earlier runs left on the volume and no record names: extents that were never journaled, or given up but not removed;
// dead ranges of packs; and bytes of raw files beyond their ends. It looks after an unclean end, or when the last run had to leave some,
// and the index remembers that until it is done (space/orphan_notes.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>

#include "store/api/counters.h"
#include "store/base/clock.h"
#include "store/base/records.h"
#include "store/extent/extents.h"
#include "store/index/index.h"
#include "store/journal/journal.h"
#include "store/space/dead_space.h"
#include "store/space/orphan_notes.h"
#include "store/upkeep/pack_sweep.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// Used by a start, then by the thread that commits the index: needs no lock. Blocks on the volume.
class OrphanSweep {
 public:
  struct Parts {
    Volume& volume;
    const FileIdentity& identity;
    Extents& extents;
    const Index& index;
    DeadSpace& dead;
    OrphanNotes& orphans;
    Counters& counters;
    Clock& clock;
    std::function<Status()> sync_point;  // returns once everything accepted is journaled and synced
    bool background;                     // helper threads may be used where a call is a round trip
    uint32_t kept_epoch;  // 0, or: nothing up to this epoch is removed for lack of a record, because records may be lost
  };
  explicit OrphanSweep(Parts parts) : parts_(std::move(parts)) {}

  // Call at a start: from now on leftovers of earlier runs count in Space until they are swept. Costs one stat for each pack and for each
  // extent that no record names. `unclean`: list earlier epochs for such extents, whatever the index says.
  void count(bool unclean);
  // Call at a start: cuts raw files that are longer than the journal states to the stated length; otherwise bytes of an earlier run would
  // come back when such a file grows. Costs one stat each.
  void cut_raw_files();

  // True if an earlier run may have left something that was not searched for completely. Where nothing can be punched, leftovers in packs
  // stay until the packs go as a whole.
  bool is_left() const { return epochs_due_ || parts_.orphans.extents_due() || parts_.orphans.packs_unswept(); }
  // True if sweep_extents() has something to do, or findings are to be recorded in the index.
  bool is_due() const { return epochs_due_ || parts_.orphans.extents_due() || parts_.orphans.changed(); }
  // Call after a commit of the index that recovery never goes back behind; `dead` is what the same index point gives back.
  void sweep_extents(std::span<const FreedPlace> dead);
  // Does a part of the work on packs, so that the caller is never busy for long; not before sweep_extents().
  enum class Packs : uint8_t { kDone, kGoOn, kGaveBack };  // kGaveBack: done, and the volume has more room
  Packs sweep_packs();

 private:
  bool packs_due() const { return parts_.orphans.packs_unswept() && !pack_sweep_over_ && parts_.volume.features().punch_hole; }
  void sweep_extents(std::span<const FreedPlace> dead, bool list);
  bool list_nameless(uint32_t after, uint32_t through, std::unordered_map<ExtentId, PlaceKind>& nameless);
  bool list_due(std::unordered_map<ExtentId, PlaceKind>& nameless);
  uint64_t kept_bytes();
  uint64_t measure(PackSweep& packs);
  bool is_kept(ExtentId extent) const { return extent.epoch <= parts_.kept_epoch; }
  uint64_t allocated_bytes(ExtentId extent, PlaceKind kind) const;
  uint64_t unknown_bytes(const std::unordered_map<ExtentId, PlaceKind>& extents) const;
  Status cut_raw_file(ExtentId extent, ObjectId object);
  std::unique_ptr<PackSweep> make_pack_sweep(PackSweep::Epochs epochs);
  std::unique_ptr<PackSweep> make_pack_sweep() { return make_pack_sweep({parts_.kept_epoch, UINT32_MAX}); }

  const Parts parts_;
  bool epochs_due_ = false;  // earlier epochs are to be listed for extents that no record names
  bool pack_sweep_over_ = false;  // this run no longer looks for dead ranges of packs
  std::unique_ptr<PackSweep> pack_sweep_;
  std::optional<std::unordered_map<ExtentId, PlaceKind>> nameless_at_start_;  // until they are swept
};

}  // namespace kvcachefs

// For this room and for readers of a peer's journals: how far the epochs of a node count. The first record of an epoch may say where the earlier epochs end
// (EndsRecord): a daemon that had lost its node to another one without knowing it may have appended behind that position.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "store/base/records.h"
#include "store/base/result.h"
#include "store/journal/journal.h"
#include "store/journal/epoch_walk.h"
#include "store/journal/journal_file.h"

namespace kvcachefs {

class EpochEnds {
 public:
  // Reads the beginnings of those of `epochs` (ascending) that come after `after`: enough to judge positions in epoch `after` or later.
  // Errors are those of reading.
  static Result<EpochEnds> read(Volume& volume, const FileIdentity& identity, const std::vector<uint32_t>& epochs, uint32_t after);
  // Does the same for one epoch that is open already. Call from the last epoch backwards.
  Status look_at(uint32_t epoch, const EpochWalk& walk);

  // Whether the epoch's first record says that readers of the journals go on from a checkpoint of this epoch, or a later one.
  bool begins_with_checkpoint(uint32_t epoch) const { return from_checkpoint_.contains(epoch); }
  // Where the epoch ends; nullopt: no record says so, and all its valid frames count. {0, 0}: nothing of it counts.
  std::optional<JournalLink> limit(uint32_t epoch) const;
  // Whether everything before `position` counts.
  bool counts(JournalPosition position) const;

 private:
  // Descending by epoch and by position: each takes back more than its predecessor.
  struct Fence {
    uint32_t from_epoch = 0;  // of the epochs before this one ...
    JournalPosition end;      // ... nothing counts from here on
  };
  std::vector<Fence> fences_;
  std::set<uint32_t> from_checkpoint_;
};

}  // namespace kvcachefs

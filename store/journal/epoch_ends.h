// For this room, and for those who follow a peer's journals: how far the epochs of a node count. The first record of an epoch may say where those before it end
// (EndsRecord): a daemon that lost its node to another one, and did not know yet, may have appended behind that.
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
  // Of epochs that end none before `after` + 1: reads the beginning of each of `epochs` (ascending) that comes after that one.
  // Errors are those of reading.
  static Result<EpochEnds> read(Volume& volume, const FileIdentity& identity, const std::vector<uint32_t>& epochs, uint32_t after);
  // The same of one that is open already: from the last one backwards.
  Status look_at(uint32_t epoch, const EpochWalk& walk);

  // Whether it begins with a record which says that who follows the journals goes on from a checkpoint of this epoch, or a later one.
  bool begins_with_checkpoint(uint32_t epoch) const { return from_checkpoint_.contains(epoch); }
  // Where the epoch ends; nullopt: nobody said so, and all that is good of it counts. {0, 0}: nothing of it counts.
  std::optional<JournalLink> limit(uint32_t epoch) const;
  // Whether all before this position counts.
  bool counts(JournalPosition position) const;

 private:
  // Descending by epoch and by position: each takes back more than the one before it.
  struct Fence {
    uint32_t from_epoch = 0;  // of the epochs before this one ...
    JournalPosition end;      // ... nothing counts from here on
  };
  std::vector<Fence> fences_;
  std::set<uint32_t> from_checkpoint_;
};

}  // namespace kvcachefs

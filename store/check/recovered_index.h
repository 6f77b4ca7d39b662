// Makes the index as the next mount would have it: from checkpoint and journals in a scratch directory, or by catching
// up a copy of the existing index.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "store/check/body_check.h"
#include "store/check/offline_node.h"
#include "store/index/index.h"
#include "store/journal/journal.h"

namespace kvcachefs {

struct NodeHistory {
  std::vector<JournalFileInfo> journals;
  std::optional<CheckpointInfo> checkpoint;
  std::vector<std::string> checkpoint_problems;
  // Epochs whose journals were written in another boot of the host: bodies that were not synced then may not have reached
  // the medium.
  std::unordered_set<uint32_t> other_boot;
};
Result<NodeHistory> read_history(const OfflineNode& node);

struct RecoveredIndex {
  std::unique_ptr<Index> index;
  ReplayStatistics statistics;
  bool unclean = false;              // there are batches that no synced record covers
  std::map<uint32_t, JournalPosition> reached;  // the last position of each epoch
  std::map<uint32_t, bool> is_repair;           // by epoch: whether all that it has is what a repair journals, which leaves the index alone
  std::vector<std::string> impossible;  // records that no daemon writes, left out as a mount does
  std::vector<std::string> put_right;   // directories that were no tree at the end of an epoch
  std::vector<std::string> dropped;     // bodies that a mount would find absent after the host went down
};
// Makes a fresh index in `directory`, from the checkpoint and the journals after it.
Result<RecoveredIndex> recover_index(const OfflineNode& node, const NodeHistory& history, const std::string& directory,
                                     BodyChecker& bodies);

// The existing index, copied to `directory` and caught up. If there is none, `index` is null and `wrong` is empty. `wrong` tells why it must
// not be used. `stale` tells that the last mount did not use it, though it may be right as far as it goes: that mount has its index elsewhere.
struct ExistingIndex {
  std::unique_ptr<Index> index;
  std::optional<Leftovers> leftovers;  // no value: those in the index are of an earlier time, and later ones are not known
  std::string wrong, stale;
  JournalPosition position;       // before it was caught up
  bool is_behind_damage = false;  // journals after that position are damaged
  bool is_past_journals = false;  // that position lies behind the existing journals, or in a missing one: journals were lost
  bool closed_cleanly = true;  // false: the daemon that had it open died; it may have begun files after its last record
};
Result<ExistingIndex> catch_up_existing_index(const OfflineNode& node, const NodeHistory& history, const RecoveredIndex& recovered,
                                              const std::string& directory, BodyChecker& bodies);

// Whether the journals may lack records that the index had read: they are damaged, end before its position, or do not name a body that is on
// the volume as the index says. For some journals that end early the last is the only sign.
Result<bool> may_lack(const OfflineNode& node, const NodeHistory& history, const RecoveredIndex& recovered, const ExistingIndex& existing, BodyChecker& bodies);

// Returns one line for each row that differs between the two.
Result<std::vector<std::string>> index_differences(const Index& right, const Index& found);

}  // namespace kvcachefs

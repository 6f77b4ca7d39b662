// The index as the next mount would have it: made from checkpoint and journals in a scratch directory, or by catching
// up a copy of the existing one.
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
  // The host went down after the journals of these epochs were written: what they had not synced may not have reached the
  // medium.
  std::unordered_set<uint32_t> other_boot;
};
Result<NodeHistory> read_history(const OfflineNode& node);

struct RecoveredIndex {
  std::unique_ptr<Index> index;
  ReplayStatistics statistics;
  bool unclean = false;              // batches that no synced record covers
  std::map<uint32_t, JournalPosition> reached;  // of each epoch
  std::vector<std::string> impossible;  // records that no daemon writes, left out as a mount does
  std::vector<std::string> put_right;   // directories that were no tree at the end of an epoch
  std::vector<std::string> dropped;     // bodies that a mount would find absent after the host went down
};
// A fresh one in `directory`, from the checkpoint on.
Result<RecoveredIndex> recover_index(const OfflineNode& node, const NodeHistory& history, const std::string& directory,
                                     BodyChecker& bodies);

// The existing index, copied to `directory` and caught up. Without one: neither. `wrong` says why it must not be used.
struct ExistingIndex {
  std::unique_ptr<Index> index;
  std::optional<Leftovers> leftovers;  // none: it tells of an earlier time, and not of what was left since
  std::string wrong;
  JournalPosition position;       // before it was caught up
  bool is_behind_damage = false;  // journals that come after that are damaged
  bool is_past_journals = false;  // that lies behind the journals that are there, or in one that is not: they were lost
  bool closed_cleanly = true;  // false: the daemon that had it open died. It may have begun files after its last record
};
Result<ExistingIndex> catch_up_existing_index(const OfflineNode& node, const NodeHistory& history,
                                              const std::string& directory, BodyChecker& bodies);

// Whether the journals may lack what the index had read of them: they are damaged, end before that, or do not tell of a body that is on the volume
// as the index says. Of some journals that end early it cannot be seen otherwise.
Result<bool> may_lack(const OfflineNode& node, const NodeHistory& history, const RecoveredIndex& recovered, const ExistingIndex& existing, BodyChecker& bodies);

// One line for each row that is not the same in both.
Result<std::vector<std::string>> index_differences(const Index& right, const Index& found);

}  // namespace kvcachefs

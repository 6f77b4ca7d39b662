// The offline check of one node of a volume: checks everything the next mount would rely on, and every byte it would serve.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "store/base/result.h"
#include "store/check/offline_node.h"

namespace kvcachefs {

struct CheckOptions {
  bool repair = false;
  bool remove_orphans = false;  // with repair: also removes extents that are kept because a lost record may have named them
  bool without_index = false;  // with repair: if records are lost and there is no index, there is none elsewhere that may have them
  bool journals_only = false;  // checks journals and index only
  // Receives the bytes of bodies read so far, and in all. Called from the checking thread.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress;
};

struct Finding {
  std::string text;  // the error, the object and its path, the place on the volume
  bool repaired = false;
  bool lost = false;  // records that are lost: when the check returns, the repair has put a checkpoint of all else in their place. Told this once: no later check finds them
};

struct CheckReport {
  std::vector<Finding> findings;   // errors
  std::vector<std::string> notes;  // no errors: things that a crash left and the next mount clears away
  uint64_t journal_files = 0, batches = 0, records = 0, checkpoint_records = 0;
  uint64_t files = 0, directories = 0, names = 0, quarantined = 0;
  uint64_t bodies_read = 0, bytes_read = 0;
  uint64_t bad_bodies = 0, missing_extents = 0, orphan_extents = 0, index_differences = 0;
  bool index_has_more = false;  // the journals are damaged, end early or are missing, and the index has more; also if it is not believed
  uint64_t packs_with_dead_ranges = 0, dead_range_bytes = 0;  // as found, before they were given back

  uint64_t errors_left() const;  // includes those of lost records
  uint64_t errors_of_lost() const;
};

// Changes nothing on the volume without `repair` (it makes a scratch index beside the index, and removes it). An error:
// the node could not be checked. Repair puts bad bodies into quarantine, removes extents that nothing names, punches dead
// ranges of packs (unless the next mount has to do it), replaces damaged journals by a checkpoint, and removes an index that is wrong or older than that; errors that it cannot repair stay in the report.
Result<CheckReport> check_node(OfflineNode& node, const CheckOptions& options);

}  // namespace kvcachefs

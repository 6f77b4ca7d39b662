// What a batch of journal records does to the index: pure logic over rows, no LMDB, no locks.
#pragma once

#include <map>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "store/base/records.h"
#include "store/base/result.h"
#include "store/index/index.h"
#include "store/index/overlay.h"
#include "store/index/rows.h"

namespace kvcachefs {

// The index as it was before the batch.
class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual Result<std::shared_ptr<const ObjectRow>> read_object(ObjectId id) const = 0;  // null: none
  // Decodes nothing, for a row may be large (attributes, the target of a symlink).
  virtual Result<bool> has_object(ObjectId id) const = 0;
  virtual Result<NameRow> read_names(NameKey key) const = 0;                            // empty: none
  virtual Result<ExtentUsage> read_extent(ExtentId id) const = 0;                       // no bodies: none
  // Whether `directory` has a name once the rows in `above` hold.
  virtual Result<bool> has_names(ObjectId directory, const NameRows::Rows& above) const = 0;
  virtual EpochHighs read_epoch(uint32_t epoch) const = 0;
};

struct BatchEffect {
  Layer rows;
  IndexTotals totals;
  std::vector<FreedPlace> freed;
};

// Applies one batch; `after` is the journal position behind it. The only errors are those of reading rows, and they change nothing.
// Deterministic: a replay gives the same rows.
Result<BatchEffect> apply_batch(const Batch& batch, JournalPosition after, const RowSource& before, const IndexTotals& totals);

// Adds or subtracts one object's share of the totals; the bulk load uses this too.
void add_to_totals(const ObjectRecord& object, IndexTotals& totals);
void subtract_from_totals(const ObjectRecord& object, IndexTotals& totals);
// Whether a place takes space on the volume; how much it takes; adds its share to an extent's usage.
bool is_on_volume(const Place& place);
uint64_t space_of(const Place& place);
void add_to_extent(ObjectId object, const Place& place, ExtentUsage& usage);

}  // namespace kvcachefs

// Estimates how much the next commit adds to the file of an index, from the rows that it writes and the pages that the file has. As close as is cheap,
// and rather too much: the store reserves this much of the capacity until the commit. replica_test measures it.
#pragma once

#include <cstdint>
#include <unordered_set>

#include "store/index/leftovers.h"
#include "store/index/overlay.h"

namespace kvcachefs {

// The file as of its last commit.
struct IndexPages {
  // Pages that hold several rows, and branch pages above them: a commit rewrites those that it changes.
  uint64_t leaves_of_names = 0, leaves_of_objects = 0, other_leaves = 0, branches = 0;
  uint64_t unused_bytes = 0;    // free
  uint64_t reusable_bytes = 0;  // part of unused_bytes that the next commit may write; the commit after it may write the rest
};

class IndexGrowth {
 public:
  void add(const Layer& rows);
  void add(const Leftovers& leftovers) { add_row(leftovers.row_bytes()); }
  uint64_t bytes(const IndexPages& pages) const;

 private:
  void add_row(uint64_t bytes);
  std::unordered_set<uint64_t> neighbours_;  // of objects
  uint64_t names_ = 0, others_ = 0;
  uint64_t small_bytes_ = 0, large_bytes_ = 0;
};

}  // namespace kvcachefs

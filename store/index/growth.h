// How much the file of an index grows by the next commit, told from the rows that it writes and the pages that the file has. As close as is cheap, and
// rather too much: so much is set aside of a capacity meanwhile. replica_test measures it.
#pragma once

#include <cstdint>
#include <unordered_set>

#include "store/index/overlay.h"

namespace kvcachefs {

// The file, as it was committed last.
struct IndexPages {
  // Pages with several rows, and those that lead to them: a commit writes anew which of them it changes.
  uint64_t leaves_of_names = 0, leaves_of_objects = 0, other_leaves = 0, branches = 0;
  uint64_t unused_bytes = 0;    // nothing is in them
  uint64_t reusable_bytes = 0;  // ... and the next commit may write them; the others those behind it
};

class IndexGrowth {
 public:
  void add(const Layer& rows);
  uint64_t bytes(const IndexPages& pages) const;

 private:
  void add_row(uint64_t bytes);
  std::unordered_set<uint64_t> neighbours_;  // of objects
  uint64_t names_ = 0, others_ = 0;
  uint64_t small_bytes_ = 0, large_bytes_ = 0;
};

}  // namespace kvcachefs

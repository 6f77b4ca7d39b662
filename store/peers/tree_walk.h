// Walks the names below a directory of one node's index, each directory after the names in it. Iterative: that node decides how deep its tree is, and
// a volume that is damaged, or was written by another program, may hold a tree without end.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

#include "store/base/result.h"
#include "store/index/index.h"

namespace kvcachefs {

inline bool is_directory(const NameEntry& entry) { return S_ISDIR(entry.type_bits); }

// For one thread, while nobody changes the index.
class TreeWalk {
 public:
  explicit TreeWalk(const Index& index) : index_(index) {}

  // Descends: next() gives the names of `directory`, then the rest of the one above. False: it was entered before, so this is no tree.
  bool enter(ObjectId directory);
  // The next name of the innermost directory entered. None: it has no more, and is left.
  Result<std::optional<NameEntry>> next();

 private:
  static constexpr size_t kNamesAtOnce = 256;
  struct Level {
    ObjectId directory;
    std::vector<NameEntry> page;
    size_t at = 0;
    uint64_t after = 0;
    bool is_last = false;  // whether `page` is the last
  };

  const Index& index_;
  std::vector<Level> levels_;
  std::unordered_set<ObjectId> entered_;
};

}  // namespace kvcachefs

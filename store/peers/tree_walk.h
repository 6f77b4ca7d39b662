// The names below a directory of one node's index, each directory after the names in it. Iterative: how deep a tree is says its node, and
// a volume that is damaged, or was written by somebody else, may hold one that has no end.
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

  // What follows is in there, then what is left of the one above. False: it was entered before, so this is no tree.
  bool enter(ObjectId directory);
  // The next name of the directory that was entered last and not left. None: that was all, and it is left.
  Result<std::optional<NameEntry>> next();

 private:
  static constexpr size_t kNamesAtOnce = 256;
  struct Level {
    ObjectId directory;
    std::vector<NameEntry> page;
    size_t at = 0;
    uint64_t after = 0;
    bool is_last = false;  // page
  };

  const Index& index_;
  std::vector<Level> levels_;
  std::unordered_set<ObjectId> entered_;
};

}  // namespace kvcachefs

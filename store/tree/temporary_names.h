// Which names clients give to files that they are still writing, to rename them once they are whole. Only under such a name does each of
// several writers get a version of its own (tree_versions.cc): a lock file, a log or a database is one file for all.
//
// A name is temporary if one of its words says so ("c.tmp", "x.part"), or if most files of its kind were renamed away so far: of
// the same extension, or, for names without one, of the same directory. It never is if a word says that it is locked ("x.lock",
// "x.pid"). What was learned is kept in RAM.
//
// Thread-safe, one leaf mutex. Nothing blocks.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>

#include "store/base/mutex.h"
#include "store/base/types.h"

namespace kvcachefs {

class TemporaryNames {
 public:
  // Call when a file is created under the name. Returns whether the name is temporary.
  bool created(ObjectId parent, std::string_view name);
  // Call when a file that was created here is renamed.
  void renamed(ObjectId parent, std::string_view from, ObjectId new_parent, std::string_view to);

  // Whether a file of this name is about to be renamed, by the name alone; for eviction and read-ahead, where a wrong guess costs room or order, not a version. True for
  // the names above, and for those with a number or random letters behind ("c.tmp1a2b3c4d", "tmpx3k9").
  static bool may_be_renamed(std::string_view name);
  // The same, unless many files of its kind were made and hardly any renamed: the word is a part of a final name ("<hash>_-tmp-model_0").
  bool is_expected_to_be_renamed(ObjectId parent, std::string_view name) const;
  // Whether the presence of a file of this name is a lock.
  static bool is_lock(std::string_view name);

 private:
  static constexpr size_t kMostKinds = 512;
  static constexpr uint32_t kEnough = 4;      // so many files of a kind were renamed before it counts as temporary
  static constexpr uint32_t kMostCounted = 1024;
  static constexpr uint32_t kKept = 64;  // so many files of a kind were made, and not one in 16 renamed: they keep their names
  struct Kind {
    uint32_t created = 0, renamed = 0;
  };
  static uint64_t kind_of(ObjectId parent, std::string_view name);

  mutable LeafMutex mutex_;  // a leaf
  std::unordered_map<uint64_t, Kind> kinds_;
};

}  // namespace kvcachefs

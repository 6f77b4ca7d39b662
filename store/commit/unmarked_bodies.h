// The bodies journaled since the last mark of the journal, by extent.
#pragma once

#include <unordered_map>
#include <vector>

#include "store/base/mutex.h"
#include "store/base/types.h"

namespace kvcachefs {

// A mark states that everything before it is on the medium. No mark may be made while one of these bodies lies in an extent of which a sync
// failed (invariant 3 of the store). Thread-safe; mutex_ is a leaf.
class UnmarkedBodies {
 public:
  void add(ExtentId extent, ObjectId object);
  std::vector<ObjectId> in(ExtentId extent) const;
  // Replaces the list of the extent.
  void set(ExtentId extent, std::vector<ObjectId> objects);
  void clear();

 private:
  mutable LeafMutex mutex_;
  std::unordered_map<ExtentId, std::vector<ObjectId>> bodies_;
};

}  // namespace kvcachefs

// Bodies that a start kept though the volume did not give their bytes to verify them.
#pragma once

#include <unordered_set>
#include <utility>

#include "store/base/mutex.h"
#include "store/base/types.h"
#include "store/commit/quarantine.h"
#include "store/index/index.h"
#include "store/load/body_reader.h"
#include "store/tree/tree.h"

namespace kvcachefs {

// Such a body is read with its checksums, is not passed through, and is looked at again. Thread-safe; mutex_ is a leaf.
class UnverifiedBodies {
 public:
  struct Parts {
    Index& index;
    Tree& tree;
    const BodyReader& reader;
    Quarantine& quarantine;
  };
  UnverifiedBodies(Parts parts, std::unordered_set<ObjectId> found) : parts_(parts), bodies_(std::move(found)) {}

  bool contains(ObjectId id) const;
  // Reads them once more, for the next start trusts what this one's checkpoint holds; what is not whole goes into quarantine. Blocks on
  // the volume. By one thread, the keeper, with no lock held.
  void look_again(const BodyReader::Memory& memory);

 private:
  const Parts parts_;
  mutable LeafMutex mutex_;
  std::unordered_set<ObjectId> bodies_;
};

}  // namespace kvcachefs

// Bodies that a start kept although the volume did not give their bytes to verify them.
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

// Such a body is verified whenever it is read, is not passed through, and is checked again later. Thread-safe; mutex_ is a leaf.
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
  // Reads them once more; a body that is not whole goes into quarantine. Needed because the next start trusts the bodies in this one's
  // checkpoint. Blocks on the volume. Called by one thread, the keeper, with no lock held.
  void look_again(const BodyReader::Memory& memory);

 private:
  const Parts parts_;
  mutable LeafMutex mutex_;
  std::unordered_set<ObjectId> bodies_;
};

}  // namespace kvcachefs

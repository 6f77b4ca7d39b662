#include "store/load/unverified_bodies.h"

#include <mutex>
#include <vector>

namespace kvcachefs {

using Wholeness = BodyReader::Wholeness;

bool UnverifiedBodies::contains(ObjectId id) const {
  std::lock_guard lock(mutex_);
  return bodies_.contains(id);
}

void UnverifiedBodies::look_again(const BodyReader::Memory& memory) {
  std::vector<ObjectId> ids;
  {
    std::lock_guard lock(mutex_);
    ids.assign(bodies_.begin(), bodies_.end());
  }
  for (ObjectId id : ids) {
    auto record = parts_.index.find_object(id);
    if (!record) continue;
    const Wholeness found = *record ? parts_.reader.wholeness(**record, memory) : Wholeness::kWhole;
    if (found == Wholeness::kUnknown) continue;
    auto object = found == Wholeness::kAbsent ? parts_.tree.get(id) : Result<ObjectPtr>(nullptr);
    const Tree::ForgetAfter forget(parts_.tree, object ? *object : nullptr);
    if (object && *object) parts_.quarantine.put(*object, (*record)->body.version, "it was not on the medium when the machine stopped");
    std::lock_guard lock(mutex_);
    bodies_.erase(id);
  }
}

}  // namespace kvcachefs

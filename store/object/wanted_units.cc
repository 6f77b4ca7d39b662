#include "store/object/wanted_units.h"

#include <algorithm>

namespace kvcachefs {

void WantedUnits::release() {
  const ObjectPtr object = std::exchange(object_, nullptr);
  if (!object) return;
  const auto lock = object->lock();
  object->wanted.erase(std::find(object->wanted.begin(), object->wanted.end(), range_));
}

}  // namespace kvcachefs

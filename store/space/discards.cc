#include "store/space/discards.h"

#include "store/base/log.h"
#include "store/extent/extents.h"

namespace kvcachefs {

void Discards::remove_later(ExtentId id, PlaceKind kind, uint64_t reserved_bytes) {
  parts_.space.hope();
  parts_.work.add([this, id, kind, reserved_bytes] {
    if (Status status = parts_.extents.remove(id, kind); !status) log::warn("unused extent: {}", status.error().message);
    parts_.space.release(reserved_bytes);
  });
}

}  // namespace kvcachefs

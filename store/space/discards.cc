#include "store/space/discards.h"

#include "store/base/log.h"
#include "store/extent/extents.h"

namespace kvcachefs {

void Discards::remove_later(ExtentId id, PlaceKind kind, uint64_t reserved_bytes) {
  parts_.space.hope();
  parts_.work.add([this, id, kind, reserved_bytes] {
    const Status status = parts_.extents.remove(id, kind);
    if (!status && status.error().code != Code::kNotFound) {
      log::warn("unused extent, which is removed later: {}", status.error().message);
      parts_.dead.add({}, Place{kind, id, 0, reserved_bytes});  // before the release: so the bytes count all the time
    }
    parts_.space.release(reserved_bytes);
  });
}

}  // namespace kvcachefs

#include "store/requests/room_for_records.h"

#include <fmt/format.h>

#include "store/base/units.h"

namespace kvcachefs {

std::unexpected<Error> RoomForRecords::refuse(const std::string& what) {
  parts_.counters.errors_no_space.fetch_add(1, std::memory_order_relaxed);
  parts_.space_waiters.ask();  // so that the next try finds room
  if (auto other = parts_.refusals.gone()) return std::unexpected(*std::move(other));
  return fail(Code::kNoSpace, fmt::format("{}: the capacity of {} is used up", what, format_size(parts_.space.limit_bytes())));
}

}  // namespace kvcachefs

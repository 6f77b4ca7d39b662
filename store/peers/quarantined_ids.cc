#include "store/peers/quarantined_ids.h"

#include <cstdint>

namespace kvcachefs {

Result<std::shared_ptr<QuarantinedIds>> quarantined_in(const Index& index, const std::function<Status()>& meanwhile) {
  constexpr uint64_t kRowsBetween = 1000;
  auto ids = std::make_shared<QuarantinedIds>();
  if (index.totals().quarantined == 0) return ids;
  uint64_t rows = 0;
  Status goes_on;
  const Status scanned = index.scan_objects([&](ObjectRecord&& row) {
    if (row.body.quarantined) ids->add(row.id);
    if (++rows % kRowsBetween == 0) goes_on = meanwhile();
    return goes_on.has_value() && !ids->has_all();
  });
  KVC_TRY(goes_on);
  if (!scanned) ids->add_all();  // the row of each object decides, or tells of the damage
  return ids;
}

}  // namespace kvcachefs

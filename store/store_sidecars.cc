// What probes of sidecars tell of their bodies.
#include <sys/stat.h>

#include "store/chain/sidecar.h"
#include "store/store_impl.h"

namespace kvcachefs {

std::optional<StoreImpl::ProbedBody> StoreImpl::body_probed_by(ObjectId parent, std::string_view name, bool there) const {
  ProbedBody body{.name = body_of_sidecar(name), .id = {}, .size_bytes = 0};
  if (body.name.empty()) return std::nullopt;
  const auto found = find_name(parent, body.name);
  // One without the other: it is being written (who writes a sidecar looks its name up, too), or it is no sidecar at all.
  if (!found || found->has_value() != there) return std::nullopt;
  if (!there) return body;
  const auto stat = stat_locked((*found)->child);
  if ((*found)->type_bits != S_IFREG || !stat) return std::nullopt;
  body.id = (*found)->child;
  body.size_bytes = stat->size_bytes;
  return body;
}

}  // namespace kvcachefs

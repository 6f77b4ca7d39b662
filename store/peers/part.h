// One node's part of the volume, as the view of names reads it. Ids in it are that node's own, without an ordinal.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "store/base/records.h"
#include "store/base/types.h"
#include "store/index/index.h"
#include "store/peers/quarantined_ids.h"
#include "store/peers/statements.h"

namespace kvcachefs {

struct Part {
  uint32_t ordinal = 0;  // on this mount; 0: this node
  std::string node;
  std::shared_ptr<const Index> index;
  std::shared_ptr<const Statements> statements;
  std::shared_ptr<const QuarantinedIds> quarantined = {};  // null: not known
};

// A batch of a peer's journal that is being applied to its part.
struct PeerBatch {
  const Batch& batch;
  JournalPosition after;
  std::vector<ObjectId> replaced;  // objects that had, until then, a name that the batch gives to another object; in the peer's ids
  std::vector<ObjectId> changed = {};  // objects that get other bytes than they had, not the same ones at another place; in the peer's ids
};

// Convert between the ids of a node and those of this mount. The roots of all nodes are one.
inline ObjectId id_here(uint32_t ordinal, ObjectId its) {
  return its == kRootId || !its.valid() ? its : ObjectId::make(ordinal, its.epoch(), its.number());
}
inline ObjectId id_there(ObjectId here) { return ObjectId::make(0, here.epoch(), here.number()); }

inline Place place_here(uint32_t ordinal, Place its) {
  its.extent = its.extent.here(ordinal);
  return its;
}

inline SuccessorsRecord successors_here(uint32_t ordinal, SuccessorsRecord row) {
  row.id = id_here(ordinal, row.id);
  row.predecessor = id_here(ordinal, row.predecessor);
  for (auto& [next, seen] : row.successors) next = id_here(ordinal, next);
  return row;
}

}  // namespace kvcachefs

// Whether this volume may have other nodes, and what of them the store tells and asks.
#pragma once

#include <optional>

#include "store/base/records.h"
#include "store/base/result.h"
#include "store/store_rooms.h"

namespace kvcachefs {

// No state of its own. Before follow() only on the thread that starts the store; then on any, with no lock of the store held.
class OtherNodes {
 public:
  explicit OtherNodes(StoreRooms& rooms) : rooms_(rooms) {}

  // A local file system is one machine's, unless the options name this node.
  bool may_join() const;
  // Others may come, or are there. Blocks on the volume.
  bool are_possible() const;
  // A step of a start, where there may be some: builds what follows them.
  Status follow();

  bool are_known() const { return rooms_.peers_ && rooms_.peers_->has_peers(); }
  Status check_may_change(const Object& object) const;  // kReadOnly: it is of another node
  std::optional<SuccessorsRecord> successors_of(ObjectId id) const;
  uint32_t generation_of(ObjectId id) const;
  void tell(StoreStatus& status) const;

 private:
  bool is_unanswered(uint32_t ordinal) const;

  StoreRooms& rooms_;
};

}  // namespace kvcachefs

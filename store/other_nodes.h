// Whether this volume may have other nodes, and what the store reports of them and asks about their objects.
#pragma once

#include <functional>
#include <optional>

#include "store/base/records.h"
#include "store/base/result.h"
#include "store/store_rooms.h"

namespace kvcachefs {

// No state of its own. Before follow() only the thread that starts the store calls it; then any thread, with no lock of the store held.
class OtherNodes {
 public:
  explicit OtherNodes(StoreRooms& rooms) : rooms_(rooms) {}

  // Whether other nodes may join. A local file system belongs to one machine, unless the options name this node.
  bool may_join() const;
  // Whether other nodes may join, or are there already. Blocks on the volume.
  bool are_possible() const;
  // A step of a start, if other nodes are possible: builds the PeerFollower, which follows them.
  Status follow();

  bool are_known() const { return rooms_.peers_ && rooms_.peers_->has_peers(); }
  Status check_may_change(const Object& object) const;  // kReadOnly: the object belongs to another node
  std::optional<SuccessorsRecord> successors_of(ObjectId id) const;
  uint32_t generation_of(ObjectId id) const;
  // As Store::await_catching_up().
  void await_catching_up(ObjectId id, std::move_only_function<void()> then);
  void tell(StoreStatus& status) const;

 private:
  bool is_unanswered(uint32_t ordinal) const;

  StoreRooms& rooms_;
};

}  // namespace kvcachefs

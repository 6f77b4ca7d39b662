// Objects of peers that were in use here when their nodes gave them up or gave them another body. While they are read here the node
// that has their bytes is told so (ACKS), and does not give the bytes back. That node knows a place by the object that had it last: if a newer
// object got the place of one that is read here (the same bytes were stored again), ACKS name the newer one, too.
//
// No lock of its own: the caller holds the Tree's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>
#include <vector>

#include "store/base/types.h"

namespace kvcachefs {

class GivenUpObjects {
 public:
  using IsRead = std::function<bool(ObjectId)>;

  // `place`: of the body that is read here. An object may have several, of states that its node gave up one after the other.
  void add(ObjectId id, const Place& place);
  // Call when a peer's journal gives the object this place, with the peer's ordinal in it, as in add().
  void has_place(ObjectId id, const Place& place);
  void forget_node(uint32_t ordinal);
  // The objects of that node that are still read, and those that have their places now. In its ids, ascending; about `most`. Forgets the others.
  std::vector<ObjectId> still_read(uint32_t ordinal, size_t most, const IsRead& is_read);
  // Forgets objects of all nodes that are not read any more, if many were added since the last time.
  void drop_read(const IsRead& is_read);
  size_t size() const { return objects_.size(); }

 private:
  struct Object {
    std::vector<Place> places;
    std::vector<ObjectId> heirs;
  };
  using Objects = std::map<ObjectId, Object>;
  struct Where {
    ExtentId extent;
    uint64_t offset = 0;
    bool operator==(const Where&) const = default;
  };
  struct HashOfWhere {
    size_t operator()(const Where& where) const noexcept {
      return std::hash<ExtentId>()(where.extent) ^ static_cast<size_t>(where.offset * 0x9e3779b97f4a7c15ULL);
    }
  };
  Objects::iterator erase(Objects::iterator at);

  Objects objects_;
  std::unordered_multimap<Where, ObjectId, HashOfWhere> by_place_;
  size_t drop_at_ = 64;
};

}  // namespace kvcachefs

// Objects of peers that their nodes have given up, or given another body, while they were in use here. As long as they are read, the node
// that has their bytes is told so, and does not give the bytes back. It knows these by the object that had the place last: where a newer
// object has got the place of one that is read here (the same bytes were stored again), that is told, too.
//
// No lock of its own: under that of the Tree.
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

  // `place` is that of the body that is read here.
  void add(ObjectId id, const Place& place);
  // A peer's journal says that the object has this place, which is told with the ordinal of the peer, as that of add().
  void has_place(ObjectId id, const Place& place);
  void forget_node(uint32_t ordinal);
  // Of the node: what is read still, with what has its place now. In its ids, ascending; about `most`. What is not read any more is forgotten.
  std::vector<ObjectId> still_read(uint32_t ordinal, size_t most, const IsRead& is_read);
  // Forgets what is not read any more, of all nodes, if many came since that was done last.
  void drop_read(const IsRead& is_read);
  size_t size() const { return objects_.size(); }

 private:
  struct Object {
    Place place;
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

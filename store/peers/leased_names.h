// Names that clients of this node were told of a moment ago, and that the peer that had them took away to make room: what was promised is
// seen for a while longer (README, "Leases"). Each is of one file; which they are, and when they end, the Tree decides.
//
// No lock of its own: under that of the view. Bounded by who adds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/base/types.h"
#include "store/index/index.h"

namespace kvcachefs {

class LeasedNames {
 public:
  struct Lease {
    ObjectId child;      // a file, with the ordinal of its node
    ObjectId member;     // the directory as that node has it, with the ordinal
    ObjectId directory;  // by which clients know it; invalid: not known
    uint64_t bytes = 0;
    int64_t went_ns = 0, until_ns = 0, most_ns = 0;  // monotonic: its node took it, as was read here; it ends, unless it is asked for again; in any case
  };

  bool empty() const { return names_.empty(); }
  size_t size() const { return names_.size(); }
  uint64_t bytes() const { return bytes_; }
  bool has(ObjectId child) const { return by_child_.contains(child); }

  // False: the file has one, or another has it on this name.
  bool add(std::string_view name, const Lease& lease);
  bool remove(ObjectId child);
  // What is seen under a name of the directory that consists of `members`.
  std::optional<NameEntry> find(std::span<const ObjectId> members, std::string_view name) const;
  // ... with after < cookie <= up_to, ascending.
  std::vector<NameEntry> list(std::span<const ObjectId> members, uint64_t after, uint64_t up_to) const;
  bool has_name(std::string_view name) const;  // in whichever directory
  void for_each(const std::function<void(const std::string& name, const Lease&)>& visit) const;
  // Those that end now: `renew` tells until when one that is over by its own time goes on.
  std::vector<ObjectId> over(int64_t now_ns, const std::function<int64_t(const Lease&)>& renew);
  std::vector<ObjectId> went_before(int64_t at_ns) const;
  std::vector<ObjectId> of_node(uint32_t ordinal) const;

 private:
  using Key = std::tuple<uint64_t, std::string, ObjectId>;  // cookie, name, member
  std::map<Key, Lease> names_;
  std::unordered_map<ObjectId, Key> by_child_;
  std::unordered_map<ObjectId, std::map<std::pair<uint64_t, std::string>, ObjectId>> by_member_;  // cookie and name: child
  uint64_t bytes_ = 0;
};

}  // namespace kvcachefs

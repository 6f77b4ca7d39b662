// Names that clients of this node were told of a moment ago, and that their peer has since evicted: clients see them for a while
// longer, as promised (../tree/README.md, "Leases"). Each is a name of one file. The Tree decides which names are leased, and when a lease ends.
//
// No lock of its own: the caller holds the view's lock. The caller that adds names bounds their number.
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
    ObjectId child;      // a file, with its node's ordinal
    ObjectId member;     // the directory on that node, with the ordinal
    ObjectId directory;  // the id by which clients know the directory; invalid: not known
    uint64_t bytes = 0;
    int64_t went_ns = 0, until_ns = 0, most_ns = 0;  // monotonic: when the eviction was read here; end unless asked for again; end in any case
  };

  bool empty() const { return names_.empty(); }
  size_t size() const { return names_.size(); }
  uint64_t bytes() const { return bytes_; }
  bool has(ObjectId child) const { return by_child_.contains(child); }

  // False: the file is leased already, or another file has a lease on this name.
  bool add(std::string_view name, const Lease& lease);
  bool remove(ObjectId child);
  // The leased file seen under a name of the directory that consists of `members`.
  std::optional<NameEntry> find(std::span<const ObjectId> members, std::string_view name) const;
  // The leased names of that directory with after < cookie <= up_to, ascending.
  std::vector<NameEntry> list(std::span<const ObjectId> members, uint64_t after, uint64_t up_to) const;
  bool has_name(std::string_view name) const;  // in any directory
  void for_each(const std::function<void(const std::string& name, const Lease&)>& visit) const;
  // The leases that end now. `renew` returns until when a lease whose time is up goes on.
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

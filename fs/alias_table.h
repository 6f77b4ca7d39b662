// Aliases: further nodeids of objects (passthrough.h). Keeps an alias as long as the kernel knows it or may ask for it. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <unordered_map>

#include "store/base/types.h"

namespace kvcachefs {

class AliasTable {
 public:
  static constexpr uint32_t kOrdinal = 255;  // node ordinal of alias nodeids
  // Number of aliases kept after the kernel has forgotten them: file handles may contain them, also handles that an NFS server gave out.
  static constexpr size_t kMostForgotten = 16'384;

  explicit AliasTable(size_t most_forgotten = kMostForgotten) : most_forgotten_(most_forgotten) {}
  void set_epoch(uint32_t epoch) { epoch_ = epoch; }  // epoch of the mount; aliases contain it, so the next mount gives none of them to another file

  static bool is_alias(ObjectId node) { return node.node_ordinal() == kOrdinal; }
  ObjectId object_of(ObjectId node) const;    // `node` itself if it is not a known alias
  ObjectId current(ObjectId object) const;    // the alias given last, or the nodeid made current since; the object itself if it has no alias
  ObjectId give(ObjectId object);             // returns a new alias, which becomes the current one
  void make_current(ObjectId node);           // `node`: the object itself or one of its aliases
  bool has_aliases(ObjectId object) const { return objects_.contains(object); }
  void told(ObjectId node);                   // `node` is about to be sent to the kernel in an entry
  // The kernel forgot `node` and returned `times` lookups of it. `in_use` tells whether a nodeid is open or promised to a client. An alias in
  // use is kept. A current alias is also kept while another nodeid of its object is in use, because that nodeid shows an older body.
  void forgot(ObjectId node, uint64_t times, const std::function<bool(ObjectId)>& in_use);
  bool empty() const { return aliases_.empty(); }
  size_t size() const { return aliases_.size(); }

 private:
  struct Alias {
    ObjectId object;
    uint64_t told = 0;
    bool forgotten = false;  // is in forgotten_
  };
  struct Object {
    ObjectId current;
    size_t aliases = 0;
  };
  bool drop(ObjectId alias, const std::function<bool(ObjectId)>& in_use);

  const size_t most_forgotten_;
  uint32_t epoch_ = 0;
  uint64_t next_ = 1;
  std::unordered_map<ObjectId, Alias> aliases_;
  std::unordered_map<ObjectId, Object> objects_;  // only objects that have aliases
  std::deque<ObjectId> forgotten_;                // oldest first; also aliases not yet sent to the kernel, and some that were sent again since
};

}  // namespace kvcachefs

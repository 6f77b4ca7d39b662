// Further nodeids of objects, aliases (passthrough.h), as long as the kernel knows them or may ask for them. Not thread-safe.
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
  // Aliases that the kernel has forgotten are kept while there are not more than so many: file handles may have them, also those that an
  // NFS server gave out.
  static constexpr size_t kMostForgotten = 16'384;

  explicit AliasTable(size_t most_forgotten = kMostForgotten) : most_forgotten_(most_forgotten) {}
  void set_epoch(uint32_t epoch) { epoch_ = epoch; }  // of the mount: an alias means no other file at the next one

  static bool is_alias(ObjectId node) { return node.node_ordinal() == kOrdinal; }
  ObjectId object_of(ObjectId node) const;    // itself, if it is no alias that is known
  ObjectId current(ObjectId object) const;    // the last alias that was given, else the object
  ObjectId give(ObjectId object);             // a new alias, which is the current one from now on
  void told(ObjectId node);                   // is about to be answered to the kernel in an entry
  // The kernel forgot it, having been told of it so often. `in_use`: the nodeid is open, or promised to somebody; such ones are kept,
  // and a current alias as long as another nodeid of its object is in use: that one has an older body.
  void forgot(ObjectId node, uint64_t times, const std::function<bool(ObjectId)>& in_use);
  bool empty() const { return aliases_.empty(); }
  size_t size() const { return aliases_.size(); }

 private:
  struct Alias {
    ObjectId object;
    uint64_t told = 0;
    bool forgotten = false;  // it is in the queue
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
  std::unordered_map<ObjectId, Object> objects_;  // that have aliases
  std::deque<ObjectId> forgotten_;                // or not told yet; oldest first; some that were told since
};

}  // namespace kvcachefs

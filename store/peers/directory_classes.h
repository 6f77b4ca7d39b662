// Directories of all nodes meet by path: those of one path are one directory to clients, a class. This remembers the member ids of each class under
// one id that stays as long as the class lives. It is in memory and bounded; the least recently used classes are dropped first. The view (view.h) works
// out the members. Thread-safe: its mutex is a leaf in the lock order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store/base/mutex.h"
#include "store/base/types.h"

namespace kvcachefs {

// The ordinal in the ids of classes that do not go by a member's id.
inline constexpr uint32_t kClassOrdinal = 253;

class DirectoryClasses {
 public:
  static constexpr size_t kMostClasses = 1'000'000;  // some 250 bytes each
  explicit DirectoryClasses(size_t most = kMostClasses) : most_(most) {}

  struct Directory {
    ObjectId parent;
    std::string name;
    std::vector<ObjectId> members;  // this node's first, then by ordinal
    uint64_t as_of = 0;             // the view's counter when the members were worked out
    ObjectId held;                  // always a member, whatever the index says; invalid: none
  };
  // The directory that goes by this id. nullopt: it was dropped, is gone, or was never looked up. Not for the root, whose members are the roots
  // of all nodes.
  std::optional<Directory> find(ObjectId id);
  // The id of the directory at this path, if its members were worked out at `as_of`.
  std::optional<ObjectId> find_as_of(ObjectId parent, std::string_view name, uint64_t as_of);
  // The id that note() would give, without noting anything; approximate where that would be a newly numbered id.
  ObjectId id_of(ObjectId parent, std::string_view name, const std::vector<ObjectId>& members) const;

  // Notes that parent/name consists of `members`, which are not empty. Returns the id of the class: its earlier one if a member of it is left, else
  // the id of the first member by which no other class goes, else a new one.
  ObjectId note(ObjectId parent, std::string_view name, std::vector<ObjectId> members, uint64_t as_of);
  // The class no longer exists.
  void drop(ObjectId id);

  // This node made or moved a directory there, with the id `member`, which no index tells of yet. Holds until release().
  void hold(ObjectId parent, std::string_view name, ObjectId id, ObjectId member);
  void release(ObjectId id);
  // A pinned class is not dropped for want of room.
  void pin(ObjectId id);
  void unpin(ObjectId id);

  size_t count() const;

 private:
  struct Entry {
    Directory directory;
    std::list<ObjectId>::iterator age;  // in by_age_
  };
  using Entries = std::unordered_map<ObjectId, Entry>;
  using Paths = std::unordered_multimap<uint64_t, ObjectId>;  // by a hash of parent and name

  Entry* entry(ObjectId id);
  Paths::const_iterator path(ObjectId parent, std::string_view name) const;
  void insert(ObjectId id, Directory directory);
  void erase(ObjectId id);
  void move(ObjectId id, Entry& entry, ObjectId parent, std::string_view name);
  void use(ObjectId id);
  void unuse(ObjectId id);
  void make_room(ObjectId keep);
  // Invalid: all ids are taken.
  ObjectId choose_id(Paths::const_iterator known, const std::vector<ObjectId>& members) const;

  const size_t most_;
  mutable LeafMutex mutex_;
  Entries entries_;
  Paths paths_;
  std::unordered_map<ObjectId, uint32_t> uses_;  // pins, and classes below it
  std::list<ObjectId> by_age_;  // most recently used first
  uint64_t last_own_id_ = 0;
};

}  // namespace kvcachefs

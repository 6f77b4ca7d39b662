// Directories of all nodes meet by path: those with one path are one directory to clients, a class. Which ids it goes by, under
// one that stays while it lives; in memory, as many as fit, the least used go first. What consists of what is worked out by the view
// (view.h), this remembers it. Thread-safe: a leaf in the order of locks.
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

// Ids of classes that go by no member's.
inline constexpr uint32_t kClassOrdinal = 253;

class DirectoryClasses {
 public:
  static constexpr size_t kMostClasses = 1'000'000;  // some 250 bytes each
  explicit DirectoryClasses(size_t most = kMostClasses) : most_(most) {}

  struct Directory {
    ObjectId parent;
    std::string name;
    std::vector<ObjectId> members;  // of this node first, then by ordinal
    uint64_t as_of = 0;             // of the view: they were worked out then
    ObjectId held;                  // this one is among them whatever the index says; invalid: none
  };
  // The directory that goes by this id; nullopt: it was dropped, is gone, or was never looked up. Not for the root, of which all
  // consists of itself.
  std::optional<Directory> find(ObjectId id);
  // The one of this path, if its members were worked out as of then.
  std::optional<ObjectId> find_as_of(ObjectId parent, std::string_view name, uint64_t as_of);
  // The id that note() would give, without its doing; about, where that would be one of its own.
  ObjectId id_of(ObjectId parent, std::string_view name, const std::vector<ObjectId>& members) const;

  // parent/name consists of `members`, of which there are some. The id that it goes by: as before if a member is left, else that of the
  // first one by which no other goes, else one of its own.
  ObjectId note(ObjectId parent, std::string_view name, std::vector<ObjectId> members, uint64_t as_of);
  // There is none any more.
  void drop(ObjectId id);

  // One that this node made, or moved there, as `member`, which no index tells of yet. Until release().
  void hold(ObjectId parent, std::string_view name, ObjectId id, ObjectId member);
  void release(ObjectId id);
  // Not dropped for want of room while somebody has it.
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
  // Invalid: all are taken.
  ObjectId choose_id(Paths::const_iterator known, const std::vector<ObjectId>& members) const;

  const size_t most_;
  mutable LeafMutex mutex_;
  Entries entries_;
  Paths paths_;
  std::unordered_map<ObjectId, uint32_t> uses_;  // pins, and classes below it
  std::list<ObjectId> by_age_;  // the last used first
  uint64_t last_own_id_ = 0;
};

}  // namespace kvcachefs

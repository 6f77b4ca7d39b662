// What a directory tree is, as simply as it can be said: entities in RAM with names, bytes and attributes. No sharing of
// code with the store.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "store/base/result.h"
#include "store/base/types.h"
#include "store/store.h"

namespace kvcachefs::testing {

// What a time stamp may be. Becomes exact when it is first seen, and must then stay.
struct StampRange {
  int64_t low = INT64_MIN, high = INT64_MAX;
  void exactly(int64_t value) { low = high = value; }
  void since(int64_t start) { low = start, high = INT64_MAX; }  // set by a call that began at `start`
  void perhaps_since(int64_t start) {                            // ... or left alone by it
    if (low > start) low = start;
    high = INT64_MAX;
  }
  bool agrees(int64_t seen) {
    if (seen < low || seen > high) return false;
    exactly(seen);
    return true;
  }
};

struct Entity;
using EntityPtr = std::shared_ptr<Entity>;

struct Entity {
  ObjectId id;
  uint32_t mode = 0, uid = 0, gid = 0, rdev = 0;
  uint32_t nlink = 0;
  std::string bytes;  // of a regular file; the target of a symbolic link
  std::map<std::string, std::string> xattrs;
  std::map<std::string, EntityPtr> names;  // of a directory
  Entity* parent = nullptr;                // of a directory
  StampRange atime, mtime, ctime, btime;
  uint64_t allocated_to = 0;  // by fallocate, at most: blocks may lie behind the end
  bool atime_is_of_open = false;  // kept in RAM only, so it may go back at any time
  // A write met a full volume: publishing fails until the content is replaced, closing until that was undone.
  bool write_failed = false, lacks_a_write = false;
  bool perhaps_mended = false;      // something was written since
  bool may_be_emptied = true;       // no body of it is known to be journaled since it was made or emptied
  std::unordered_set<size_t> past;  // hashes of what its content was, where writes may fail

  bool is_directory() const { return S_ISDIR(mode); }
  bool is_regular() const { return S_ISREG(mode); }
  uint64_t size_bytes() const { return is_directory() ? 4096 : bytes.size(); }
  void changed(int64_t start) {
    mtime.since(start);
    ctime.since(start);
  }
  void perhaps_changed(int64_t start) {
    mtime.perhaps_since(start);
    ctime.perhaps_since(start);
  }
};

class Reference {
 public:
  Reference();

  const EntityPtr& root() const { return root_; }
  static EntityPtr find(const EntityPtr& directory, const std::string& name);  // null if absent
  // `start`: realtime when the call began.
  EntityPtr add(const EntityPtr& directory, const std::string& name, uint32_t mode, int64_t start);
  static void link(const EntityPtr& entity, const EntityPtr& directory, const std::string& name, int64_t start);
  // The error that a call must give; kNoData (never an answer of these calls) if it must succeed. Changes nothing.
  static constexpr Code kGood = Code::kNoData;
  static Code check_new(const EntityPtr& directory, const std::string& name);
  static Code check_unlink(const EntityPtr& directory, const std::string& name);
  static Code check_rmdir(const EntityPtr& directory, const std::string& name);
  static Code check_rename(const EntityPtr& from, const std::string& name, const EntityPtr& to,
                           const std::string& new_name, RenameMode mode);
  static void unlink(const EntityPtr& directory, const std::string& name, int64_t start);
  static void rmdir(const EntityPtr& directory, const std::string& name, int64_t start);
  static void rename(const EntityPtr& from, const std::string& name, const EntityPtr& to, const std::string& new_name,
                     RenameMode mode, int64_t start);

  // Every entity with a name, parents first, each once.
  std::vector<EntityPtr> reachable() const;
  std::vector<EntityPtr> directories() const;
  // Could the kernel's VFS pass this rename on? (Not a directory into itself or below.)
  static bool rename_is_possible(const EntityPtr& from, const std::string& name, const EntityPtr& to,
                                 const std::string& new_name, RenameMode mode);

 private:
  EntityPtr root_;
};

}  // namespace kvcachefs::testing

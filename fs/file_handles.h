// Lookups by nodeid. The kernel sends them when it decodes a file handle (open_by_handle_at(2), or an NFS server that exports the mount)
// of an object that it has forgotten. A nodeid is an object id and is never reused, so a handle is valid as long as the object exists, also
// across mounts. The name "." of a nodeid means the object itself. ".." is looked up for directories: the volume stores no parent links, so the
// side thread finds the parent by listing all directories. The result is kept, 16 bytes a directory.
#pragma once

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "fs/request.h"
#include "store/base/types.h"

namespace kvcachefs {

struct Driver;

class FileHandles {
 public:
  explicit FileHandles(Driver& driver) : driver_(driver) {}

  // Returns true if `name` is "." or "..", which only such lookups use, and then answers the request, perhaps later.
  bool answers_lookup(const Request& request, fuse_ino_t node, std::string_view name);

 private:
  // In the side thread.
  void answer_parent(const Request& request, ObjectId directory);
  std::optional<ObjectId> parent_of(ObjectId directory);
  bool holds(ObjectId parent, ObjectId child) const;
  void look_at_all_directories();

  Driver& driver_;
  std::vector<std::pair<ObjectId, ObjectId>> parents_;  // (directory, parent), sorted; as found by the last look_at_all_directories()
};

}  // namespace kvcachefs

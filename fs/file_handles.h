// Lookups by nodeid. The kernel sends them when it decodes a file handle (open_by_handle_at(2), an NFS server that exports the mount)
// of an object that it has forgotten. A nodeid is an object id, which is never used again, so a handle lives as long as the object, also
// across mounts. "." of a nodeid is the object itself. ".." is asked for directories: the volume keeps no way up, so it is found by
// going through all directories, in the side thread. The result is kept, 16 bytes a directory.
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

  // Answers the request, perhaps later, and returns true if `name` is one of the two, which no other lookup has.
  bool answers_lookup(const Request& request, fuse_ino_t node, std::string_view name);

 private:
  // In the side thread.
  void answer_parent(const Request& request, ObjectId directory);
  std::optional<ObjectId> parent_of(ObjectId directory);
  bool holds(ObjectId parent, ObjectId child) const;
  void look_at_all_directories();

  Driver& driver_;
  std::vector<std::pair<ObjectId, ObjectId>> parents_;  // (directory, parent), sorted; as the last look found them
};

}  // namespace kvcachefs

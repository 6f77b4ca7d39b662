// Lookups by nodeid: what the kernel asks for when it decodes a file handle (open_by_handle_at(2), an NFS server that exports the mount)
// of an object that it has forgotten. A nodeid is an object id, which is never used again, so a handle lives as long as the object, also
// across mounts. "." of a nodeid is the object itself. ".." is asked for directories: the volume keeps no way up, so it is found by
// going through all directories, in a thread of its own, and what was found is kept, 16 bytes a directory.
#pragma once

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "store/base/types.h"

namespace kvcachefs {

struct Driver;

class FileHandles {
 public:
  explicit FileHandles(Driver& driver) : driver_(driver) {}
  FileHandles(const FileHandles&) = delete;
  FileHandles& operator=(const FileHandles&) = delete;
  ~FileHandles() { stop(); }

  // Answers the request, perhaps later, and returns true if `name` is one of the two, which no other lookup has.
  bool answers_lookup(fuse_req_t request, fuse_ino_t node, std::string_view name);
  // Answers what waits with an error, and ends the thread. Before the store stops.
  void stop();

 private:
  struct Waiting {
    fuse_req_t request;
    ObjectId directory;
  };
  void run();
  std::optional<ObjectId> parent_of(ObjectId directory);
  bool holds(ObjectId parent, ObjectId child) const;
  void look_at_all_directories();

  Driver& driver_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;  // a leaf: the two below
  std::vector<Waiting> waiting_;
  bool running_ = false;
  std::thread thread_;  // runs while requests wait; joined by whoever starts the next
  // The thread's: (directory, parent), sorted; as the last look found them.
  std::vector<std::pair<ObjectId, ObjectId>> parents_;
};

}  // namespace kvcachefs

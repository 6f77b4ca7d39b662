// What the mount says of itself: the virtual directory `.kvcachefs/` at the root (found by lookup, not listed) with the files
// status, metrics, options, log and chains, and the attributes user.kvcachefs.* of the mount's root.
#pragma once

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "store/base/types.h"

namespace kvcachefs {

struct Driver;

class ControlFiles {
 public:
  static constexpr uint32_t kOrdinal = 254;  // node ordinal of the virtual nodes
  explicit ControlFiles(Driver& driver);

  bool owns(fuse_ino_t node) const { return ObjectId{node}.node_ordinal() == kOrdinal; }
  // The name is, or lies in, the virtual directory: nothing can be made, removed or renamed there.
  bool reserves(fuse_ino_t parent, std::string_view name) const {
    return owns(parent) || (parent == FUSE_ROOT_ID && name == ".kvcachefs");
  }
  // Each answers the request and returns true if it is about a virtual node.
  bool answers_lookup(fuse_req_t request, fuse_ino_t parent, const char* name);
  bool answers_attributes(fuse_req_t request, fuse_ino_t node);
  bool answers_open(fuse_req_t request, fuse_ino_t node, fuse_file_info* file);
  bool answers_read(fuse_req_t request, fuse_ino_t node, size_t size, off_t offset, fuse_file_info* file);
  bool answers_release(fuse_req_t request, fuse_ino_t node, fuse_file_info* file);
  bool answers_listing(fuse_req_t request, fuse_ino_t node, size_t size, off_t offset, bool plus);

  // user.kvcachefs.<name> of the root: option.NAME and every scalar of the status.
  std::optional<std::string> root_attribute(std::string_view name);
  // flush (drains), drop_caches, option.NAME. Replies, perhaps later.
  void set_root_attribute(fuse_req_t request, std::string_view name, std::string_view value);

 private:
  std::string content(uint64_t number);
  struct stat stat_of(uint64_t number);

  Driver& driver_;
  const int64_t started_s_;
};

}  // namespace kvcachefs

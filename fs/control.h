// The mount's own files and attributes: the virtual directory `.kvcachefs/` at the root (found by lookup, not listed) with the files
// status, metrics, options, log and chains, and the attributes user.kvcachefs.* of the mount: of its root, and of that directory. The kernel
// holds the lock of the directory on which one is set until it is answered, and on the root names wait for that.
#pragma once

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "fs/request.h"
#include "store/base/types.h"

namespace kvcachefs {

struct Driver;

inline constexpr uint32_t kControlOrdinal = 254;  // node ordinal of the control nodes

inline bool is_control_node(fuse_ino_t node) { return ObjectId{node}.node_ordinal() == kControlOrdinal; }
// The name is, or lies in, the virtual directory: nothing can be made, removed or renamed there.
inline bool is_control_name(fuse_ino_t parent, const char* name) {
  return is_control_node(parent) || (parent == FUSE_ROOT_ID && std::strcmp(name, ".kvcachefs") == 0);
}

// Handlers for requests about control nodes only (dispatch.h).
void add_control_operations(fuse_lowlevel_ops& operations);

// user.kvcachefs.<name> of the mount: option.NAME and `status`.
std::optional<std::string> mount_attribute(Driver& driver, std::string_view name);
// What is set to have something done for the whole mount, on whichever file: flush (drains), refresh, drop_caches, scrub, option.NAME.
bool is_mount_command(std::string_view name);
// Does that. Replies, perhaps later.
void set_mount_attribute(const Request& request, std::string_view name, std::string_view value);

}  // namespace kvcachefs

// The mount's own files and attributes: the virtual directory `.kvcachefs/` at the root (found by lookup, not listed) with the files
// status, metrics, options, log and chains, and the attributes user.kvcachefs.* of the mount, which are set on its root or on that directory.
// While an attribute is set, the kernel holds the lock of its directory until the daemon replies; on the root, lookups of names wait for that.
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
// True for attributes that start an action for the whole mount, whichever file they are set on: flush (drains), refresh, drop_caches, scrub, option.NAME.
bool is_mount_command(std::string_view name);
// Runs that action and replies, perhaps later.
void set_mount_attribute(const Request& request, std::string_view name, std::string_view value);

}  // namespace kvcachefs

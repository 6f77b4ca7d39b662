// One rename: the request, and what its names mean.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/api/request_types.h"
#include "store/object/object.h"
#include "store/tree/namespace.h"

namespace kvcachefs {

struct Rename {
  ObjectId parent;
  std::string name;
  ObjectId new_parent;
  std::string new_name;
  RenameMode mode;
  uint32_t thread_id = 0;  // of the caller

  // Set by Tree::Write::resolve_rename():
  ObjectPtr source{};  // null: both names are of one object, nothing is to be done
  ObjectPtr target{};  // the object that has the new name; may be null
  bool target_is_seen = false;
  bool was_lost = false;               // the source lost the old name to peers, which keep it
  bool others_keep_name = false;       // only one of several versions of the old name moves, the others keep it
  std::vector<ObjectPtr> looked_at{};  // to be forgotten if the rename does not happen
  // Set by Tree::Write::rename(): objects that got a name and are not journaled yet, or may have to be once more, so that the name cannot be either.
  std::vector<ObjectPtr> unsealed{};

  bool exchanges() const { return mode == RenameMode::kExchange; }
  std::string old_text() const { return entry_text(parent, name); }
  std::string new_text() const { return entry_text(new_parent, new_name); }
};

}  // namespace kvcachefs

// Versions of temporary names that lost the name to a file of a peer after their writers closed them, and before these renamed them. They have no
// link; their bytes stay for a rename of the name by their writer. Bounded in time, number and bytes.
//
// No lock of its own: the caller holds the Tree's lock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/object/object.h"

namespace kvcachefs {

class LostVersions {
 public:
  struct Lost {
    ObjectPtr object;
    ObjectId parent;
    std::string name;
    uint64_t bytes = 0;
    bool only_in_ram = false;
    int64_t until_ns = 0;  // monotonic
  };

  bool empty() const { return lost_.empty(); }
  bool has(ObjectId id) const { return lost_.contains(id); }
  bool has_name(ObjectId parent, std::string_view name) const {
    return std::ranges::any_of(lost_, [&](const auto& each) { return each.second.parent == parent && each.second.name == name; });
  }
  std::vector<ObjectPtr> of(ObjectId parent, std::string_view name) const;  // newest first
  void add(Lost lost);
  std::optional<Lost> take(ObjectId id);
  std::optional<Lost> take_of(ObjectId parent, std::string_view name, uint32_t writer_thread);  // any of them
  // Takes the oldest if there are more bytes, or too many; if more are only in RAM, the oldest of those.
  std::optional<Lost> take_excess(uint64_t most_bytes, uint64_t most_bytes_in_ram);
  // Takes one that is not to be kept at this time.
  std::optional<Lost> take_over(int64_t now_ns);
  // This one is not taken as excess while its rename is under way; {}: none.
  void hold(ObjectId id) { held_ = id; }
  void clear() {
    lost_.clear();
    bytes_ = bytes_in_ram_ = 0;
  }

 private:
  static constexpr size_t kMost = 1024;

  std::map<ObjectId, Lost> lost_;  // later ids are newer
  uint64_t bytes_ = 0, bytes_in_ram_ = 0;
  ObjectId held_;
};

}  // namespace kvcachefs

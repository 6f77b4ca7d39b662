// Versions of temporary names that lost the name to a file of a peer after their writers closed them, and before these renamed them. They have no
// link; their bytes stay for a rename of the name by their writer. Bounded in time, number and bytes. If the bytes of a version exceed the bounds they
// are given up before its time is over. What is left of it until then refuses its writer's rename, which would move the file of another writer.
//
// No lock of its own: the caller holds the Tree's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "store/object/object.h"

namespace kvcachefs {

class LostVersions {
 public:
  struct Lost {
    ObjectId id;
    ObjectPtr object;  // null: its bytes were given up
    ObjectId parent;
    std::string name;
    uint32_t writer_thread = 0, writer_process = 0;
    uint64_t bytes = 0;
    bool only_in_ram = false;
    int64_t until_ns = 0;  // monotonic
  };

  bool empty() const { return lost_.empty(); }
  bool has(ObjectId id) const {  // with its bytes
    const auto found = lost_.find(id);
    return found != lost_.end() && found->second.object;
  }
  bool has_name(ObjectId parent, std::string_view name) const { return !lost_.empty() && !of(parent, name).empty(); }
  std::vector<const Lost*> of(ObjectId parent, std::string_view name) const;  // newest first; valid until the next change
  std::vector<const Lost*> of_writer(uint32_t thread) const;                  // the same
  void add(Lost lost);
  // Keeps only what refuses its writer's rename; nothing if its bytes were given up before.
  void give_up(Lost taken);
  std::optional<Lost> take(ObjectId id);
  std::optional<Lost> take_of(ObjectId parent, std::string_view name, uint32_t writer_thread);  // any of them
  // Takes the oldest if there are too many; if there are more bytes, the oldest that has its bytes; if more are only in RAM, the oldest of those.
  std::optional<Lost> take_excess(uint64_t most_bytes, uint64_t most_bytes_in_ram);
  // Takes one that is not to be kept at this time.
  std::optional<Lost> take_over(int64_t now_ns);
  // This one is not taken as excess while its rename is under way; {}: none.
  void hold(ObjectId id) { held_ = id; }
  void clear() {
    lost_.clear();
    by_name_.clear();
    bytes_ = bytes_in_ram_ = 0;
  }

 private:
  static constexpr size_t kMost = 1024;

  std::map<ObjectId, Lost> lost_;  // later ids are newer
  std::set<std::tuple<ObjectId, std::string, ObjectId>> by_name_;
  uint64_t bytes_ = 0, bytes_in_ram_ = 0;
  ObjectId held_;
};

}  // namespace kvcachefs

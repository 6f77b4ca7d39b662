// Checks, just before an object is evicted, whether something keeps it: only objects that are whole, journaled, closed and have one name
// may be evicted (invariant 8a of the store).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/base/clock.h"
#include "store/object/object.h"
#include "store/tree/tree.h"
#include "store/upkeep/evictor.h"

namespace kvcachefs {

// Has no state. The caller does not hold the object's lock.
class EvictGuard {
 public:
  // `learned`: which names that look temporary are final; null: none.
  explicit EvictGuard(Clock& clock, const TemporaryNames* learned = nullptr) : clock_(clock), learned_(learned) {}

  struct Kept {
    Evictor::Refused how;
    const char* why;  // for people
  };
  // Why the object with this name must stay; nullopt: it may be evicted.
  std::optional<Kept> keeps(const Tree::Write& tree, const ObjectPtr& object, ObjectId parent, std::string_view name,
                            Evictor::Leases leases) const;
  // The same without checking its name.
  static std::optional<Kept> keeps_object(const Tree::View&, const ObjectPtr& object, Evictor::Leases leases);
  // For people: why the object is kept, and how long it was unused, not counting a probe by this thread.
  static void describe(const Evictor& evictor, const Tree::View& tree, const ObjectPtr& object, uint32_t thread_id,
                       std::vector<std::pair<std::string, std::string>>& facts);

 private:
  bool is_about_to_be_renamed(const Object& object, ObjectId parent, std::string_view name, int64_t within_ns) const;

  Clock& clock_;
  const TemporaryNames* learned_;
};

}  // namespace kvcachefs

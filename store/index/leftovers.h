// What earlier lives left on the volume and no record names. Stored in a commit's transaction and valid only with that commit's position:
// lost with the index, and void once a program that does not know it has committed.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "store/base/records.h"

namespace kvcachefs {

struct Leftovers {
  uint32_t swept_epoch = 0;  // in epochs up to this one only `extents` have no record
  bool in_packs = false;     // packs may hold blocks that no record names
  struct Extent {
    ExtentId id;
    PlaceKind kind = PlaceKind::kNone;
    bool operator==(const Extent&) const = default;
  };
  std::vector<Extent> extents;
  bool unlisted = false;  // later epochs have such extents, too: even a start after a clean close searches them
  // Places that were given up and that other nodes may still read, with their objects. They are part of what the other fields tell.
  std::vector<FreedPlace> held = {};
  // Of the places given up until then, others may read none but `held`; zeros: not known.
  JournalPosition held_until = {};

  // As true of an index that ends at `position`. What was given up later has a record there. What was given up between the two is not known.
  Leftovers as_of(JournalPosition position) const {
    Leftovers then = *this;
    std::erase_if(then.held, [&](const FreedPlace& freed) { return freed.given_up_at > position; });
    then.held_until = held_until < position ? JournalPosition{} : position;
    return then;
  }
  // About how many bytes the index takes for this, rather too many: each commit writes it anew.
  uint64_t row_bytes() const {
    constexpr uint64_t kFixedBytes = 64, kExtentBytes = 16, kHeldBytes = 32;
    return kFixedBytes + extents.size() * kExtentBytes + held.size() * kHeldBytes;
  }
  bool operator==(const Leftovers&) const = default;
};

}  // namespace kvcachefs

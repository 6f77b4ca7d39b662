// Finds the data and the holes of a body: pages of 4 KiB that are all zeros are holes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "store/api/request_types.h"
#include "store/object/object.h"

namespace kvcachefs {

// One search. Caller holds the lock of the body as long as the search is used.
class DataAndHoles {
 public:
  // The search needs units that are not in RAM to be read, unless their checksum shows that they are zeros. With
  // `takes_unread_for_data` they count as data instead.
  DataAndHoles(Object& object, SeekFor what, bool takes_unread_for_data)
      : object_(object), what_(what), takes_unread_for_data_(takes_unread_for_data) {}

  // The first page of the wanted kind at `offset` or behind it. No value: there is none, or unread() has to be read first.
  std::optional<uint64_t> find(uint64_t offset);
  // The unit, if any, that has to be read before the search can go on. No page before it is of the wanted kind.
  std::optional<size_t> unread() const { return unread_; }

 private:
  std::optional<bool> whole_unit(size_t index);

  Object& object_;
  const SeekFor what_;
  const bool takes_unread_for_data_;
  std::optional<size_t> unread_;
};

}  // namespace kvcachefs

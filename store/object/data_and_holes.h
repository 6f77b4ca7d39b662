// Where data and holes of a body lie: pages of 4 KiB that are all zeros are holes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "store/api/request_types.h"
#include "store/object/object.h"

namespace kvcachefs {

// One search. The lock of the body is held as long as it is used.
class DataAndHoles {
 public:
  // A unit that is not in RAM has to be read for an answer, unless it is known as zeros by its checksum. With
  // `takes_unread_for_data` it counts as data instead.
  DataAndHoles(Object& object, SeekFor what, bool takes_unread_for_data)
      : object_(object), what_(what), takes_unread_for_data_(takes_unread_for_data) {}

  // The first page that is as wanted, at `offset` or behind it. Nothing: there is none, or unread() has to be read first.
  std::optional<uint64_t> find(uint64_t offset);
  // The unit that has to be read before the search can go on, if there is one. All before it is not as wanted.
  std::optional<size_t> unread() const { return unread_; }

 private:
  std::optional<bool> whole_unit(size_t index);

  Object& object_;
  const SeekFor what_;
  const bool takes_unread_for_data_;
  std::optional<size_t> unread_;
};

}  // namespace kvcachefs

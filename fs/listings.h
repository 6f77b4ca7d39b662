// The page of names that was read last, for each open directory: the kernel asks for a part of it at a time (4 KiB on older kernels).
// The total size of all pages is bounded, however many directories are open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "fs/kept_by_open.h"
#include "store/api/request_types.h"
#include "store/base/mutex.h"
#include "store/base/units.h"

namespace kvcachefs {

// The names behind a cookie, as Store::list() returned them, without those already given to the reader. Compact: all names lie in one
// array. Not thread-safe; movable.
class ListingPage {
 public:
  struct Item {
    ObjectId id;
    uint64_t cookie = 0;
    uint32_t type_bits = 0;
    uint32_t name_begin = 0;  // in names_
  };

  ListingPage() = default;
  // `items` are the names that follow the cookie `after`.
  ListingPage(uint64_t after, const std::vector<DirectoryItem>& items);

  bool empty() const { return next_ == items_.size(); }
  // True if a reader that has got everything up to the cookie `after` continues here.
  bool continues(uint64_t after) const { return after_ == after; }
  // The next name. The page must not be empty, here and below. The pointer to the name is valid until pass().
  const Item& item() const { return items_[next_]; }
  const char* name() const { return names_.data() + item().name_begin; }
  // Call when the name was given to the reader.
  void pass();
  size_t bytes() const { return sizeof(*this) + items_.capacity() * sizeof(Item) + names_.capacity(); }

 private:
  uint64_t after_ = 0;  // the cookie of the name before item()
  size_t next_ = 0;
  std::vector<Item> items_;
  std::vector<char> names_;  // each zero-terminated
};

// Pages by open directory. Thread-safe, one leaf mutex. A request takes the page out and puts the rest of it back. When the bound is
// exceeded, the oldest pages are dropped; their names are then read from the store again.
class Listings {
 public:
  explicit Listings(size_t most_bytes = 16 * kMiB) : most_bytes_(most_bytes) {}

  // Returns a number for the opened directory; numbers are never reused.
  uint64_t open();
  void close(uint64_t listing) { take(listing); }
  // Takes the page out. None if it was dropped, was never kept, or another request has it.
  std::optional<ListingPage> take(uint64_t listing);
  // Call before the request is answered: the directory may be closed from then on.
  void keep(uint64_t listing, ListingPage page);
  size_t bytes() const;

 private:
  using Pages = KeptByOpen<ListingPage>;

  const size_t most_bytes_;
  mutable LeafMutex mutex_;  // guards:
  uint64_t opened_ = 0;
  Pages pages_;
};

}  // namespace kvcachefs

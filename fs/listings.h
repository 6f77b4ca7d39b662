// What is kept of open directories between two requests: the page of names that was read last, for the kernel asks for a part at a time
// (on older kernels of 4 KiB). All pages together are bounded, however many directories are open.
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

// The names behind a cookie, as Store::list() answered them, those that were not given to the reader yet. Compact: names lie behind one
// another. Not thread-safe; movable.
class ListingPage {
 public:
  struct Item {
    ObjectId id;
    uint64_t cookie = 0;
    uint32_t type_bits = 0;
    uint32_t name_begin = 0;  // in names_
  };

  ListingPage() = default;
  // Names that follow the cookie `after`.
  ListingPage(uint64_t after, const std::vector<DirectoryItem>& items);

  bool empty() const { return next_ == items_.size(); }
  // A reader that is behind the cookie `after` goes on here.
  bool continues(uint64_t after) const { return after_ == after; }
  // Not of an empty page, here and below: the next one. The name is good until it is passed.
  const Item& item() const { return items_[next_]; }
  const char* name() const { return names_.data() + item().name_begin; }
  // It was given to the reader.
  void pass();
  size_t bytes() const { return sizeof(*this) + items_.capacity() * sizeof(Item) + names_.capacity(); }

 private:
  uint64_t after_ = 0;  // the cookie before that of item()
  size_t next_ = 0;
  std::vector<Item> items_;
  std::vector<char> names_;  // each with a zero behind it
};

// Pages by open directory. Thread-safe, one leaf mutex. A request takes the page out and puts what is left of it in again: of what is
// dropped meanwhile, to stay within the bound, the oldest first, names are read from the store anew.
class Listings {
 public:
  explicit Listings(size_t most_bytes = 16 * kMiB) : most_bytes_(most_bytes) {}

  // A number for a directory that is opened; never used again.
  uint64_t open();
  void close(uint64_t listing) { take(listing); }
  // Its page; none: it was dropped, or none was kept, or another request has it.
  std::optional<ListingPage> take(uint64_t listing);
  // To be called before the request is answered: the directory may be closed from then on.
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

// Names that the index was found not to have, as of a number of changes. A client that stores a chunk has each of its two names searched for
// three times within a moment, most of them under the lock of all names. Thread-safe: a leaf lock.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

#include "store/base/mutex.h"
#include "store/index/rows.h"

namespace kvcachefs {

class AbsentNames {
 public:
  bool holds(NameKey key, uint64_t as_of) const {
    std::lock_guard lock(mutex_);
    const Entry& entry = entries_[place(key)];
    return entry.noted && entry.key == key && entry.as_of == as_of;
  }
  void note(NameKey key, uint64_t as_of) {
    std::lock_guard lock(mutex_);
    entries_[place(key)] = {key, as_of, true};
  }

 private:
  static constexpr size_t kEntries = 256;  // the stores under way at a time
  static size_t place(NameKey key) { return (key.cookie ^ key.parent.value) % kEntries; }
  struct Entry {
    NameKey key;
    uint64_t as_of = 0;
    bool noted = false;
  };
  mutable LeafMutex mutex_;
  std::array<Entry, kEntries> entries_{};
};

}  // namespace kvcachefs

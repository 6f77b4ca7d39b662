// Guesses the final size of a body that is being created: clients do not announce it, but bodies of one kind have one size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "store/base/mutex.h"

namespace kvcachefs {

// Thread-safe: a leaf mutex.
class SizeGuess {
 public:
  // A body of the kind `key` (a stem of names, or a writing thread) was closed with this size.
  void note(uint64_t key, uint64_t size_bytes) {
    constexpr size_t kMostKinds = 4096;
    if (size_bytes == 0) return;
    std::lock_guard lock(mutex_);
    if (sizes_.size() >= kMostKinds && !sizes_.contains(key)) sizes_.clear();
    Sizes& sizes = sizes_.try_emplace(key, Sizes{size_bytes, size_bytes}).first->second;
    sizes = {size_bytes, sizes.last};
  }
  // Returns 0 if unknown. If sizes vary, the smaller one: too little is only slower, too much takes memory.
  uint64_t of(uint64_t key) const {
    std::lock_guard lock(mutex_);
    auto found = sizes_.find(key);
    return found == sizes_.end() ? 0 : std::min(found->second.last, found->second.before);
  }
  static uint64_t thread_key(uint32_t thread_id) { return 0x9e3779b97f4a7c15ULL * (uint64_t{thread_id} + 1); }

 private:
  struct Sizes {
    uint64_t last = 0, before = 0;
  };
  mutable LeafMutex mutex_;
  std::unordered_map<uint64_t, Sizes> sizes_;
};

}  // namespace kvcachefs

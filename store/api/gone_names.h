// Passes names that the store removed, or that changed on another node, to the code that serves names to the kernel.
#pragma once

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "store/api/request_types.h"
#include "store/base/mutex.h"

namespace kvcachefs {

// Thread-safe; mutex_ is a leaf.
class GoneNames {
 public:
  using Told = std::function<void(std::vector<GoneName>)>;

  // Sets the receiver; empty: there is none any more. A call that had begun before may still be under way.
  void set(Told told) {
    const std::lock_guard lock(mutex_);
    told_ = std::move(told);
  }
  // Any thread, with no lock held.
  void tell(std::vector<GoneName> names) const {
    Told told;
    {
      const std::lock_guard lock(mutex_);
      told = told_;
    }
    if (told) told(std::move(names));
  }

 private:
  mutable LeafMutex mutex_;
  Told told_;
};

}  // namespace kvcachefs

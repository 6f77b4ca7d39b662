// Objects that lost their last name, until the journal is known to have it; checked in turn, some at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>

#include "store/base/types.h"

namespace kvcachefs {

// Not thread-safe.
class UnlinkedQueue {
 public:
  void add(ObjectId id) { ids_.push_back(id); }
  size_t size() const { return ids_.size(); }
  // Calls `is_done` for the first `most` and forgets those for which it is true; the others go to the end of the queue.
  template <class IsDone>
  void look_at(size_t most, IsDone is_done) {
    for (size_t left = std::min(most, ids_.size()); left > 0; --left) {
      const ObjectId id = ids_.front();
      ids_.pop_front();
      if (!is_done(id)) ids_.push_back(id);
    }
  }

 private:
  std::deque<ObjectId> ids_;
};

}  // namespace kvcachefs

// Inside this room: one peer, as Peers drives it. Of the thread of round().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "store/base/backoff.h"
#include "store/extent/extents.h"
#include "store/peers/peers.h"
#include "store/peers/replica.h"

namespace kvcachefs {

constexpr int64_t kAcksSoonNs = Peers::kSecondNs / 4;

struct Peers::Peer {
  std::string node;
  uint32_t ordinal = 0;
  int64_t found_ns = 0;
  std::unique_ptr<Replica> replica;  // null: the node is left out
  std::shared_ptr<Extents> extents;

  std::optional<int64_t> polled_ns, load_begun_ns, loaded_ns;
  uint64_t polls = 0, batches = 0;
  bool was_live = false;
  bool behind = false;   // the last poll did not come to the end
  std::optional<int64_t> load_wanted_ns;  // since then the index that it has is to be made anew, and what that takes is not claimed
  int64_t look_again_ns = INT64_MIN;      // ... whether it is by now
  std::string waits_for;  // because it came to an answer, and this node's journal was not read up to what that answers
  bool failed = false;   // the last load or poll did
  std::string trouble;   // that was logged and is not over
  std::string commit_problem;
  Backoff pause{kSecondNs, 60 * kSecondNs};        // after errors
  Backoff load_pause{kSecondNs, 60 * kSecondNs};   // between loads, which cost much: as if each had failed, until it has been followed for a while
  Backoff commit_pause{kSecondNs, 60 * kSecondNs};
  Backoff shrink_pause{10 * kSecondNs, 10 * kSecondNs};  // between two tries, whatever came of them

  bool has_part() const { return replica && replica->part().index != nullptr; }
};

}  // namespace kvcachefs

// Private to this room: one peer, as Peers drives it. Used by the thread of round() only.
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
  bool behind = false;   // the last poll did not reach the end of the journal
  std::optional<int64_t> load_wanted_ns;  // since then a new index is to be made in place of the one it has, and the room for that is not claimed
  std::optional<int64_t> awaits_checkpoint_ns;  // since then that was waited for which the peer has said that it makes
  int64_t look_again_ns = INT64_MIN;      // when to look again whether that room is claimed
  std::string waits_for;  // the node whose journal is not read up to what the next batch, an answer, answers
  bool failed = false;   // the last load or poll failed
  std::string trouble;   // the problem that was logged and is not over
  std::string commit_problem;
  Backoff pause{kSecondNs, 60 * kSecondNs};        // after errors
  Backoff load_pause{kSecondNs, 60 * kSecondNs};   // between loads, which cost much: doubles after each, until the peer was followed for a while
  Backoff commit_pause{kSecondNs, 60 * kSecondNs};
  Backoff shrink_pause{10 * kSecondNs, 10 * kSecondNs};  // between two tries, whatever their result

  bool has_part() const { return replica && replica->part().index != nullptr; }
};

}  // namespace kvcachefs

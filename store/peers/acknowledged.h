// How far the nodes of a volume have followed one of them, which gives back what they do not need any more (Peers::acknowledged_by_all()).
#pragma once

#include <string>
#include <vector>

#include "store/base/types.h"
#include "store/base/records.h"

namespace kvcachefs {

struct PeersAcknowledged {
  JournalPosition position;      // all who are waited for have applied the node's journals up to there
  std::string by;                // the one that is furthest behind; empty: there is none
  std::string reason;            // why nothing is known of that one; empty: it says so itself
  std::vector<ObjectId> pinned;  // of the node, ascending: removed before that, and still read somewhere
  std::string waits_for() const { return reason.empty() ? by : by + " (" + reason + ")"; }
  bool operator==(const PeersAcknowledged&) const = default;
};

}  // namespace kvcachefs

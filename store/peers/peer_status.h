// How a peer is doing, as this node sees it: for people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "store/base/records.h"
#include "store/peers/discovery.h"

namespace kvcachefs {

struct PeerStatus {
  enum class State : uint8_t {
    kLive,        // its HEAD moves, and its journals are read
    kSilent,      // its HEAD stands, or was never seen to move; nobody takes it for gone yet
    kAbsent,      // ... for so long that nobody waits for it; what it has is read all the same
    kLoading,     // nothing of it is seen here yet
    kHeld,        // what was read is seen; it goes on with its next checkpoint
    kUnreadable,  // what was read is seen; tried again
    kLeftOut,     // the volume has too many nodes
  };
  std::string node;
  uint32_t ordinal = 0;
  uint32_t epoch = 0;
  State state = State::kLoading;
  std::string reason;  // of the state; or what else cannot be read or written of it
  std::string host;    // where it runs; empty: it did not say
  int64_t lag_ms = 0;  // since its HEAD was seen to move, or since the node was found, by the clock of this one
  int64_t stands_ms = 0;  // its HEAD stands for so long, and could be read well all the time
  uint64_t bytes_behind = 0, objects = 0, physical_bytes = 0, claim_bytes = 0, reloads = 0, polls = 0, batches = 0, records_left_out = 0;
  JournalPosition applied;
};

// ... and what the threads of this node ask of it.
struct KnownPeer {
  PeerStatus status;
  Discovery::Presence presence = Discovery::Presence::kSilent;
  bool was_live = false;
  int64_t still_since_ns = 0;
  std::optional<int64_t> stands_since_ns;  // while its HEAD could be read
  int64_t looked_ns = 0;                   // at it, last
};

// How far all others have followed this node.
struct PeersAcknowledged {
  JournalPosition position;      // all who are waited for have applied this node's journals up to there
  JournalPosition read_by_all;   // ... and those whose daemon has ended, who read on from there when they come back
  std::string by;                // the one that is furthest behind; empty: there is none
  std::string reason;            // why nothing is known of that one; empty: it says so itself
  std::vector<ObjectId> pinned;  // of this node, ascending: removed before that, and still read somewhere
  struct Node {
    std::string node;
    JournalPosition position;
    bool operator==(const Node&) const = default;
  };
  std::vector<Node> nodes;  // who is waited for, and how far each has applied them
  std::string waits_for() const { return reason.empty() ? by : by + " (" + reason + ")"; }
  bool operator==(const PeersAcknowledged&) const = default;
};

const char* peer_state_name(PeerStatus::State state);

}  // namespace kvcachefs

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
    kAbsent,      // silent for so long that nobody waits for it; its names are read all the same
    kLoading,     // nothing of it is shown here yet
    kHeld,        // what was read is shown; it continues with the peer's next checkpoint
    kUnreadable,  // what was read is shown; reading is tried again
    kLeftOut,     // the volume has too many nodes
  };
  std::string node;
  uint32_t ordinal = 0;
  uint32_t epoch = 0;
  State state = State::kLoading;
  std::string reason;  // for the state; or what else of it cannot be read or written
  std::string host;    // where it runs; empty: it did not tell
  int64_t lag_ms = 0;  // since its HEAD was seen to move, or since the node was found, by this node's clock
  int64_t stands_ms = 0;  // how long its HEAD has stood while it could be read well
  uint64_t bytes_behind = 0, objects = 0, physical_bytes = 0, claim_bytes = 0, reloads = 0, polls = 0, batches = 0, records_left_out = 0;
  JournalPosition applied;
};

// PeerStatus, and what the threads of this node need to know of a peer.
struct KnownPeer {
  PeerStatus status;
  Discovery::Presence presence = Discovery::Presence::kSilent;
  bool was_live = false;
  int64_t still_since_ns = 0;
  std::optional<int64_t> stands_since_ns;  // since when its HEAD has stood while it could be read
  int64_t looked_ns = 0;                   // when its HEAD was last looked at
};

// How far all other nodes have followed this one.
struct PeersAcknowledged {
  JournalPosition position;      // all nodes that are waited for have applied this node's journals up to there
  JournalPosition read_by_all;   // the same with nodes whose daemon has ended: they read on from there when they come back
  std::string by;                // the node furthest behind; empty: there is none
  std::string reason;            // why nothing is known of that node; empty: its ACKS are known
  std::vector<ObjectId> pinned;  // objects of this node, ascending: removed before `position`, and still read somewhere
  struct Node {
    std::string node;
    JournalPosition position;
    bool operator==(const Node&) const = default;
  };
  std::vector<Node> nodes;  // the nodes waited for, and how far each has applied this node's journals
  bool is_whole = true;     // false: what some nodes acknowledge could not be read, so nothing but `reason` is told, and all is to be kept
  std::string waits_for() const { return reason.empty() ? by : by + " (" + reason + ")"; }
  bool operator==(const PeersAcknowledged&) const = default;
};

const char* peer_state_name(PeerStatus::State state);

}  // namespace kvcachefs

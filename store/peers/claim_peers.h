// What the other nodes of a volume hold of its capacity, for a node that raises its claim (ClaimHolder). Their HEADs tell it; for nodes that do
// not run or cannot be read it is found out otherwise. A node never counts with less than it may come to use:
// - A node with a daemon counts with its claim, even while the daemon stands still: data it has accepted it writes when it goes on, whatever
//   the others decide meanwhile.
// - A node whose LOCK is free has no daemon, and counts with the blocks of its files. Its next life claims anew. On a network volume a lock
//   may end at the machine or with a lease, so there the node's HEAD must also have stood for kSilentNs; once the node is absent its lock does not
//   matter. A daemon that comes back after all finds out by the clock (ClaimHolder).
// - A node that never wrote a HEAD counts with its blocks, and nothing is claimed beside it until those were counted.
// - A node whose HEAD cannot be read keeps everybody from claiming for kSilentNs. Then it counts with what is known of it and a grain, measured repeatedly.
//
// One thread at a time. Blocks on the volume.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "store/base/clock.h"
#include "store/base/result.h"
#include "store/journal/block_buffer.h"
#include "store/peers/claims.h"
#include "store/peers/discovery.h"
#include "store/peers/part_size.h"
#include "store/volume/volume.h"

namespace kvcachefs {

class ClaimPeers {
 public:
  static constexpr int64_t kSilentNs = 30'000'000'000;

  ClaimPeers(Volume& volume, FileIdentity own, const Clock& clock) : volume_(volume), own_(std::move(own)), clock_(clock) {}

  // Takes in what Discovery, which looks every one to two seconds, has found since. Probes locks and counts blocks, a little at a time.
  void take_in(const std::map<std::string, Discovery::Node>& nodes);
  // Lists all nodes and reads their HEADs now. Returns an error if a node that may count for more than is known cannot be read.
  Status read_all();
  int64_t slowest_ns() const { return slowest_ns_; }  // the slowest single read of the last read_all()

  bool empty() const { return known_.empty(); }
  std::vector<PeerFigures> figures() const;

 private:
  using Life = PeerFigures::Life;
  struct Known {
    uint32_t begun_epoch = 0;  // the last epoch that the node was seen to have begun
    uint32_t epoch = 0;        // of the HEAD read last
    uint64_t counter = 0;      // of the same HEAD; 0: none was read
    PeerFigures told;
    Life life = Life::kMayLive;
    int64_t found_ns = 0, moved_ns = INT64_MIN / 2;
    FilePtr head;
    uint32_t head_epoch = 0;  // epoch of that file; `told` may be of a later one
    std::optional<int64_t> stands_since_ns, unread_since_ns, asked_ns, measured_ns;
    bool runs = true;         // whether its lock was held when it was last probed
    bool absent = false;
    int64_t lock_written_ns = 0;   // LOCK's mtime, by the volume's clock, when it was last looked at
    bool is_smaller_now = false;   // the node has less than its HEAD tells: others gave something of it back
    bool measure_again = false;    // others gave something back since it was measured
    std::optional<PartSize> measuring;
    uint64_t measured_bytes = 0;
  };
  void note(Known& known, const Head& head) const;
  Result<bool> read(const std::string& name, Known& known);
  Result<bool> read_epoch(const std::string& name, uint32_t epoch, Known& known);
  void look_after(const std::string& name, Known& known, int64_t most_ns);
  void ask_for_lock(const std::string& name, Known& known) const;
  void measure(const std::string& name, Known& known, int64_t most_ns) const;
  void look_for_giving_back(const std::string& name, Known& known) const;
  bool is_gone(const Known& known) const;
  bool is_unreadable(const Known& known) const;
  bool is_to_be_measured(const Known& known) const;
  PeerFigures counted(const Known& known) const;

  Volume& volume_;
  const FileIdentity own_;
  const Clock& clock_;
  std::map<std::string, Known> known_;
  int64_t slowest_ns_ = 0;
  BlockBuffer buffer_;
};

}  // namespace kvcachefs

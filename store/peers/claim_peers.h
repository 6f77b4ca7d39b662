// What the other nodes of a volume hold of its capacity, for one that raises its claim (ClaimHolder): told by their HEADs, and for those that do
// not run, or cannot be read, found out otherwise. A node never counts with less than it may come to use:
// - one whose daemon is there counts with its claim, also while it stands still: what it has accepted it writes when it goes on, whatever others
//   decide meanwhile;
// - one whose LOCK is free has no daemon, and counts with the blocks of its files. Its next life claims anew. On a network volume, where a lock
//   may end at the machine or with a lease, its HEAD has to have stood for kSilentNs as well, or until it is absent, whatever its lock says; its
//   daemon, if it comes back after all, finds that out by the clock (ClaimHolder);
// - one that never told counts with its blocks, and nothing is claimed beside it until those were counted;
// - one whose HEAD cannot be read lets nobody claim for kSilentNs; then with what is known of it and a grain, counted again and again.
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

  // What was found since by who looks each second. Asks for locks and counts blocks, a little at a time.
  void take_in(const std::map<std::string, Discovery::Node>& nodes);
  // All nodes that there are now, as they are now. An error: of one that counts for more than is known.
  Status read_all();
  int64_t slowest_ns() const { return slowest_ns_; }  // of what that read, what took longest

  bool empty() const { return known_.empty(); }
  std::vector<PeerFigures> figures() const;

 private:
  using Life = PeerFigures::Life;
  struct Known {
    uint32_t begun_epoch = 0;  // the last that it has begun, as far as that was seen
    uint32_t epoch = 0;        // of the HEAD that was read last
    uint64_t counter = 0;      // ... 0: none was
    PeerFigures told;
    Life life = Life::kMayLive;
    int64_t found_ns = 0, moved_ns = INT64_MIN / 2;
    FilePtr head;
    uint32_t head_epoch = 0;  // of that file; what was told may be of a later one
    std::optional<int64_t> stands_since_ns, unread_since_ns, asked_ns, measured_ns;
    bool runs = true;         // as its lock said when it was asked for
    bool absent = false;
    int64_t lock_written_ns = 0;   // by the clock of the volume, as far as that was looked at
    bool is_smaller_now = false;   // than it told: others gave something back
    bool measure_again = false;    // ... since it was measured
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

// This node's claim on the capacity of its volume (claims.h): raises it, lowers it, and tells the others by HEAD. The nodes together never use
// more than the capacity, whatever they know of each other:
// - A node uses no more than its claim. It keeps to a lower claim before it tells that.
// - A node that raises its claim writes the new one first, then lists all nodes anew and reads their HEADs. If the claims sum up beyond the
//   capacity it takes the raise back without having used it. HEADs bypass the page cache: of two nodes that raise at once one reads the other's.
// - The claim of a node without a daemon is free for others, except for its bytes on the volume (ClaimPeers). So each life begins with
//   what is used, and claims the rest anew.
// - On a network volume others may take a daemon for gone that was only away (stopped, asleep, cut off). So a claim is a lease: it is good for
//   kLeaseNs after it was told, by a clock that goes on meanwhile. After that nothing is reserved before the claim was raised anew. (Data accepted
//   earlier and not written yet is still written: at most what was claimed ahead.)
// A claim is never less than what is used already: that cannot be undone, and all nodes evict until it fits.
//
// One thread at a time. Blocks on the volume.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>

#include "store/base/clock.h"
#include "store/base/result.h"
#include "store/journal/node_fence.h"
#include "store/peers/claim_peers.h"
#include "store/peers/claims.h"
#include "store/peers/discovery.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// The user of the volume that is held to the claim. ClaimHolder's thread calls these; none of them blocks on the volume.
class ClaimUser {
 public:
  virtual ~ClaimUser() = default;
  // `alone`: the volume has no other node; bytes by age need not be filled in.
  virtual OwnFigures figures(bool alone) = 0;
  // From here on uses no more than `bytes`, or than is used already if that is more. Returns the larger of the two.
  virtual uint64_t lower_claim(uint64_t bytes) = 0;
  // Space that comes back beyond `bytes` is not used anew, until the claim is raised.
  virtual void sink_claim(uint64_t bytes) = 0;
  virtual void raise_claim(uint64_t bytes) = 0;
  // The claim is good until `boot_ns`, by the clock of Parts::boot_ns; after that no more is used than is used already.
  virtual void hold_until(int64_t boot_ns) = 0;
  // Carries out the rest of the plan. `alone`: there is no other node, so nothing is evicted for others.
  virtual void follow(const ClaimPlan& plan, bool alone) = 0;
};

class ClaimHolder {
 public:
  static constexpr int64_t kSecondNs = 1'000'000'000;
  // Half of what others wait: space reserved at the end of the lease has as long again to get onto the volume before others take this node for gone
  static constexpr int64_t kLeaseNs = ClaimPeers::kSilentNs / 2;
  struct Parts {
    Volume& volume;
    FileIdentity own;
    const Clock& clock;
    ClaimUser& user;
    // Writes HEAD as it is now, with these figures.
    std::function<Status(const OwnFigures& own, uint64_t claim_bytes, uint64_t wish_bytes)> tell;
    int64_t slow_ns = kSecondNs;  // reading a HEAD took longer: the claim is not raised by it, for a server that was away answers old data
    std::function<int64_t()> boot_ns = boottime_ns;
  };
  explicit ClaimHolder(Parts parts);

  // Call before this life of the node writes anything that it can put off. Claims what is used, and some ahead as far as room is left.
  Status begin();
  // Does what is due by what is known of the others. Call every second, and when due_ns() says so. Returns the error that kept it from that.
  // `is_quiet`: no client has asked for anything for a minute. Then HEAD moves at every second step only, on a network volume with plenty of room.
  Status step(const std::map<std::string, Discovery::Node>& nodes, bool tell_now, bool is_quiet = false);
  // The same where nobody had time to look at the others: reads their HEADs itself, and goes by the last known state of who lives.
  Status step_unseen();
  // When the next step() is due. `wants_room`: more room is wanted than at the last step.
  int64_t due_ns(bool wants_room) const;
  // Call last in this life: gives up the claim on everything that is not used.
  Status end();

  uint64_t claim_bytes() const { return claim_bytes_; }
  // At the last step no node lacked room, and plenty was unclaimed: nobody waits for what another node claims or gives up.
  bool has_plenty() const { return has_plenty_; }

 private:
  Status step(bool tell_now, bool is_quiet);
  Status raise(const OwnFigures& own, const ClaimPlan& plan);
  Status tell(const OwnFigures& own, uint64_t claim_bytes, uint64_t wish_bytes);
  bool has_lapsed(int64_t boot_ns) const;

  const Parts parts_;
  ClaimPeers peers_;
  uint64_t claim_bytes_ = 0;
  bool begun_ = false;
  bool waits_ = false;        // a call waited at the last step, and others had to give something up for it
  bool tries_again_ = false;  // at the last step the claim was less than it should be
  bool has_plenty_ = false;
  std::optional<int64_t> told_ns_, stepped_ns_;
  std::optional<int64_t> told_boot_ns_;  // time just before the last successful write of HEAD
  uint64_t told_capacity_bytes_ = 0;
  int64_t try_again_ns_ = 0;  // no raise before this, after one was taken back
  std::minstd_rand random_;
};

}  // namespace kvcachefs

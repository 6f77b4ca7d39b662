// The claim of this node on the capacity of its volume (claims.h): raised, lowered, told to the others by HEAD. What the nodes use together
// never passes the capacity, whatever they know of each other:
// - a node uses no more than its claim, and a claim that is lowered is kept to before it is told;
// - one that is raised is told first, then the HEADs of all nodes are read, which are listed anew; where the claims sum up beyond the capacity
//   it is taken back and was never used. HEADs are written and read past the page cache: of two that raise at once one reads of the other;
// - what a node that has no daemon any more had claimed is free for others, but for its bytes on the volume (ClaimPeers). So each life begins with
//   what is used, and claims the rest anew;
// - on a network volume a daemon may be taken for gone that was only away (stopped, asleep, cut off): its claim is good for kLeaseNs after it was
//   told, by a clock that goes on meanwhile. After that nothing is reserved before it was claimed anew. (What it had accepted before, and not
//   written yet, it writes: at most what it claimed ahead.)
// A claim is never less than what is used already: that cannot be undone, and all evict until it fits.
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

// Whose use of the volume is held to the claim. Called by the thread of ClaimHolder; none of these blocks on the volume.
class ClaimUser {
 public:
  virtual ~ClaimUser() = default;
  // `alone`: the volume has no other node; bytes by age are not asked for.
  virtual OwnFigures figures(bool alone) = 0;
  // From here on no more is used than that, or than is used already: returns which.
  virtual uint64_t lower_claim(uint64_t bytes) = 0;
  // ... and what comes back beyond so much is not used anew, until the claim is raised.
  virtual void sink_claim(uint64_t bytes) = 0;
  virtual void raise_claim(uint64_t bytes) = 0;
  // The claim is good until then, by the clock of Parts::boot_ns; after that nothing more is used than is used already.
  virtual void hold_until(int64_t boot_ns) = 0;
  // What is due beside it. `alone`: nothing is evicted for others, there are none.
  virtual void follow(const ClaimPlan& plan, bool alone) = 0;
};

class ClaimHolder {
 public:
  static constexpr int64_t kSecondNs = 1'000'000'000;
  // What was reserved at its end has as long again to come to be on the volume, where others count it when they take this node for gone.
  static constexpr int64_t kLeaseNs = ClaimPeers::kSilentNs / 2;
  struct Parts {
    Volume& volume;
    FileIdentity own;
    const Clock& clock;
    ClaimUser& user;
    // HEAD as it is now, with these.
    std::function<Status(const OwnFigures& own, uint64_t claim_bytes, uint64_t wish_bytes)> tell;
    int64_t slow_ns = kSecondNs;  // a claim is not raised by HEADs of which reading one took longer: a server that was away answers old things
    std::function<int64_t()> boot_ns = boottime_ns;
  };
  explicit ClaimHolder(Parts parts);

  // Before anything is written by this life of the node that does not have to be: it holds what is used, and some ahead as far as that is left.
  Status begin();
  // What is due, by what is known of the others: every second, and when due_ns() says so. What kept it from that.
  Status step(const std::map<std::string, Discovery::Node>& nodes, bool tell_now);
  // The same where nobody had the time to look at the others: it reads of them itself, and goes by what was known of who lives.
  Status step_unseen();
  // `wants_room`: more is wanted than was known of at the last step.
  int64_t due_ns(bool wants_room) const;
  // The last of this life: what it does not use it does not hold.
  Status end();

  uint64_t claim_bytes() const { return claim_bytes_; }

 private:
  Status step(bool tell_now);
  Status raise(const OwnFigures& own, const ClaimPlan& plan);
  Status tell(const OwnFigures& own, uint64_t claim_bytes, uint64_t wish_bytes);
  bool has_lapsed(int64_t boot_ns) const;

  const Parts parts_;
  ClaimPeers peers_;
  uint64_t claim_bytes_ = 0;
  bool begun_ = false;
  bool waits_ = false;        // ... a call waited, and others had to give something up for it
  bool tries_again_ = false;  // at the last step the claim was less than it should be
  std::optional<int64_t> told_ns_, stepped_ns_;
  std::optional<int64_t> told_boot_ns_;  // before HEAD was written last, and it was
  uint64_t told_capacity_bytes_ = 0;
  int64_t try_again_ns_ = 0;  // after a claim was taken back
  std::minstd_rand random_;
};

}  // namespace kvcachefs

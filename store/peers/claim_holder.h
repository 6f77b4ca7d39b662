// The claim of this node on the capacity of its volume (claims.h): raised, lowered, told to the others by HEAD. What the nodes use together
// never passes the capacity, whatever they know of each other:
// - a node uses no more than its claim, and a claim that is lowered is kept to before it is told;
// - one that is raised is told first, then the HEADs of all nodes are read, which are listed anew; where the claims sum up beyond the capacity
//   it is taken back and was never used. HEADs are written and read past the page cache: of two that raise at once one reads of the other;
// - what a node that is gone, or that starts, had claimed counts on, for its bytes are on the volume. One that never told is measured.
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
#include <vector>

#include "store/base/clock.h"
#include "store/base/result.h"
#include "store/journal/block_buffer.h"
#include "store/peers/claims.h"
#include "store/peers/discovery.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// Whose use of the volume is held to the claim. Called by the thread of ClaimHolder; none of these blocks on the volume.
class ClaimUser {
 public:
  virtual ~ClaimUser() = default;
  // `alone`: nobody is told but of the capacity.
  virtual OwnFigures figures(bool alone) = 0;
  // From here on no more is used than that, or than is used already: returns which.
  virtual uint64_t lower_claim(uint64_t bytes) = 0;
  virtual void raise_claim(uint64_t bytes) = 0;
  // What is due beside it. `alone`: this node knows no other, and the rest says nothing.
  virtual void follow(const ClaimPlan& plan, bool alone) = 0;
};

class ClaimHolder {
 public:
  static constexpr int64_t kSecondNs = 1'000'000'000;
  struct Parts {
    Volume& volume;
    FileIdentity own;
    const Clock& clock;
    ClaimUser& user;
    // HEAD as it is now, with these.
    std::function<Status(const OwnFigures& own, uint64_t claim_bytes, uint64_t wish_bytes)> tell;
    int64_t slow_ns = kSecondNs;  // a claim is not raised by HEADs of which reading one took longer: a server that was away answers old things
  };
  explicit ClaimHolder(Parts parts);

  // Before anything is written by this life of the node that does not have to be: it holds what is used, and more as far as that is left; all
  // where it is alone.
  Status begin();
  // What is due, by what is known of the others: every second, and when due_ns() says so. What kept it from that.
  Status step(const std::map<std::string, Discovery::Node>& nodes, bool tell_now);
  // `wants_room`: more is wanted than was known of at the last step.
  int64_t due_ns(bool wants_room) const;
  // The last of this life: what it does not use it does not hold.
  Status end();

  uint64_t claim_bytes() const { return claim_bytes_; }

 private:
  struct Known {
    uint32_t epoch = 0;
    uint64_t counter = 0;
    PeerFigures figures;
    int64_t found_ns = 0;
    FilePtr head;
    uint32_t head_epoch = 0;  // of that file; what was told may be of a later one
    std::optional<int64_t> measured_ns;
  };
  void note(Known& known, const Head& head) const;
  void take_in(const std::map<std::string, Discovery::Node>& nodes);
  Status read_all();
  Result<bool> read(const std::string& name, Known& known);
  Result<bool> read_epoch(const std::string& name, uint32_t epoch, Known& known);
  Status measure(const std::string& name, Known& known);
  std::vector<PeerFigures> peers() const;
  Status raise(const OwnFigures& own, const ClaimPlan& plan, uint64_t target_bytes);
  Status step_alone(const OwnFigures& own);
  Status tell(const OwnFigures& own, uint64_t claim_bytes, uint64_t wish_bytes);

  const Parts parts_;
  std::map<std::string, Known> known_;
  uint64_t claim_bytes_ = 0;
  bool begun_ = false;
  bool tries_again_ = false;  // at the last step the claim was less than it should be
  std::optional<int64_t> told_ns_, stepped_ns_;
  uint64_t told_capacity_bytes_ = 0;
  int64_t slowest_ns_ = 0;  // of what read_all() read last, that which took longest
  int64_t try_again_ns_ = INT64_MIN;  // after a claim was taken back
  std::minstd_rand random_;
  BlockBuffer buffer_;
};

}  // namespace kvcachefs

// How the nodes of a volume share its capacity: how much one of them may claim, and how much it evicts for the others, derived from the HEADs of
// all (FORMAT.md, "HEAD and ACKS"). Every node decides for itself by the same rule, on views that are a second or two old. Old views make the
// amount evicted a little wrong, never the sum of the claims, which ClaimHolder guards. Pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "store/peers/head_file.h"

namespace kvcachefs {

using BytesByAge = std::array<uint64_t, kAgeClasses>;
// The claim of a node of which nothing is known yet: nothing is claimed beside it.
inline constexpr uint64_t kUnknownClaim = UINT64_MAX;

// This node.
struct OwnFigures {
  uint64_t capacity_bytes = 0;    // as its options say; 0: they say nothing
  uint64_t physical_bytes = 0;    // on the volume
  uint64_t used_bytes = 0;        // physical_bytes plus what was accepted and not written yet: the claim has to cover this
  uint64_t wanted_bytes = 0;      // by the indexes of peers, which wait until it is claimed
  uint64_t used_soon_bytes = 0;   // used_bytes and wanted_bytes, without what comes back by itself
  uint64_t written_per_s = 0;     // bytes that clients write
  bool grows = true;              // false: this node stores nothing (it may evict), and claims just what it uses
  bool evicts = false;            // it evicts when it lacks room, as far as there is anything to evict
  bool waits = false;             // a call waits for room, or did a moment ago
  uint64_t lacking_bytes = 0;     // one of those calls needs this much more than is left of the claim
  BytesByAge evictable_by_age{};  // zeros: it evicts nothing
};

// Another node, as its last HEAD tells.
struct PeerFigures {
  uint64_t capacity_bytes = 0;  // 0: unknown
  uint64_t physical_bytes = 0, claim_bytes = 0, wish_bytes = 0;
  BytesByAge evictable_by_age{};
  enum class Life : uint8_t {
    kLives,
    kMayLive,  // not watched for long enough to tell
    kSilent,   // its claim counts: its daemon is there, and will go on with that claim, however late
    kAbsent,   // its claim counts, the capacity that it tells does not
    kGone,     // no daemon: its bytes on the volume count, and nothing that its HEAD tells
  } life = Life::kSilent;
  // How much others have to leave to it.
  uint64_t taken_bytes() const { return claim_bytes > physical_bytes && life != Life::kGone ? claim_bytes : physical_bytes; }
};

struct ClaimPlan {
  uint64_t capacity_bytes = 0;        // of the volume: the least that a living node tells
  uint64_t claimable_bytes = 0;       // no claim is raised beyond this: by the least capacity told by a node that lives or may live
  uint64_t unclaimed_bytes = 0;
  uint64_t wish_bytes = 0;
  uint64_t target_bytes = 0;          // what the claim should be, as far as known; if less than is used, the claim sinks to it as space comes back
  uint64_t low_bytes = 0;             // with so much left of the claim the next plan is due
  uint64_t evict_bytes = 0;           // by this node, now
  bool others_make_room = false;      // a wish that is not met may be met soon
  bool others_lack = false;           // ... more than is unclaimed: it has to come from what others give back
  bool is_short = false;              // all wishes together exceed the capacity: some node has to evict
};

// The least step by which claims are raised and lowered.
uint64_t claim_grain(uint64_t capacity_bytes);
// How much is claimed ahead of what is used while no other node lives that could want it. On a large volume a sixteenth: at 5 GB/s into 1 TB the
// next raise, which takes milliseconds, is asked for 6 s before it is needed. On a small one what fills in some 50 ms, or a quarter.
uint64_t lone_grain(uint64_t capacity_bytes);
// How much of the capacity stays unclaimed where there are several nodes: what a node takes on the volume to begin at all (journal, HEAD, index).
// That is never refused. (Half of it may go to a call that lacks very little, where nothing is evicted.)
uint64_t left_to_newcomers(uint64_t capacity_bytes);
// The same for a node that is the only one; it leaves nothing if it has nothing to evict.
uint64_t left_by_lone(uint64_t capacity_bytes);
ClaimPlan plan_claim(const OwnFigures& own, uint64_t claim_bytes, std::span<const PeerFigures> peers);

// Saturating sums and differences of bytes.
constexpr uint64_t add_bytes(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }
constexpr uint64_t less_bytes(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

}  // namespace kvcachefs

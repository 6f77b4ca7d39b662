// How the nodes of a volume share its capacity: what one of them may claim of it, and what it evicts for the others, told from the HEADs of
// all (FORMAT.md, "HEAD and ACKS"). Every node decides for itself by the same rule, on views that are a second or two old: those make what is
// evicted a little wrong, never the sum of the claims, which ClaimHolder sees to. Pure functions.
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
  uint64_t capacity_bytes = 0;    // as its options say; 0: it says nothing
  uint64_t physical_bytes = 0;    // on the volume
  uint64_t used_bytes = 0;        // the same, and what was accepted and will be there: what its claim has to cover
  uint64_t wanted_bytes = 0;      // by the indexes of peers, which wait until it is claimed
  uint64_t used_soon_bytes = 0;   // both, without what comes back by itself
  uint64_t written_per_s = 0;     // bytes that clients write
  bool grows = true;              // false: nothing is stored there (it may evict), and it holds what it uses and no more
  bool evicts = false;            // where it lacks room, as far as there is anything to evict
  bool waits = false;             // a call waits for room, or did a moment ago
  uint64_t lacking_bytes = 0;     // ... and so much more than is left of the claim is what one of them needs
  BytesByAge evictable_by_age{};  // zeros: it evicts nothing
};

// Another one, as its HEAD said last.
struct PeerFigures {
  uint64_t capacity_bytes = 0;  // 0: unknown
  uint64_t physical_bytes = 0, claim_bytes = 0, wish_bytes = 0;
  BytesByAge evictable_by_age{};
  enum class Life : uint8_t {
    kLives,
    kMayLive,  // it has not been watched for long enough to tell
    kSilent,   // what it claims counts: its daemon is there, and goes on with that, however late
    kAbsent,   // ... but not what it says of the capacity
    kGone,     // it has no daemon: what is on the volume counts, and nothing that it said
  } life = Life::kSilent;
  // What others have to leave to it.
  uint64_t taken_bytes() const { return claim_bytes > physical_bytes && life != Life::kGone ? claim_bytes : physical_bytes; }
};

struct ClaimPlan {
  uint64_t capacity_bytes = 0;        // of the volume: the least that a node which lives says
  uint64_t claimable_bytes = 0;       // of the least that any node says which may come back: no claim is raised beyond that
  uint64_t unclaimed_bytes = 0;
  uint64_t wish_bytes = 0;
  uint64_t target_bytes = 0;          // what the claim should be, as far as it is known; less than is used: it sinks to that as space comes back
  uint64_t low_bytes = 0;             // left of the claim: then it is time for the next plan
  uint64_t evict_bytes = 0;           // of this node, now
  bool others_make_room = false;      // a wish that is not met may be met soon
  bool others_lack = false;           // more than nobody claims: it comes of what others give back
  bool is_short = false;              // all together wish for more than there is: something has to go, of whichever node
};

// By how much claims are raised and lowered, at least.
uint64_t claim_grain(uint64_t capacity_bytes);
// So much is claimed ahead of what is used where no other node lives that could want it. A sixteenth of a large volume: at 5 GB/s into 1 TB the
// next raise, which takes milliseconds, is asked for 6 s before it is needed. On a small one as much as fills in some 50 ms, or a quarter.
uint64_t lone_grain(uint64_t capacity_bytes);
// Of the capacity nobody claims so much, where there are several nodes: what one takes on the volume to begin at all (journal, HEAD, index), which
// is never refused. (But half of it for a call that lacks very little, where nothing is evicted.)
uint64_t left_to_newcomers(uint64_t capacity_bytes);
// ... so much a node that is the only one; nothing, where it has nothing to evict.
uint64_t left_by_lone(uint64_t capacity_bytes);
ClaimPlan plan_claim(const OwnFigures& own, uint64_t claim_bytes, std::span<const PeerFigures> peers);

// Sums of bytes end at the largest number.
constexpr uint64_t add_bytes(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }
constexpr uint64_t less_bytes(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

}  // namespace kvcachefs

// How the readers of each stem used what was read ahead for them; from that, what is worth reading ahead. Forgets all stems when there are too many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "store/base/types.h"
#include "store/chain/read_run.h"

namespace kvcachefs {

class StemTrust {
 public:
  // Whether a run that begins for this reason reads ahead. Of the runs and chain ends that are not trusted, one in 32 is tried again.
  bool trusts_run(uint64_t stem, LoadReason reason);
  // Likewise the last known object of a chain.
  bool trusts_chain_end(uint64_t stem);
  // True if readers came for more of these runs than they ignored.
  bool proven(uint64_t stem, LoadReason reason) const;
  // Of the objects that were planned along chains: the share that readers did not leave unread. 1 for an unknown stem.
  double used_share(uint64_t stem) const;

  // A run ended; `right`: readers came for it.
  void run_ended(uint64_t stem, LoadReason reason, bool right);
  // Whether a reader went on to the last known object of a chain.
  void chain_end_decided(uint64_t stem, bool reached);
  // Readers stopped or left the chain: `unread` of the `planned` objects were not read.
  void objects_judged(uint64_t stem, uint64_t planned, uint64_t unread);

 private:
  struct Trust {
    int8_t by_reason[3];  // whether readers followed runs started for this reason
    int8_t chain_ends;    // whether readers go on to the last known object of a chain
    float used_share;     // of the objects planned along chains; readers stopped before the others
  };
  Trust& trust(uint64_t stem);
  bool tries_again();

  std::unordered_map<uint64_t, Trust> trust_;  // by stem
  uint64_t gated_ = 0;
};

}  // namespace kvcachefs

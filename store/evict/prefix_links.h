// Which unit follows which, learned from the order in which the threads of clients probe, read and write them. Probes of
// absent names count as well: they come in prefix order, and writes often do not. Wrong guesses are found out, since a unit
// has one true predecessor. Pure logic, not thread-safe, bounded memory.
//
// A known link holds when the stream stood on the unit's predecessor a moment ago; two contradictions without a confirmation
// between them drop it. A predecessor that the stream did not probe just then contradicts nothing if anybody probed it within a
// second: for so long the kernel answers for a name, and hides most probes of what many requests begin with. A stream that goes back
// and forth between chains guesses nothing for a minute: no link is better than a wrong one. One that only goes back begins with such
// a head again. What is only written is a chain of 256 at most, and what is met for the first time one of 4096: nothing tells where
// one ends, and an endless one would keep what is old for what is new, as its head. The policy is told of every check, and relies on
// links only while most of them hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "store/evict/policy.h"

namespace kvcachefs::evict {

// One thread's calls on names of one stem.
struct StreamKey {
  uint64_t value = 0;
  auto operator<=>(const StreamKey&) const = default;
};

struct Sighting {
  UnitKey unit;
  StreamKey stream;
  bool written = false;  // published without having been probed for: clients write in any order
  bool begins = false;   // a list of probes begins here, as far as pauses or a new thread show
};

class PrefixLinks {
 public:
  explicit PrefixLinks(size_t max_units = 500'000, size_t max_streams = 4096)
      : max_units_(max_units), max_streams_(max_streams), seen_(kSeen) {}

  // Returns the unit that it follows, as far as that is known, for Published::follows. Tells `policy` of corrections and
  // checks. Before the policy is told of the event itself.
  UnitKey see(const Sighting& what, TimeMs now, Policy& policy);
  size_t units() const { return young_.size() + old_.size(); }

 private:
  static constexpr size_t kSeen = 1024;  // 16 KiB
  struct Link {
    UnitKey follows;    // none: it begins a chain
    uint8_t doubts = 0;
  };
  struct Cursor {
    UnitKey last;
    int64_t at_ms = 0;
    bool left = false;  // the stream went from here to another one, which was known
  };
  struct Seen {
    UnitKey unit;
    int64_t at_ms = 0;
  };
  struct Stream {
    std::vector<Cursor> cursors;  // the one used last at the end
    int64_t mixed_until_ms = INT64_MIN;
    uint32_t written = 0;  // in a row, without a probe
    uint32_t guessed = 0;  // in a row, without a link that was known
  };
  using Links = std::unordered_map<UnitKey, Link>;

  Link* find(UnitKey unit, const Policy& policy);
  Link& remember(UnitKey unit, Link link);
  Stream& stream(StreamKey key);
  void note_seen(UnitKey unit, int64_t now_ms);
  bool may_be_hidden(UnitKey unit, int64_t now_ms) const;

  size_t max_units_, max_streams_;
  // Two generations: what is used stays, and the older one goes bit by bit while the younger one fills.
  Links young_, old_, dying_;
  std::unordered_map<uint64_t, Stream> streams_, old_streams_;
  std::vector<Seen> seen_;  // by hash of the unit: the last one there
};

}  // namespace kvcachefs::evict

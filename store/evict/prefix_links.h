// Learns which unit follows which, from the order in which the threads of clients probe, read and write them. Probes of absent names count
// as well: they come in prefix order, while writes often do not. Wrong guesses are detected, since a unit has one true predecessor. Pure
// logic, not thread-safe, bounded memory.
//
// A known link holds if the stream met the unit's predecessor a moment ago; two contradictions without a confirmation between them drop it.
// A predecessor that the stream did not probe just then is no contradiction if any stream probed it within a second: for that long the
// kernel answers for a name, and hides most probes of common heads. A stream that goes back and forth between chains guesses nothing for a
// minute: no link is better than a wrong one. A stream that only goes back has begun such a head again. A guessed chain is at most 256
// units long if only written, and 4096 if all its units are new: nothing shows where one ends, and an endless chain would keep old units,
// as its head, for new ones. The policy is told of every check, and relies on links only while most of them hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "store/evict/policy.h"
#include "store/evict/recent_keys.h"

namespace kvcachefs::evict {

// The calls of one thread on names of one stem.
struct StreamKey {
  uint64_t value = 0;
  auto operator<=>(const StreamKey&) const = default;
};

struct Sighting {
  UnitKey unit;
  StreamKey stream;
  bool written = false;  // published without a probe before: clients write in any order
  bool begins = false;   // a list of probes begins here, judging by pauses or a new thread
};

class PrefixLinks {
 public:
  explicit PrefixLinks(size_t max_units = 500'000, size_t max_streams = 4096)
      : max_units_(max_units), max_streams_(max_streams), seen_(kSeen) {}

  // Returns the unit that this one follows, if known, for Published::follows. Tells `policy` of corrections and checks. Call before the
  // policy is told of the event itself.
  UnitKey see(const Sighting& what, TimeMs now, Policy& policy);
  size_t units() const { return links_.size(); }

 private:
  static constexpr size_t kSeen = 1024;  // 16 KiB
  struct Link {
    UnitKey key;
    UnitKey follows;    // none: it begins a chain
    uint8_t doubts = 0;
  };
  struct Cursor {
    UnitKey last;
    int64_t at_ms = 0;
    bool left = false;  // the stream went from here to another, known chain
  };
  struct Seen {
    UnitKey unit;
    int64_t at_ms = 0;
  };
  struct Stream {
    std::vector<Cursor> cursors;  // the last used one at the end
    int64_t mixed_until_ms = INT64_MIN;
    uint32_t written = 0;  // in a row, without a probe
    uint32_t guessed = 0;  // in a row, without a known link
  };

  // The returned links are valid until the next call of either.
  Link* find(UnitKey unit, const Policy& policy);
  Link* remember(UnitKey unit, UnitKey follows);
  Stream& stream(StreamKey key);
  void note_seen(UnitKey unit, int64_t now_ms);
  bool may_be_hidden(UnitKey unit, int64_t now_ms) const;

  size_t max_units_, max_streams_;
  RecentKeys<Link> links_;  // used ones stay
  std::unordered_map<uint64_t, Stream> streams_, old_streams_;  // two generations
  std::vector<Seen> seen_;  // by hash of the unit: the last one with that hash
};

}  // namespace kvcachefs::evict

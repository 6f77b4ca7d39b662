// Which dead places are held for other nodes: one that has not followed this node's journal to where a place was given up may read it
// still, and so may clients there that have it open (FORMAT.md, "Several nodes"). It keeps readers from errors only: what is read from a
// place that was given back is found out by its checksums.
//
// Used by the keeper's thread alone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "store/base/records.h"
#include "store/peers/peers.h"

namespace kvcachefs {

class PeerHolds {
 public:
  struct Source {
    std::function<std::shared_ptr<const Peers::Acknowledged>()> acknowledged;  // as it is known; null: it is not known yet
    std::function<std::shared_ptr<const Peers::Acknowledged>()> read;          // from the volume, now
    std::function<void(bool)> want_acknowledged;                               // it is to be read again and again until it moves
  };
  explicit PeerHolds(Source source) : source_(std::move(source)) {}

  // Before these places are asked for. Blocks on the volume where what is known does not tell of all of them.
  void begin(std::span<const FreedPlace> dead);
  bool holds(const FreedPlace& freed);
  // Behind them: whether any was held.
  void end(bool any_held) {
    any_held_ = any_held;
    tell_wanted();
  }
  // Tells why what epochs before `own` left is held, which no record names any more. Nobody knows which objects that was. kUnread: not all
  // other nodes have read up to this epoch. kOpen: they have, and clients there still have an object open that they had open at that moment,
  // and which is no body that died in this life (`died_here`). Blocks on the volume the first time.
  enum class Earlier : uint8_t { kFree, kUnread, kOpen };
  Earlier earlier_epochs(uint32_t own, const std::function<bool(ObjectId)>& died_here);
  // A call has waited long for room while others did not follow: of those that have not read of what is held for longest, until they follow
  // again, only what they told that they read is held. Who follows is waited for as before. Their names; empty: nobody else keeps that back.
  std::string lose_patience();
  // Of what was held since begin(): what is open or being read on another node, so nobody knows when it comes back.
  uint64_t read_bytes() const { return read_bytes_; }
  // The node that is furthest behind, and why where that is known; empty: none is waited for.
  std::string waits_for() const;

 private:
  void tell_wanted() { source_.want_acknowledged(any_held_ || earlier_held_ || !given_up_.empty()); }
  // What is known now, of which those that follow again are waited for again.
  void look(std::shared_ptr<const Peers::Acknowledged> known);
  bool is_waited_for(const Peers::Acknowledged::Node& node) const { return !given_up_.contains(node.node); }
  // All that are waited for have applied this node's journals up to `position`.
  bool have_followed_to(JournalPosition position) const;

  const Source source_;
  std::shared_ptr<const Peers::Acknowledged> known_;
  bool any_held_ = false, earlier_held_ = false;
  std::optional<std::vector<ObjectId>> earlier_open_;  // ascending; none: not all have read up to this epoch yet
  uint64_t read_bytes_ = 0;
  std::optional<JournalPosition> held_since_;           // the least of what was held since begin() because it was not read of
  std::optional<JournalPosition> earlier_held_since_;   // ... of earlier epochs
  std::map<std::string, JournalPosition> given_up_;     // nodes that are not waited for before they have left that position
};

}  // namespace kvcachefs

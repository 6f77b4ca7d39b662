// Tells which dead places are held for other nodes. A node that has not followed this node's journal up to the record that gave a place up
// may still read it, and so may clients there that have the object open (FORMAT.md, "Several nodes"). Holding only spares readers errors:
// checksums detect reads from a place that was given back.
//
// Used by the keeper's thread only.
#pragma once

#include <cstdint>
#include <deque>
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
    std::function<std::shared_ptr<const Peers::Acknowledged>()> acknowledged;  // the latest known state; null: not known yet
    std::function<std::shared_ptr<const Peers::Acknowledged>()> read;          // reads it from the volume now
    std::function<void(bool)> want_acknowledged;                               // true: read it repeatedly until it moves
    std::function<int64_t()> now_ns;                                           // stands still while this process does
  };
  explicit PeerHolds(Source source) : source_(std::move(source)) {}

  // Call before asking for these places. Blocks on the volume if the known state does not cover all of them.
  void begin(std::span<const FreedPlace> dead);
  bool holds(const FreedPlace& freed);
  // Adopts what is known, without a begin(): the bytes held since that stay counted. Blocks on the volume if nothing is known.
  void refresh();
  // Whether others may still read it, as far as is known: true for each place that holds() is true for. Does not block.
  bool may_hold(const FreedPlace& freed) const;
  // Call after them: whether any was held.
  void end(bool any_held);
  // Tells why leftovers of epochs before `own`, which no record names any more, are held; which objects they belonged to is unknown.
  // kUnread: not all other nodes have read up to this epoch. kOpen: they have, but clients there still have an object open that they had
  // open at that moment and that may have lost a body in an earlier life. `is_known`: it has not, or the place is known and is no leftover. Blocks
  // on the volume the first time.
  enum class Earlier : uint8_t { kFree, kUnread, kOpen };
  Earlier earlier_epochs(uint32_t own, const std::function<bool(ObjectId)>& is_known);
  // Call after a call has waited long for room. Gives up the nodes that places have been held for during `patience_ns`: until they follow again, only
  // objects that they reported as being read are held for them. A node that has read everything that is so old follows, and is waited for as before.
  // Returns the names of the nodes given up; empty: none.
  std::string lose_patience(int64_t patience_ns);
  // Of the bytes held since begin(), those that are open or being read on another node, so it is unknown when they come back.
  uint64_t read_bytes() const { return read_bytes_; }
  // The node that is furthest behind, with the reason if known; empty: none is waited for.
  std::string waits_for() const;

 private:
  void tell_wanted() { source_.want_acknowledged(any_held_ || earlier_held_ || !given_up_.empty()); }
  void mark(JournalPosition newest);
  // Adopts the known state; nodes that follow again are waited for again.
  void look(std::shared_ptr<const Peers::Acknowledged> known);
  bool is_waited_for(const Peers::Acknowledged::Node& node) const { return !given_up_.contains(node.node); }
  // True if all nodes that are waited for have applied this node's journals up to `position`.
  bool have_followed_to(JournalPosition position) const;

  const Source source_;
  std::shared_ptr<const Peers::Acknowledged> known_;
  bool any_held_ = false, earlier_held_ = false;
  std::optional<std::vector<ObjectId>> earlier_open_;  // ascending; nullopt: not all have read up to this epoch yet
  uint64_t read_bytes_ = 0;
  std::optional<JournalPosition> newest_held_;  // the highest position among places held since begin() for nodes that had not read that far
  // A place given up at or before `position` was held at `at_ns`. Ascending; a node that has not passed `position` has been waited for since then.
  struct Mark {
    JournalPosition position;
    int64_t at_ns = 0;
  };
  std::deque<Mark> marks_;
  std::map<std::string, JournalPosition> given_up_;     // nodes not waited for until they have passed that position
};

}  // namespace kvcachefs

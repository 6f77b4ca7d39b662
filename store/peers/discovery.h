// Finds which other nodes the volume has, which of them live, and how they are doing: by listing directories and reading HEADs, never by looking
// up names that may not be there (clients of a network file system would remember that they are not). The caller hands in the clock. Blocks on the
// volume; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "store/base/clock.h"
#include "store/base/result.h"
#include "store/journal/block_buffer.h"
#include "store/journal/journal.h"
#include "store/peers/head_file.h"
#include "store/peers/replica.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// Lists them now.
Result<std::set<std::string>> list_other_nodes(Volume& volume, const FileIdentity& own);

class Discovery {
 public:
  static constexpr uint32_t kLastOrdinal = 252;  // of peers; 253: directories that go by no member's id; fs/ uses the rest
  static constexpr int64_t kSecondNs = 1'000'000'000;

  struct Limits {
    int64_t listed_every_ns = kSecondNs;  // a node that comes to a full volume waits until it is found
    int64_t still_ns = 3 * kSecondNs;       // a HEAD that has stood so long: its daemon may be gone, or its volume slow
    int64_t absent_ns = 200 * kSecondNs;    // a HEAD that has stood so long, and could be read well all the time: nobody waits for the node any more
    int64_t slow_read_ns = kSecondNs;       // a read that took longer is not "well": a server that was away answers old data for a while
  };
  enum class Presence : uint8_t { kLive, kSilent, kAbsent };
  struct Node {
    uint32_t ordinal = 0;  // on this mount; 0: there are too many nodes
    uint32_t epoch = 0;    // the node's highest; 0: none is known
    Presence presence = Presence::kSilent;
    std::optional<Head> head;  // the last one read, of that epoch
    std::string problem;       // why no newer HEAD was read; empty: no problem
    std::optional<int64_t> moved_ns;  // when the HEAD was last seen to move, by the clock handed in
    std::optional<int64_t> wrote_ns;  // when its HEAD was last seen to tell of more journal
    std::optional<int64_t> stands_since_ns;  // since when the HEAD, or its absence, has stood while it could be read well
    Outlook outlook() const;
    bool is_nearly_full() const;  // as its HEAD tells
  };

  // `ordinals`: those given in earlier lives. Ordinals of nodes that the volume no longer has are given to others.
  Discovery(std::shared_ptr<Volume> volume, FileIdentity own, const Clock& clock, std::map<std::string, uint32_t> ordinals, Limits limits);

  enum class Listing : uint8_t {
    kWhereDue,  // directories that may have changed, now and then
    kSeldom,    // the same, and which nodes there are every fourth second only
    kAll,       // everything: finds all that was there before the call
  };
  // Reads each HEAD, and directories. Call every one to two seconds.
  void look(Listing listing = Listing::kWhereDue);
  const std::map<std::string, Node>& nodes() const { return nodes_; }
  // To be kept for the next life.
  const std::map<std::string, uint32_t>& ordinals() const { return ordinals_; }
  const std::string& problem() const { return problem_; }  // in listing the nodes

 private:
  struct Watch {
    FilePtr head;                            // of the node's epoch
    std::optional<int64_t> epochs_listed_ns;
  };
  void list_nodes(int64_t now_ns);
  void take_ordinal(const std::string& name, Node& node);
  void look_at(const std::string& name, Node& node, Watch& watch, Listing listing);
  Result<bool> read(const std::string& name, Node& node, Watch& watch, Listing listing, int64_t now_ns);
  Result<bool> list_its_epochs(const std::string& name, Node& node, Watch& watch);
  Result<bool> read_head(const std::string& name, Node& node, Watch& watch);
  Presence presence(const Node& node, bool moved, int64_t now_ns) const;

  const std::shared_ptr<Volume> volume_;
  const FileIdentity own_;
  const Clock& clock_;
  const Limits limits_;
  std::map<std::string, uint32_t> ordinals_;
  std::map<std::string, Node> nodes_;
  std::map<std::string, Watch> watches_;
  std::optional<int64_t> listed_ns_;
  std::string problem_;
  BlockBuffer buffer_;
};

}  // namespace kvcachefs

// Keeps up with the other nodes of the volume: finds them, follows each one's journals into an index on this machine and into the view of names,
// and tells them how this node is doing (HEAD) and how far it has followed them (ACKS). Writes nothing in a peer's part.
//
// No thread and no clock of its own. One thread at a time calls round(), stop() and the constructor; they block on the volume and on
// local files. Any thread may call the others, beside them; they do no I/O unless their comment says so.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/base/backoff.h"
#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/base/records.h"
#include "store/base/result.h"
#include "store/extent/extents.h"
#include "store/journal/journal.h"
#include "store/peers/claim_holder.h"
#include "store/peers/discovery.h"
#include "store/peers/index_room.h"
#include "store/peers/node_generations.h"
#include "store/peers/ordinals_file.h"
#include "store/peers/peer_status.h"
#include "store/peers/slot_writer.h"
#include "store/peers/view.h"
#include "store/volume/volume.h"

namespace kvcachefs {

class Peers {
 public:
  static constexpr int64_t kSecondNs = Discovery::kSecondNs;
  struct Parts {
    std::shared_ptr<Volume> volume;
    FileIdentity own;
    const Clock& clock;
    std::string directory;  // on a local file system, for this class alone: indexes in <node>/, ordinals in .ordinals
    NameView& view;
    // How this node is doing: end and beginning of its journals, checkpoint, bytes, address. Called on any thread. Peers fills in the rest.
    std::function<Head()> own_head;
    // Runs `work` while nobody reads the view or its parts, and returns the result of `work`.
    std::function<Status(const std::function<Status()>& work)> alone;
    // Within `alone`: before (may be empty) and after a batch of a peer is applied. position_of() gives its position in the journal.
    std::function<void(uint32_t ordinal, const Batch& batch)> applying = {};
    std::function<void(uint32_t ordinal, const PeerBatch& batch)> applied;
    std::function<void(uint32_t ordinal)> replaced;  // within `alone`: the peer's part was loaded for the first time, was replaced, or is gone
    std::function<void(const Batch& batch)> loaded = {};  // on the thread of round(); may be empty: a peer's batch that a load applied before the part is shown
    // Within `alone`; may be empty. The peer's objects, in its ids, ascending, that were removed and are still read here.
    std::function<std::vector<ObjectId>(uint32_t ordinal)> pinned;
    std::function<void(bool refreshes)> settle = {};  // on the thread of round(), not within `alone`: everything is applied, and refreshes are answered next
    // This node's statements, changed within `alone` only. Needed to forget what peers said of its objects once answered. Null: it is kept.
    std::shared_ptr<const Statements> own_statements;
    std::function<void()> head_written = {};  // on the thread of round(); may be empty
    std::function<uint64_t()> requests;  // how many requests clients made so far. Any thread; may be empty: taken as always busy
    std::function<IndexRoom(uint64_t growth_bytes)> indexes_grow = {};  // on the thread of round(); may be empty. The bytes by which the indexes here grow at their next commits
    ClaimUser* claim_user = nullptr;  // null: this node claims nothing of the capacity, and is held to nothing
    Discovery::Limits limits = {};
    int64_t poll_every_ns = kSecondNs / 4;
    size_t open_extents = 64;  // of each peer, kept open for later reads
  };
  explicit Peers(Parts parts);
  ~Peers();

  // Does all that is due: HEAD, looking, one load, polls, ACKS, commits. Returns when the next round is due, on the monotonic clock; never in the past.
  int64_t round();
  // Gives up a load under way and ends the round soon; later rounds do nothing.
  void end_soon() { ending_ = true; }
  // Call after the last round(), before the view and this object go: commits what was applied. Does not touch the volume: the standing HEAD tells the others.
  void stop();
  // Call after stop(), when nobody reads the view any more: keeps the largest indexes, up to `most_bytes` in all. The next life makes the others anew.
  void keep_indexes_within(uint64_t most_bytes);

  void set_poll_every(int64_t every_ns) { poll_every_ns_ = every_ns; }
  // The next round writes HEAD: after a checkpoint or a new journal file others need not wait a second for it.
  void tell_soon() { head_soon_ = true; }
  void begin_claim();  // on the capacity; call before the first round
  // Call on another thread, each second: if the thread of round() is busy for long this tells the claim, or others would take it for given up. Blocks.
  void step_claim_if_late();
  void end_claim();    // call after the last round
  void want_room() { wants_room_ = true; }  // more is wished for than at the last round
  // Calls `done` once all that peers published before this call is applied, or with the error that kept it from that. Runs on the thread of round(), which
  // the caller wakes: the next rounds look for everything and wait for nodes that are being loaded. Absent nodes are passed over.
  using Refreshed = std::move_only_function<void(Status)>;
  void refresh(Refreshed done);

  std::vector<PeerStatus> status() const;
  std::string problem() const;  // what this node itself cannot do: list the nodes, or write HEAD, ACKS or ordinals. Empty: nothing
  std::shared_ptr<Extents> extents_of(uint32_t ordinal) const;  // to read bodies of that node. Null: no such node
  std::optional<std::string> node_of(uint32_t ordinal) const;
  uint32_t generation_of(uint32_t ordinal) const { return generations_.of(ordinal, instance_); }  // of ids with this ordinal
  // Which objects that peer has learned to follow this object of it. Reads that node's index, which is in memory.
  std::optional<SuccessorsRecord> successors_of(ObjectId id) const;
  // Everything before this position in that node's journals is applied; also valid within `applied` and `replaced`. Zeros: nothing is.
  JournalPosition position_of(uint32_t ordinal) const;
  size_t known() const;  // number of other nodes of the volume
  // Whether another node was seen to live, and has not become absent since.
  bool has_peers() const;

  using Acknowledged = PeersAcknowledged;
  // Does not wait for nodes that are absent, left out, whose daemon has ended, or whose HEAD has stood for `silent_ns` while it could be read.
  // With no node to wait for it is the end of the journal. Blocks on the volume: lists the nodes, reads each one's ACKS, probes locks.
  Acknowledged acknowledged_by_all(int64_t silent_ns = INT64_MAX) const;

 private:
  struct Peer;
  using Known = KnownPeer;
  using PeerPtr = std::unique_ptr<Peer>;

  void look(bool thorough, int64_t now_ns);
  void take_in_nodes();
  void remove_leaving();
  void remove_unknown_directories();
  void keep_ordinals(int64_t now_ns);
  std::unique_ptr<Peer> make_peer(const std::string& name, const Discovery::Node& node);
  std::string directory_of(const std::string& node) const { return parts_.directory + "/" + node; }
  void load_due(bool thorough);
  bool is_loaded_for_refresh(const Peer& peer) const;
  void load(Peer& peer);
  Status meanwhile();
  Status show();
  void poll_due(bool thorough);
  void poll_answers(bool thorough);
  void poll(Peer& peer, const Discovery::Node& node, bool thorough);
  bool has_read(const std::string& node, JournalPosition position) const;
  void commit_due();  // this and the following: in peers_kept.cc
  bool may_load(Peer& peer);
  void let_go(Peer& peer);
  bool commit(Peer& peer);
  IndexRoom tell_growth();
  void give_back_unused(const IndexRoom& room);
  void forget_answered(int64_t now_ns);
  void tell_trouble(Peer& peer);
  int64_t poll_period_ns(const Discovery::Node& node) const;
  int64_t due_ns(const Peer& peer) const;
  int64_t next_round_ns() const;
  void note_requests(int64_t now_ns);
  void write_head(int64_t now_ns);
  Status tell_head(const OwnFigures& own, uint64_t claim_bytes, uint64_t wish_bytes);
  void step_claim(int64_t now_ns);
  int64_t claim_due_ns() const;
  void write_acks(int64_t now_ns);
  std::optional<Acks> acks_to_write() const;
  void note_problem(const char* of, const Status& status);

  void publish(const Peer& peer);
  void set_position(uint32_t ordinal, JournalPosition position);
  void answer_refreshes();
  std::optional<Status> refreshed() const;

  const Parts parts_;
  std::array<std::byte, 16> instance_{};
  NodeGenerations generations_;
  std::string host_, boot_id_;
  std::atomic<bool> ending_{false}, head_soon_{false}, wants_room_{false}, let_go_soon_{false};
  mutable std::atomic<bool> look_soon_{false};  // for a node that is not known yet

  // Used by the thread of round() only:
  std::unique_ptr<Discovery> discovery_;
  std::map<std::string, PeerPtr> peers_;
  std::vector<PeerPtr> gone_;           // the view still has their parts
  std::vector<uint32_t> unshown_;       // the view has another part of these, or none
  struct Leaving { std::string node; std::weak_ptr<const Index> index; };
  std::vector<Leaving> leaving_;        // their directories are removed once nobody reads them
  size_t followed_ = 0;                 // nodes that are not absent
  Peer* loading_ = nullptr;
  uint64_t requests_ = 0;
  bool quiet_ = false, removed_unknown_ = false;  // no requests for a minute; the directories of unknown nodes were removed
  int64_t look_every_ns_ = kSecondNs, meanwhile_ns_ = 0, refreshed_since_ns_ = 0;  // look()'s pace; during a load: when the rest is due; when the last waiting refresh was asked for
  std::vector<Refreshed> refreshes_;    // rounds are thorough while there are any
  Ordinals kept_ordinals_;
  Backoff ordinals_pause_{kSecondNs, 60 * kSecondNs};
  mutable Mutex<LockRank::kClaim> claim_mutex_;  // taken before all other locks, and held over I/O; guards claims_, and HEAD where there are claims
  std::atomic<int64_t> poll_every_ns_, claim_stepped_ns_{INT64_MAX};
  std::unique_ptr<ClaimHolder> claims_;  // null: without a claim_user
  HeadWriter head_;
  AcksWriter acks_;
  std::vector<Acks::Peer> written_acks_;
  bool acks_soon_ = false;              // a peer gave places up, and waits for ACKS before it reuses their space
  std::optional<int64_t> looked_ns_, head_ns_, acks_ns_, forgot_ns_, asked_for_ns_, committed_early_ns_, let_go_ns_;
  std::map<std::pair<std::string, std::string>, JournalPosition> answers_;  // a minute ago: how far the second node had answered the first

  mutable LeafMutex mutex_;  // a leaf; guards all below; never held across I/O or a call of `parts_`
  std::map<std::string, Known> known_;
  std::map<uint32_t, std::pair<std::string, std::shared_ptr<Extents>>> by_ordinal_;
  std::map<uint32_t, std::shared_ptr<const Index>> indexes_;
  std::map<uint32_t, JournalPosition> positions_;
  std::map<std::string, std::string> problems_;
  std::vector<Refreshed> asked_;
  bool stopped_ = false;
};

}  // namespace kvcachefs

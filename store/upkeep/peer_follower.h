// Follows the other nodes of the volume: runs the thread that reads them (Peers), applies their batches to what clients see (Tree), and
// journals answers to their statements (Committer). Used only where a volume may have several nodes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "store/api/request_types.h"
#include "store/api/store_status.h"
#include "store/base/backoff.h"
#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/base/running_clock.h"
#include "store/base/work_queue.h"
#include "store/chain/access_listener.h"
#include "store/commit/commit_queue.h"
#include "store/extent/extents.h"
#include "store/journal/node_fence.h"
#include "store/peers/peers.h"
#include "store/space/record_space.h"
#include "store/tree/tree.h"
#include "store/upkeep/catch_up.h"
#include "store/upkeep/lost_names.h"
#include "store/upkeep/peer_touches.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// Thread-safe, except start(), stop() and step(), which the owner calls one at a time. Rounds block on the volume; they take only the
// Tree's lock, for one batch of a peer at a time.
class PeerFollower {
 public:
  struct Parts {
    std::shared_ptr<Volume> volume;
    FileIdentity own;
    std::string directory;  // for the indexes of peers, on this machine
    Tree& tree;
    CommitQueue& commits;
    const Clock& clock;
    std::function<Head()> own_head;  // without the checkpoint. Any thread
    std::function<void()> acknowledged;  // called when others have followed this node further. On the thread of the rounds
    std::function<uint64_t()> requests;  // number of clients' requests so far
    NodeFence* fence = nullptr;
    RecordSpace& own_records;  // this node's space for records: what it keeps of other nodes is added there
    std::function<IndexRoom(uint64_t growth_bytes)> index_room;  // claims room for announced growth; may be empty: unlimited
    ClaimUser* claim_user = nullptr;  // null: this node is held to its own options
    RunningClock* running = nullptr;  // ticked while threads run; may be null
    HybridClock& stamps;
    PeerTouches& touches;      // objects used here
    LostNames& lost_names;
    std::function<bool()> has_room;  // for records that nobody waits for
    AccessListener& accesses;  // is told which objects of this node other nodes used
    std::function<void(ObjectId)> suspected;  // an object of this node of which another node read wrong bytes
    std::function<void()> appeared;  // the first peer appeared: the kernel may keep answers given before for too long
  };
  explicit PeerFollower(Parts parts);
  ~PeerFollower() { stop(); }

  Status start();
  // Answers pending calls. Once no thread of this class runs, stores what was read for the next run.
  void stop();
  // Does what is due, where no thread runs; step_if_wanted() only if a claim is wanted.
  void step();
  void step_if_wanted() { if (claim_wanted_.exchange(false)) step(); }

  // This node's claim on the capacity, as in Peers. Call begin_claim() before start(), end_claim() after stop(), want_room() from any
  // thread.
  void begin_claim() { peers_->begin_claim(); }
  void end_claim() { peers_->end_claim(); }
  void want_room();

  // Call after stop(), when no thread reads the Tree any more: trims the indexes of the peers, if they are on the volume, to `most_bytes`.
  void keep_indexes_within(uint64_t most_bytes);

  // Bytes that HEAD, ACKS (written once there is another node) and, on a local volume, the indexes of the peers take. Looks at local files.
  uint64_t bytes_on_volume();
  // Tells Parts::own_records the same. Any thread.
  void measure();

  void set_poll_every(int64_t every_ns);
  void note_checkpoint(HeadCheckpoint newest);
  // Completes once everything that peers had published before is seen, or with the error that prevented it; on the thread of the rounds.
  void refresh(StatusCompletion done);
  CatchUp& catch_up() { return catch_up_; }

  // How far the others had followed this node at the last read; null: not read yet. A caller that needs it to move calls
  // want_acknowledged(), and Parts::acknowledged reports progress.
  using Acknowledged = std::shared_ptr<const Peers::Acknowledged>;
  Acknowledged acknowledged() const;
  void want_acknowledged(bool wanted);
  // Reads the current state. Any thread; blocks on the volume.
  Acknowledged read_acknowledged();

  // Whether they still need anything that this node gave up before. Any thread; blocks on the volume.
  FollowedByPeers followed_to(JournalPosition position);

  // None of these blocks.
  bool has_peers() const { return has_peers_.load(std::memory_order_relaxed); }  // also while this is not known yet
  std::shared_ptr<Extents> extents_of(uint32_t ordinal) const { return peers_->extents_of(ordinal); }
  std::string node_of(ObjectId id) const;
  uint32_t generation_of(ObjectId id) const { return peers_->generation_of(id.node_ordinal()); }  // of an object of another node
  std::optional<SuccessorsRecord> successors_of(ObjectId id) const { return peers_->successors_of(id); }
  std::vector<PeerStatus> status() const { return peers_->status(); }
  std::string problem() const { return peers_->problem(); }

 private:
  int64_t round();
  void run_claim();
  void settle(bool at_once);
  int64_t look_at_acknowledged();
  void answer(Tree::Write& tree, uint32_t ordinal);
  void answer_again();
  void close_what_went();
  void drop_left_directories();
  void forget_answered();
  void tell_touches();
  void take_touches(const Batch& batch);
  void look_for_new_life(uint32_t ordinal, uint32_t epoch);
  Head own_head() const;
  IndexRoom take_growth(uint64_t growth_bytes);
  uint64_t kept_ahead_bytes() const;

  const Parts parts_;
  std::unique_ptr<Peers> peers_;
  struct Touches { std::atomic<bool> on_their_way{false}, failed{false}; };
  CatchUp catch_up_{parts_.running, [this](StatusCompletion done) { refresh(std::move(done)); }};
  const std::shared_ptr<Touches> touches_ = std::make_shared<Touches>();  // shared: the commit that tells them may end after this object
  std::atomic<bool> has_peers_{true}, stopping_{false}, acknowledged_wanted_{false}, has_thread_{false}, claim_wanted_{false}, had_peers_{false}, catches_up_{false};
  std::atomic<uint64_t> growth_bytes_{0};  // of the indexes of peers, at their next commits
  Wakeup wakeup_, claim_wakeup_;
  std::thread thread_, claim_thread_;

  // Of the thread of the rounds:
  bool names_went_ = false;         // names of peers, since directories were last looked at
  bool directories_left_ = false;   // a pass over them is not over yet
  Tree::Write* tree_ = nullptr;     // set while Peers has it locked, for its callbacks
  std::vector<Record> to_journal_;  // answers that something was seen
  std::vector<ObjectId> used_elsewhere_, suspected_;  // objects of this node
  std::map<uint32_t, uint32_t> epochs_;   // of others, by ordinal: the epochs that are followed
  std::vector<uint32_t> begun_anew_;      // ... and the nodes that have begun another one
  std::map<uint32_t, std::vector<ObjectId>> damaged_told_;  // by the last commit of touches_, which the journal may refuse
  std::map<std::string, JournalPosition> answered_;  // by peer: up to where it had answered this node's statements a minute ago
  int64_t answered_ns_ = 0, forgot_ns_ = 0, touched_ns_ = 0, closed_ns_ = 0, measured_ns_ = 0, room_wanted_ns_ = 0;
  std::atomic<int64_t> due_ns_{0};  // for stores that are pumped by hand
  Backoff acknowledged_pause_;  // grows while nothing moves

  mutable LeafMutex mutex_;  // a leaf; guards:
  std::optional<HeadCheckpoint> checkpoint_;
  Acknowledged acknowledged_;
};

}  // namespace kvcachefs

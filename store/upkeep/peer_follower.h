// The other nodes of the volume, for this mount: the thread that follows them (Peers), what their batches change for clients (Tree), and
// the answers to what they said (Committer). Only where a volume may have several nodes.
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
#include "store/upkeep/lost_names.h"
#include "store/upkeep/peer_touches.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// Thread-safe but for start(), stop() and step(), which the owner calls one at a time. Rounds block on the volume, and take the lock of the Tree alone, a batch of a peer at a time.
class PeerFollower {
 public:
  struct Parts {
    std::shared_ptr<Volume> volume;
    FileIdentity own;
    std::string directory;  // of indexes of peers, on this machine
    Tree& tree;
    CommitQueue& commits;
    const Clock& clock;
    std::function<Head()> own_head;  // but for the checkpoint. Any thread
    std::function<void()> acknowledged;  // others have followed this node further than a moment ago. On the thread of the rounds
    std::function<uint64_t()> requests;  // of clients, so far
    NodeFence* fence = nullptr;
    RecordSpace& own_records;  // of what this node takes on the volume: what it keeps of others is told to it
    std::function<IndexRoom(uint64_t growth_bytes)> index_room;  // of what was told to come; may be empty: as much as they want
    ClaimUser* claim_user = nullptr;  // null: this node is held to its own options
    RunningClock* running = nullptr;  // ticked while threads run; may be null
    HybridClock& stamps;
    PeerTouches& touches;      // of what is used here
    LostNames& lost_names;
    std::function<bool()> has_room;  // for records that nobody waits for
    AccessListener& accesses;  // told of what others used of this node's
    std::function<void()> appeared;  // a volume without peers got one: what the kernel was told before it may go by for too long
  };
  explicit PeerFollower(Parts parts);
  ~PeerFollower() { stop(); }

  void start();
  // Answers what waits. When no thread of this runs any more it keeps what was read, for the next life.
  void stop();
  // What is due, where no thread runs; the second, only what a claim is wanted for.
  void step();
  void step_if_wanted() { if (claim_wanted_.exchange(false)) step(); }

  // The claim of this node on the capacity: as Peers says. The first before start(), the second behind stop(), the last from any thread.
  void begin_claim() { peers_->begin_claim(); }
  void end_claim() { peers_->end_claim(); }
  void want_room();

  // Behind stop(), when nobody reads the Tree any more: where the indexes of the peers are on the volume no more of them stays there.
  void keep_indexes_within(uint64_t most_bytes);

  // What HEAD, on a local volume the indexes of the peers, and ACKS take there, which are written once there is another node. Looks at local files.
  uint64_t bytes_on_volume();
  // The same, told to Parts::own_records. Any thread.
  void measure();

  void set_poll_every(int64_t every_ns);
  void note_checkpoint(HeadCheckpoint newest);
  // Completes once all is seen that peers had published before, or with what kept it from that; on the thread of the rounds.
  void refresh(StatusCompletion done);

  // How far the others had followed this node when that was read last; null: it was not read yet. Who needs it to move asks for that,
  // and is told by Parts::acknowledged.
  using Acknowledged = std::shared_ptr<const Peers::Acknowledged>;
  Acknowledged acknowledged() const;
  void want_acknowledged(bool wanted);
  // As it is now. Any thread; blocks on the volume.
  Acknowledged read_acknowledged();

  // Whether they need anything yet of what this node gave up before. Any thread; blocks on the volume.
  FollowedByPeers followed_to(JournalPosition position);

  // None of these blocks.
  bool has_peers() const { return has_peers_.load(std::memory_order_relaxed); }  // also while that is not known yet
  std::shared_ptr<Extents> extents_of(uint32_t ordinal) const { return peers_->extents_of(ordinal); }
  std::string node_of(ObjectId id) const;
  uint32_t generation_of(ObjectId id) const { return peers_->generation_of(id.node_ordinal()); }  // of one that is not this node's
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
  const std::shared_ptr<Touches> touches_ = std::make_shared<Touches>();  // the commit that tells them may end after this
  std::atomic<bool> has_peers_{true}, stopping_{false}, acknowledged_wanted_{false}, has_thread_{false}, claim_wanted_{false}, had_peers_{false};
  std::atomic<uint64_t> growth_bytes_{0};  // of the indexes of peers, at their next commits
  Wakeup wakeup_, claim_wakeup_;
  std::thread thread_, claim_thread_;

  // Of the thread of the rounds:
  bool names_went_ = false;         // of peers, since directories were looked at
  Tree::Write* tree_ = nullptr;     // while Peers has it locked, for what it calls back
  std::vector<Record> to_journal_;  // that something was seen
  std::vector<ObjectId> used_elsewhere_;  // of this node's
  std::map<uint32_t, uint32_t> epochs_;   // of others, by ordinal: which are followed
  std::vector<uint32_t> begun_anew_;      // ... and who has begun another one
  std::map<std::string, JournalPosition> answered_;  // what this node said, by whom, a minute ago
  int64_t answered_ns_ = 0, forgot_ns_ = 0, touched_ns_ = 0, closed_ns_ = 0, measured_ns_ = 0, room_wanted_ns_ = 0;
  std::atomic<int64_t> due_ns_{0};  // of stores that are pumped by hand
  Backoff acknowledged_pause_;  // longer where nothing moves

  mutable LeafMutex mutex_;  // a leaf; guards:
  std::optional<HeadCheckpoint> checkpoint_;
  Acknowledged acknowledged_;
};

}  // namespace kvcachefs

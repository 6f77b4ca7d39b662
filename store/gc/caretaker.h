// Does what the daemons of nodes that are gone would do, while something needs it: where the capacity is short it evicts the oldest
// of their bodies, and it answers what others stated about their files, so that the space comes back. It does nothing else for them: their files are
// read on as they are. But a node that is gone for an hour and has no file is taken out of the volume: nodes named by containers would otherwise fill
// up its list of nodes.
//
// It opens the node's part as a mount would, in a new epoch, without clients (Care::kTend). So LOCK keeps all others out, and nothing that a daemon
// appends later that was only away counts for anybody. It leaves when nothing needs it any more, and within a second or two when the node's daemon
// begins (node_wanted.h). If a dead machine's LOCK stays taken (NFS 3), nobody can tend that node.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/base/work_queue.h"
#include "store/store.h"

namespace kvcachefs {

// The living nodes try to tend a node in the order of this rank, which is the same on each of them, whatever its build; greater ranks first.
uint64_t rank_of(const std::string& by, const std::string& node);

struct CaretakerStatus {
  std::string tends;    // the node; empty: none
  std::string problem;  // of the last try; empty: it went well
  // Since the start. returned_bytes: by how much the parts of others shrank; taken_out: nodes without files that left the volume.
  uint64_t turns = 0, evicted_objects = 0, evicted_bytes = 0, returned_bytes = 0, taken_out = 0;
};

// All I/O is done on one thread of its own.
class Caretaker {
 public:
  // Durations; tests use shorter ones.
  struct Times {
    int64_t look_ms = 2'000;           // between looks for nodes that are gone
    int64_t stood_ms = 30'000;         // on a network volume a node is taken for gone only if its HEAD has stood so long
    int64_t turn_of_each_ms = 10'000;  // of several living nodes the first tries at once, and each further one so much later
    int64_t short_lately_ms = 60'000;  // a shortage of capacity within this time is worth a turn, or lets one go on
    // Within a turn:
    int64_t step_ms = 1'000;           // between checks whether it goes on
    int64_t uses_ms = 8'000;           // before anything is evicted: within this time others tell again what they use of the node
    int64_t settled_ms = 10'000;       // it lasts at least so long
    int64_t idle_ms = 60'000;          // it ends when nothing was evicted for so long: what is left is younger than what others evict
    int64_t give_back_ms = 30'000;     // then dead space has so long to come back
    int64_t most_ms = 300'000;         // then another node has its turn, or the same one again
    int64_t again_ms = 10'000;         // between two turns of one node
    int64_t in_vain_ms = 60'000, in_vain_most_ms = 3'600'000;  // the same if the last turn did nothing; doubles each time
    int64_t index_ms = 600'000;        // the index of a turn is kept so long for the next one
    int64_t leaves_ms = 3'600'000;     // a node without files is taken out when it is gone for so long; also the time between two looks
  };
  // `store`: this daemon's own; outlives this object.
  Caretaker(Store& store, Clock& clock, Times times);
  Caretaker(Store& store, Clock& clock) : Caretaker(store, clock, Times()) {}
  ~Caretaker() { stop(); }
  Caretaker(const Caretaker&) = delete;
  Caretaker& operator=(const Caretaker&) = delete;

  void start();  // if no thread can be started, nothing is done, and the status has the reason
  // Ends a turn that is under way. After it returns nothing is asked of the daemon's own store.
  void end_soon();
  // The same; blocks until the tended part is closed.
  void stop();
  CaretakerStatus status() const;

 private:
  struct Node {  // a node whose HEAD stands
    int64_t try_after_ms = 0, tried_ms = 0, pause_ms = 0, look_for_files_ms = 0;
    int64_t look_for_idle_ms = 0;
    std::optional<uint32_t> idle_epoch;  // of the life whose idle part was given back already
    uint32_t own_epoch = 0;     // of the last turn here
    int64_t gone_since_ms = 0;  // since when its own daemon had been gone by then
  };
  class Turn;

  void run();
  void tell_problem(std::string problem);
  std::optional<StoreStatus> own_status();
  int64_t now_ms() const { return clock_.monotonic_ns() / 1'000'000; }
  std::optional<std::string> choose(const StoreStatus& status, const StoreOptions& options);
  std::optional<std::string> choose_to_leave(const StoreStatus& status, const StoreOptions& options) const;
  bool is_gone_for(const StoreStatus& status, const StoreStatus::Peer& peer, int64_t after_ms) const;
  int64_t gone_for_ms(const StoreStatus::Peer& peer) const;
  void give_back_idle_parts(const StoreStatus& status, const StoreOptions& options);
  bool is_taken(const std::string& name);
  void tend(const std::string& name, const StoreStatus& status);
  bool was_short_lately() const;
  std::string index_for(const StoreStatus& status, const std::string& name);
  void remove_index();
  void take_out_if_empty(const std::string& name, const StoreStatus& status);
  Status keep_directory(const std::string& path);

  Store& store_;
  Clock& clock_;
  const Times times_;
  std::atomic<bool> stopping_{false};
  Wakeup wakeup_;
  std::thread thread_;

  // Used by the thread only:
  std::shared_ptr<Volume> volume_;  // to look at locks
  std::map<std::string, Node> nodes_;
  std::optional<int64_t> short_ms_;  // when the capacity was last seen to be short
  std::string indexes_;              // directory of the indexes of turns
  std::string index_of_;             // the node whose index is kept there; empty: none
  int64_t tended_ms_ = 0;            // the end of the last turn

  Mutex<LockRank::kOwner> own_mutex_;  // held while this daemon's own store is asked for anything, over no I/O; guards:
  bool own_is_gone_ = false;
  mutable LeafMutex mutex_;  // a leaf; guards:
  CaretakerStatus status_;
};

}  // namespace kvcachefs

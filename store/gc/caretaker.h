// Does for nodes of the volume whose daemons are gone what those would do, while something needs it: evicts of theirs what is oldest of all where the
// capacity is short, and answers what others said of their files, so that the space comes back. Nothing else is done for them: what they stored is
// read on as it is. But one that is gone for an hour and has no file leaves the volume: those whose daemons are named by containers would fill up its
// list of nodes.
//
// It opens the node's part as a mount would, in a new epoch, without clients (Care::kTend), so LOCK keeps all others out, and whatever a daemon that
// was only away appends later counts for nobody. It leaves when nothing needs it any more, and within a second or two when the daemon of the node
// begins (node_wanted.h). Where LOCK of a machine that died stays taken (NFS 3) nobody can tend its node.
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

struct CaretakerStatus {
  std::string tends;    // the node; empty: none
  std::string problem;  // of the last try; empty: it went well
  // Since the start; returned_bytes: by which the parts of others became smaller; taken_out: nodes without files that left the volume.
  uint64_t turns = 0, evicted_objects = 0, evicted_bytes = 0, returned_bytes = 0, taken_out = 0;
};

// One thread of its own, on which all I/O is done.
class Caretaker {
 public:
  // How long things last; tests have them shorter.
  struct Times {
    int64_t look_ms = 2'000;           // between looks at who is gone
    int64_t stood_ms = 30'000;         // on a network volume nobody is taken for gone whose HEAD stands for less
    int64_t turn_of_each_ms = 10'000;  // of several living nodes the first tries at once, and each further one so much later
    int64_t short_lately_ms = 60'000;  // the capacity was short so long ago: it is worth a turn, or that one goes on
    // Of a turn:
    int64_t step_ms = 1'000;           // between looks whether it goes on
    int64_t uses_ms = 8'000;           // before anything is evicted: others tell within it what they use of the node
    int64_t settled_ms = 10'000;       // it lasts so long at least
    int64_t idle_ms = 60'000;          // it ends when nothing more went for so long: what is left is younger than what others evict
    int64_t give_back_ms = 30'000;     // then what is dead has so long to come back
    int64_t most_ms = 300'000;         // then the next node has its turn, or the same one again
    int64_t again_ms = 10'000;         // between two turns of one node
    int64_t in_vain_ms = 60'000, in_vain_most_ms = 3'600'000;  // ... if the last did nothing, and twice that each time
    int64_t index_ms = 600'000;        // its index is kept for the next one
    int64_t leaves_ms = 3'600'000;     // a node without files is taken out when it is gone for so long, and looked at again after as long
  };
  // `store` is this daemon's own, and outlives this.
  Caretaker(Store& store, Clock& clock, Times times);
  Caretaker(Store& store, Clock& clock) : Caretaker(store, clock, Times()) {}
  ~Caretaker() { stop(); }
  Caretaker(const Caretaker&) = delete;
  Caretaker& operator=(const Caretaker&) = delete;

  void start();
  // Nothing is asked of the daemon's own store any more when it returns, and a turn that is under way ends.
  void end_soon();
  // The same; blocks until that part is closed.
  void stop();
  CaretakerStatus status() const;

 private:
  struct Node {  // one whose HEAD stands
    int64_t try_after_ms = 0, tried_ms = 0, pause_ms = 0, look_for_files_ms = 0;
    int64_t look_for_idle_ms = 0;
    std::optional<uint32_t> idle_epoch;  // of the life that holds nothing for nothing any more
    uint32_t own_epoch = 0;     // of the last turn here
    int64_t gone_since_ms = 0;  // ... and since when its own daemon was gone by then
  };
  class Turn;

  void run();
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

  // Of the thread:
  std::shared_ptr<Volume> volume_;  // to look at locks
  std::map<std::string, Node> nodes_;
  std::optional<int64_t> short_ms_;  // when the capacity was seen to be short last
  std::string indexes_;              // directory of the indexes of turns
  std::string index_of_;             // the node whose index is kept there; empty: none
  int64_t tended_ms_ = 0;            // the end of the last turn

  Mutex<LockRank::kOwner> own_mutex_;  // held while this daemon's own store is asked for anything, over no I/O; guards:
  bool own_is_gone_ = false;
  mutable LeafMutex mutex_;  // a leaf; guards:
  CaretakerStatus status_;
};

}  // namespace kvcachefs

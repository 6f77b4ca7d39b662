// Does for nodes of the volume whose daemons are gone what those would do, while something needs it: evicts of theirs what is oldest of all where the
// capacity is short, and answers what others said of their files, so that the space comes back. Nothing else is ever done for them: what
// they stored is read on as it is.
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
  uint64_t turns = 0, evicted_objects = 0, evicted_bytes = 0, returned_bytes = 0;  // since the start; the last by which the parts of others became smaller
};

// One thread of its own, on which all I/O is done; a leaf mutex for status().
class Caretaker {
 public:
  // How long things last; tests have them shorter.
  struct Times {
    int64_t look_ms = 2'000;           // between looks at who is gone
    int64_t stood_ms = 30'000;         // on a network volume nobody is taken for gone whose HEAD stands for less
    int64_t turn_of_each_ms = 10'000;  // of several living nodes the first tries at once, and each further one so much later
    int64_t short_lately_ms = 60'000;  // the capacity was short so long ago: it is worth a turn, or that one goes on
    int64_t settled_ms = 10'000;       // a turn lasts so long at least
    int64_t idle_ms = 60'000;          // it ends when nothing more went for so long of this node, which has nothing that is old
    int64_t give_back_ms = 30'000;     // then what is dead has so long to come back
    int64_t again_ms = 10'000;         // between two turns of one node
    int64_t in_vain_ms = 60'000, in_vain_most_ms = 3'600'000;  // ... if the last did nothing, and twice that each time
  };
  // `store` is this daemon's own, and outlives this.
  Caretaker(Store& store, Clock& clock, Times times);
  Caretaker(Store& store, Clock& clock) : Caretaker(store, clock, Times()) {}
  ~Caretaker() { stop(); }
  Caretaker(const Caretaker&) = delete;
  Caretaker& operator=(const Caretaker&) = delete;

  void start();
  // Ends a turn that is under way; blocks until that part is closed.
  void stop();
  CaretakerStatus status() const;

 private:
  struct Node {  // one whose HEAD stands
    int64_t try_after_ms = 0, pause_ms = 0;
    uint32_t own_epoch = 0;        // of the last turn here
    int64_t gone_since_ms = 0;     // with that: what is known from before it
  };
  class Turn;

  void run();
  int64_t now_ms() const { return clock_.monotonic_ns() / 1'000'000; }
  std::optional<std::string> choose(const StoreStatus& status, const StoreOptions& options);
  int64_t gone_for_ms(const StoreStatus::Peer& peer) const;
  void tend(const std::string& name, const StoreStatus& status);
  void remove_indexes();

  Store& store_;
  Clock& clock_;
  const Times times_;
  std::atomic<bool> stopping_{false};
  Wakeup wakeup_;
  std::thread thread_;

  // Of the thread:
  std::map<std::string, Node> nodes_;
  std::optional<int64_t> short_ms_;  // when the capacity was seen to be short last

  mutable LeafMutex mutex_;  // guards:
  CaretakerStatus status_;
};

}  // namespace kvcachefs

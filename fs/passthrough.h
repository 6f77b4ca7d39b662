// FUSE passthrough: the kernel reads a solo body straight from its extent file, and a big body in RAM straight from its
// memory file. The kernel's rules:
//  - while an inode is open, it has one backing id; every further read-only open must carry the same one;
//  - while an inode has a passthrough open, it takes no cached or direct open. So an open for writing (or a truncate by path)
//    is answered ESTALE, and the repeated lookup gets a *new nodeid* for the object, an alias. Old handles keep the bytes
//    they opened, and their nodeid keeps the size of those bytes;
//  - it has a size, attributes and pages for each nodeid. So the opens of a file that go through the daemon all have one nodeid: an open of
//    another one is answered ESTALE while that one is open. Attributes of a file with aliases are not cached.
// Also keeps, without passthrough too, which state of another node's file each open nodeid shows: hold().
// Thread-safe. One leaf mutex; not held during calls of the kernel or the store. If an open arrives while the backing file of its nodeid is
// being registered, its decision waits for that: otherwise it could be answered ESTALE twice in a row, and the kernel repeats an open
// only once. No thread blocks meanwhile; on a remote volume a separate thread opens the file.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "fs/alias_table.h"
#include "fs/opener_threads.h"
#include "store/base/mutex.h"
#include "store/store.h"

struct fuse_session;

namespace kvcachefs {

class Passthrough {
 public:
  // `on_refusal`: called when the kernel refuses all files of the volume, or all memory files (`in_memory`), with the reason `error`. Called
  // at most once for each of the two, from the thread that opens.
  // `epoch` of the mount: aliases contain it, so an alias in an old file handle never means another file at the next mount.
  // `remote`: opening a file of the volume may take long.
  // `source`: the store's functions, described there.
  struct Source {
    std::function<BackingFile(ObjectId object)> backing_file;
    std::function<Result<Stat>(ObjectId object)> stat;
  };
  void enable(fuse_session* session, Source source, uint32_t epoch, bool remote, std::function<void(bool in_memory, int error)> on_refusal) {
    session_ = session;
    source_ = std::move(source);
    aliases_.set_epoch(epoch);
    remote_ = remote;
    on_refusal_ = std::move(on_refusal);
    enabled_ = true;
  }
  void set_epoch(uint32_t epoch) { aliases_.set_epoch(epoch); }  // files of other nodes have aliases also without passthrough
  bool enabled() const { return enabled_; }
  bool takes_extents() const { return enabled_ && !refused_[0]; }  // false once the kernel has refused them

  ObjectId file_of(ObjectId node) const;    // resolves aliases
  ObjectId object_of(ObjectId node) const;  // the same; but by which the store knows what the nodeid shows, if that is held and outdated
  // What `ask` answers about the object that the nodeid shows. Asks again if the nodeid shows another by then: `ask(object_of(node))` alone may wait for
  // the store while another node's change is taken in, and then tells of the file as it is now, for a nodeid that is held as it was.
  template <class Ask>
  std::invoke_result_t<Ask, ObjectId> ask_shown(ObjectId node, const Ask& ask) const {
    while (true) {
      const ObjectId object = object_of(node);
      auto answer = ask(object);
      if (object_of(node) == object) return answer;
    }
  }
  ObjectId node_of(ObjectId object) const;  // the nodeid by which the kernel knows it
  // Returns the nodeid for an entry that is about to be sent to the kernel; call forget_node() if the entry was not sent. `to_be_written`: the
  // client got ESTALE and will open the object for writing, so the nodeid must have no passthrough opens.
  ObjectId tell_node(ObjectId object, bool to_be_written);
  void tell_again(ObjectId node);  // the entry carries the nodeid that the kernel asked for
  void forget_node(ObjectId node, uint64_t times);  // the kernel returned `times` lookups of it

  // How `node` is opened. kRead tries passthrough. kWrite is also used while a truncate by path runs.
  enum class Access : uint8_t { kRead, kReadDirect, kWrite };
  struct Decision {
    bool stale = false;      // answer ESTALE
    int32_t backing_id = 0;  // > 0: put it into the answer
    bool in_memory = false;  // the backing file is a memory file
    bool by_daemon = false;  // the daemon reads all the same: FOPEN_DIRECT_IO
  };
  using Then = std::move_only_function<void(Decision)>;
  // Decides on an open. Calls `then` once, inside the call or from another thread. There, an exception of `then` ends the daemon, so `then` must
  // catch its own. If memory runs out while the file is registered, the open goes through the daemon; open() throws only before it has counted the open.
  void open(ObjectId node, Access access, Then then);
  // True if readers of this nodeid keep an older body while a lookup of the name now returns another nodeid, or if that other one is open.
  bool is_outdated(ObjectId node) const;
  // True if the kernel may know the object by several nodeids: it must not cache attributes by one, because it changes them by another.
  bool has_aliases(ObjectId object) const;
  // For such a nodeid: sets `stat` to the size and times of the bytes that its readers see.
  void show_as_opened(ObjectId node, Stat& stat) const;
  // Nodeids of other nodes' files, also without passthrough. While a file is open the kernel has one size, time and set of pages for its nodeid: so
  // all opens of that nodeid have one state of the file. Once its node has changed the file, the next lookup is told another nodeid.
  // Call for each open, after the store has accepted it. False: the nodeid shows another state; open object_of() it again.
  // `is_last`: the file is gone, so that the nodeid shows no later state.
  bool hold(ObjectId node, const PeerState& state, bool is_last = false);
  void let_go(ObjectId node);  // ends an open for which hold() returned true, or that tell_held_node() holds
  ObjectId tell_held_node(ObjectId object, const PeerState& state);  // tell_node(), but a new nodeid, which is held in that state
  // Ends the threads that open files. Call when no further open will begin, before the store ends.
  void stop();
  // Ends an open that open() counted (also when its reply failed).
  void release(ObjectId node, bool passed_through);

 private:
  struct Waiting {
    Access access;
    Then then;
    Decision decision;  // set once decided
  };
  struct Held {
    PeerState state;
    uint32_t opens = 0;
  };
  struct Registered {
    int32_t id = 0;  // 0: nothing is passed through
    bool in_memory = false;
    std::optional<Stat> as_opened;
  };
  struct Node {
    int32_t backing_id = 0;
    uint32_t passed = 0, others = 0;
    bool in_memory = false;  // its backing file is a memory file
    bool opening = false;  // a backing file is being registered
    std::vector<Waiting> waiting;  // opens that wait for that
    std::optional<Stat> as_opened;  // at the time of registration
  };
  std::optional<Decision> decide(ObjectId node, Node& state, Access access);
  void register_node(ObjectId node, ObjectId object, Access access, Then then);
  Registered register_object(ObjectId object, Access access);
  std::vector<Waiting> end_opening(ObjectId node, Registered registered);
  const Node* outdated(ObjectId node) const;
  bool is_left(ObjectId node) const;
  void drop_attributes(ObjectId node) const;
  ObjectId held_as(ObjectId node) const;
  void promise(ObjectId node);
  ObjectId give_alias(ObjectId node);
  ObjectId give_fresh(ObjectId object);
  bool is_passed(ObjectId node) const;
  bool is_promised(ObjectId node) const;
  int32_t register_file(const BackingFile& file);
  void close_backing(int32_t id);

  fuse_session* session_ = nullptr;
  Source source_;
  std::function<void(bool, int)> on_refusal_;
  std::atomic<bool> refused_[2]{};  // files of the volume, files in RAM
  std::atomic<bool> enabled_{false};  // set once, by the request that negotiates
  mutable LeafMutex mutex_;
  std::unordered_map<ObjectId, Node> nodes_;  // open nodeids
  std::unordered_map<ObjectId, Held> held_;
  AliasTable aliases_;
  mutable std::unordered_map<ObjectId, std::chrono::steady_clock::time_point> promised_;  // nodeids given to clients that will write, and the end of the promise
  std::atomic<bool> has_aliases_{false};
  bool remote_ = false;
  OpenerThreads openers_;
};

}  // namespace kvcachefs

// FUSE passthrough: reads of a solo body go from the kernel straight to the extent file, those of a big body in RAM to its
// memory file. The rules the kernel sets:
//  - one backing id per inode while it is open; every further read-only open carries the same one;
//  - while a passthrough open lives, no cached or direct open of that inode: an open for writing (or a truncate by path)
//    is answered ESTALE, and the repeated lookup gets a *new nodeid* for the object, an alias. Old handles keep the bytes
//    they opened, and their nodeid the size that goes with them.
// Thread-safe. One leaf mutex; no call of the kernel or the store is made with it held. An open of a node whose backing file is
// being registered is decided once that is done: told ESTALE, it could be told twice in a row, and the kernel repeats an open
// only once. No thread waits for it; where the volume is remote, a thread for that opens the file.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
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
  // `on_refusal`: the kernel takes no file of the volume, or no file in RAM (`in_memory`), for the reason `error`. Once for
  // either, from the thread that opens.
  // `epoch` of the mount: an alias that a file handle holds means no other file at the next mount.
  // `remote`: to open a file of the volume may take long.
  // `source`: the store's, see there.
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
  bool enabled() const { return enabled_; }
  bool takes_extents() const { return enabled_ && !refused_[0]; }  // as far as is known

  ObjectId object_of(ObjectId node) const;  // resolves aliases
  ObjectId node_of(ObjectId object) const;  // by which the kernel knows it
  // The nodeid for an entry that is answered to the kernel: call forget_node() if it was not. `to_be_written`: for a client that got ESTALE and
  // will open the object for writing: one without passthrough opens.
  ObjectId tell_node(ObjectId object, bool to_be_written);
  void tell_again(ObjectId node);  // the very nodeid that the kernel asked by is answered
  void forget_node(ObjectId node, uint64_t times);  // the kernel does not know it any more, having been told so often

  // An open of `node`, or the time of a truncate by path: with kRead tries to pass it through.
  enum class Access : uint8_t { kRead, kReadDirect, kWrite };
  struct Decision {
    bool stale = false;      // answer ESTALE
    int32_t backing_id = 0;  // > 0: answer with it
    bool in_memory = false;  // ... which is of a body in RAM
    bool by_daemon = false;  // ... but the daemon reads: FOPEN_DIRECT_IO
  };
  using Then = std::move_only_function<void(Decision)>;
  // `then` is called once, inside the call or by another thread. What it throws there ends the daemon: it answers its request by itself.
  // Where there is no memory to find out more the open goes through the daemon; this throws only what is thrown before anything counts.
  void open(ObjectId node, Access access, Then then);
  // True if readers of this nodeid keep an older body while writers have another nodeid; a lookup of the name answers that one.
  bool is_outdated(ObjectId node) const;
  // Of such a nodeid: the size and times that its readers' bytes have.
  void show_as_opened(ObjectId node, Stat& stat) const;
  // Ends the threads that open files. No open is begun afterwards.
  void stop() { openers_.stop(); }
  // The end of an open that open() let in (also when its reply failed).
  void release(ObjectId node, bool passed_through);

 private:
  struct Waiting {
    Access access;
    Then then;
    Decision decision;  // once there is one
  };
  struct Registered {
    int32_t id = 0;  // 0: nothing is passed through
    bool in_memory = false;
    std::optional<Stat> as_opened;
  };
  struct Node {
    int32_t backing_id = 0;
    uint32_t passed = 0, others = 0;
    bool in_memory = false;  // its backing file
    bool opening = false;  // the kernel is asked for a backing id
    std::vector<Waiting> waiting;  // for that
    std::optional<Stat> as_opened;  // when it was registered
  };
  std::optional<Decision> decide(ObjectId node, Node& state, Access access);
  void register_node(ObjectId node, ObjectId object, Access access, Then then);
  Registered register_object(ObjectId object, Access access);
  std::vector<Waiting> end_opening(ObjectId node, Registered registered);
  const Node* outdated(ObjectId node) const;
  void promise(ObjectId node);
  ObjectId give_alias(ObjectId node);
  bool is_passed(ObjectId node) const;
  bool is_promised(ObjectId node);
  int32_t register_file(const BackingFile& file);
  void close_backing(int32_t id);

  fuse_session* session_ = nullptr;
  Source source_;
  std::function<void(bool, int)> on_refusal_;
  std::atomic<bool> refused_[2]{};  // files of the volume, files in RAM
  std::atomic<bool> enabled_{false};  // set once, by the request that negotiates
  mutable LeafMutex mutex_;
  std::unordered_map<ObjectId, Node> nodes_;  // that are open
  AliasTable aliases_;
  std::unordered_map<ObjectId, std::chrono::steady_clock::time_point> promised_;  // nodeids answered to clients that will write, and until when
  std::atomic<bool> has_aliases_{false};
  bool remote_ = false;
  OpenerThreads openers_;
};

}  // namespace kvcachefs

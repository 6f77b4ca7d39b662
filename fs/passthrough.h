// FUSE passthrough: reads of a solo body go from the kernel straight to the extent file, those of a big body in RAM to its
// memory file. The rules the kernel sets:
//  - one backing id per inode while it is open; every further read-only open carries the same one;
//  - while a passthrough open lives, no cached or direct open of that inode: an open for writing (or a truncate by path)
//    is answered ESTALE, and the repeated lookup gets a *new nodeid* for the object, an alias. Old handles keep the bytes
//    they opened.
// Thread-safe. One leaf mutex; no call of the kernel or the store is made with it held. Who opens a node while another
// thread registers its backing file waits for that (one ioctl): told ESTALE, it could be told twice in a row, and the kernel
// repeats an open only once.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "store/store.h"

struct fuse_session;

namespace kvcachefs {

class Passthrough {
 public:
  static constexpr uint32_t kAliasOrdinal = 255;  // node ordinal of alias nodeids

  // `on_refusal`: the kernel takes no file of the volume, or no file in RAM (`in_memory`), for the reason `error`. Once for
  // either, from the thread that opens.
  // `epoch` of the mount: an alias that a file handle holds means no other file at the next mount.
  void enable(fuse_session* session, uint32_t epoch, std::function<void(bool in_memory, int error)> on_refusal) {
    session_ = session;
    epoch_ = epoch;
    on_refusal_ = std::move(on_refusal);
    enabled_ = true;
  }
  bool enabled() const { return enabled_; }
  bool takes_extents() const { return enabled_ && !refused_[0]; }  // as far as is known

  ObjectId object_of(ObjectId node) const;  // resolves aliases
  ObjectId node_of(ObjectId object) const;  // the nodeid to tell the kernel
  // The same for who will open it for writing, having been told ESTALE: one without passthrough opens.
  ObjectId node_to_write(ObjectId object);

  // An open of `node`, or the time of a truncate by path: with `write` false tries to pass it through.
  struct Decision {
    bool stale = false;      // answer ESTALE
    int32_t backing_id = 0;  // > 0: answer with it
    bool in_memory = false;  // ... which is of a body in RAM
  };
  Decision open(ObjectId node, bool write, Store& store);
  // The end of an open that open() let in (also when its reply failed).
  void release(ObjectId node, bool passed_through);

 private:
  struct Node {
    int32_t backing_id = 0;
    uint32_t passed = 0, others = 0;
    bool in_memory = false;  // its backing file
    bool opening = false;  // somebody asks the kernel for a backing id
  };
  ObjectId current_node(ObjectId object) const;
  ObjectId give_alias(ObjectId node);
  bool is_passed(ObjectId node) const;
  bool is_promised(ObjectId node);
  int32_t register_file(const BackingFile& file);

  fuse_session* session_ = nullptr;
  uint32_t epoch_ = 0;
  std::function<void(bool, int)> on_refusal_;
  std::atomic<bool> refused_[2]{};  // files of the volume, files in RAM
  std::atomic<bool> enabled_{false};  // set once, by the request that negotiates
  mutable std::mutex mutex_;
  std::condition_variable registered_;  // a node's `opening` ended
  std::unordered_map<ObjectId, Node> nodes_;  // that are open
  std::unordered_map<ObjectId, ObjectId> object_of_alias_, alias_of_object_;
  std::unordered_map<ObjectId, std::chrono::steady_clock::time_point> promised_;  // nodes told to who will write, until then
  uint64_t next_alias_ = 1;
};

}  // namespace kvcachefs

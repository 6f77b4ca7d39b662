// Tells the kernel of names that went without a request of its own: chunks that were evicted; and, when that is asked for, of all that
// other nodes changed.
//
// The kernel may go by what it was told of a name for a second. Names that were probed are not evicted for longer than that, so only
// few that go can be known to it: what was made, or listed, a moment ago, and what went although it was leased.
//
// How: one notification that raises the epoch of the mount (Linux 6.16), so that each name is asked for once more when it is used
// next, and one for each object, so that its attributes are. Neither waits for anything. Not FUSE_NOTIFY_INVAL_ENTRY: it takes the
// lock of the directory in the kernel, which a client may hold while it waits for an answer of this daemon; were the daemon killed
// then, it could not end, and would keep /dev/fuse open: the mount would hang instead of answering ENOTCONN.
// On older kernels the name stays for what is left of its second: stat() tells the truth, for its attributes are asked for; access()
// may not.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "store/api/request_types.h"
#include "store/base/mutex.h"

struct fuse_session;

namespace kvcachefs {

class NameInvalidator {
 public:
  NameInvalidator() = default;
  NameInvalidator(const NameInvalidator&) = delete;
  NameInvalidator& operator=(const NameInvalidator&) = delete;
  ~NameInvalidator() { stop(); }

  // After the session was mounted. `nodes_of` gives the nodeids under which the kernel may know an object.
  using NodesOf = std::function<std::vector<uint64_t>(ObjectId)>;
  void start(fuse_session* session, NodesOf nodes_of);
  // From any thread; does not wait. What comes before start() or after stop() is dropped.
  void add(std::vector<GoneName> names);
  // Runs `then` once the kernel asks for each name before it goes by it, on a thread that it must not hold: at once, or after the time for
  // which it remembers names. From any thread.
  void forget_all(std::move_only_function<void()> then);
  // A listing gave names with their attributes: the kernel knows them as if they had been probed.
  void note_listing();
  void stop();

 private:
  void work();
  void raise_epoch();

  fuse_session* session_ = nullptr;
  NodesOf nodes_of_;
  std::atomic<int64_t> listed_ns_{INT64_MIN};
  bool has_epochs_ = true;  // as far as is known
  LeafMutex mutex_;        // a leaf. Guards:
  ConditionVariable ready_;
  std::vector<GoneName> names_;
  std::vector<std::move_only_function<void()>> asked_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace kvcachefs

// Tells the kernel of names that disappeared without a request from it: evicted chunks; and, on request, everything that other nodes
// changed.
//
// The kernel may use its cached answer for a name for one second. Names that were probed are kept from eviction for longer than that, so the
// kernel can know only few evicted names: names made or listed a moment ago, and names evicted in spite of a lease.
//
// How: one notification raises the epoch of the mount (Linux 6.16), so that the kernel looks each name up again at its next use; and one for
// each object makes it ask for the attributes again. Neither blocks. FUSE_NOTIFY_INVAL_ENTRY is not used: it takes the kernel's lock of the
// directory, which a client may hold while it waits for an answer of this daemon. If the daemon were killed then, it could not exit and
// would keep /dev/fuse open: the mount would hang instead of answering ENOTCONN.
// On older kernels the name stays for the rest of its second: stat() is correct, because the kernel asks for the attributes; access()
// may not be.
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

  // Call after the session was mounted. `nodes_of` returns the nodeids under which the kernel may know an object.
  using NodesOf = std::function<std::vector<uint64_t>(ObjectId)>;
  void start(fuse_session* session, NodesOf nodes_of);
  // May be called by any thread; does not block. Names added before start() or after stop() are dropped.
  void add(std::vector<GoneName> names);
  // Runs `then` once the kernel looks each name up again before it uses it: at once, or after the time for which the kernel caches
  // names. `then` runs on the invalidator's thread, or in the caller if there is no such thread, and must not block. May be called by any thread.
  void forget_all(std::move_only_function<void()> then);
  // Call when a listing returned names with attributes: the kernel then knows them as if they had been probed.
  void note_listing();
  void stop();

 private:
  void work();
  void raise_epoch();

  fuse_session* session_ = nullptr;
  NodesOf nodes_of_;
  std::atomic<int64_t> listed_ns_{INT64_MIN};
  bool has_epochs_ = true;  // until a notification fails
  LeafMutex mutex_;        // leaf; guards:
  ConditionVariable ready_;
  std::vector<GoneName> names_;
  std::vector<std::move_only_function<void()>> asked_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace kvcachefs
